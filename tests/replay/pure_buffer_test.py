"""Tests of `replay_rl.replay.compose.pure_buffer`."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl.replay import compose
from replay_rl.replay import sampling
from replay_rl.replay import weights
from tests.replay import buffers
from tests.replay import compose_test


@functools.lru_cache
def pure(draw, weight_rule=weights.uniform, batch_size=5):
  return jax.jit(
    functools.partial(
      compose.pure_buffer,
      weight_rule=weight_rule,
      draw=draw,
      batch_size=batch_size,
      rows_in_use=None,
    )
  )


class PureBufferTest(parameterized.TestCase):
  @parameterized.parameters(*compose_test.DRAWS)
  def test_rows_come_from_the_whole_buffer_and_know_if_they_are_fresh(
    self, draw
  ):
    # Eight slots hold rows 3 to 7 and 100, 101, 102 over rows 0, 1, 2.
    state, fresh = compose_test.make_state(8, 8, [1, 0, 1, 1])
    seen = set()
    for seed in range(20):
      batch = pure(draw)(state, fresh, jax.random.key(seed), compose_test.STEP)
      ids = buffers.ids_of(batch.rollouts)
      chex.assert_trees_all_equal(batch.rollouts, buffers.make_rows(ids))
      np.testing.assert_array_equal(
        buffers.ids_of(state.rollouts)[batch.slots], ids
      )
      np.testing.assert_array_equal(batch.is_fresh, ids >= 100)
      np.testing.assert_array_equal(batch.is_valid, [True] * 5)
      np.testing.assert_allclose(batch.probs, [1 / 8] * 5, rtol=1e-6)
      self.assertEqual(int(batch.num_eligible), 8)
      seen |= set(ids.tolist())
    self.assertEqual(seen, {3, 4, 5, 6, 7, 100, 102, 103})

  @parameterized.product(draw=compose_test.DRAWS, num_fresh=(0, 1, 3))
  def test_a_nearly_empty_buffer_gives_what_it_has(self, draw, num_fresh):
    state, fresh = compose_test.make_state(8, 0, np.arange(4) < num_fresh)
    batch = pure(draw)(state, fresh, jax.random.key(0), compose_test.STEP)
    repeats = draw is not sampling.gumbel_top_k
    num_valid = 5 * (num_fresh > 0) if repeats else num_fresh
    np.testing.assert_array_equal(batch.is_valid, np.arange(5) < num_valid)
    np.testing.assert_array_equal(batch.is_fresh, np.arange(5) < num_valid)
    np.testing.assert_array_equal(batch.slots == 8, np.arange(5) >= num_valid)
    self.assertEqual(int(batch.num_eligible), num_fresh)

  @parameterized.parameters(*compose_test.DRAWS)
  def test_the_rows_in_use_are_the_first_and_may_change_in_one_program(
    self, draw
  ):
    state, fresh = compose_test.make_state(8, 8, [1, 0, 1, 1])
    arguments = (state, fresh, jax.random.key(0), compose_test.STEP)
    whole = pure(draw)(*arguments)
    chex.clear_trace_counter()

    @jax.jit
    @chex.assert_max_traces(n=1)
    def of_rows(rows_in_use):
      return compose.pure_buffer(
        *arguments,
        weight_rule=weights.uniform,
        draw=draw,
        batch_size=5,
        rows_in_use=rows_in_use,
      )

    for rows_in_use in (1, 3, 5, 9):
      batch = of_rows(jnp.int32(rows_in_use))
      is_used = np.arange(5) < rows_in_use
      chex.assert_trees_all_equal(
        batch,
        whole._replace(
          slots=np.where(is_used, whole.slots, 8),
          is_valid=is_used,
          is_fresh=is_used & np.asarray(whole.is_fresh),
          probs=np.where(is_used, whole.probs, 0),
        ),
      )

  @parameterized.parameters(
    ({'rows_in_use': 0}, r'rows_in_use = 0: must be in \[1, inf\)'),
    ({'rows_in_use': 1.5}, 'rows_in_use = 1.5: must be of type int or None'),
    ({'batch_size': 0}, r'batch_size = 0: must be in \[1, inf\)'),
  )
  def test_a_constant_out_of_range_raises(self, constants, message):
    state, fresh = compose_test.make_state(8, 3, [1, 1])
    valid = {
      'weight_rule': weights.uniform,
      'draw': compose_test.IID,
      'batch_size': 2,
      'rows_in_use': None,
    }
    with self.assertRaisesRegex(ValueError, f'^{message}$'):
      compose.pure_buffer(
        state,
        fresh,
        jax.random.key(0),
        compose_test.STEP,
        **(valid | constants),
      )

  def test_the_rule_sees_the_step(self):
    state, fresh = compose_test.make_state(
      8, 4, [0]
    )  # Policy versions 2, 3, 4, 5.
    weight_rule = functools.partial(weights.max_age, limit=6)
    batch = pure(sampling.gumbel_top_k, weight_rule, 4)(
      state, fresh, jax.random.key(0), compose_test.STEP
    )
    self.assertEqual(sorted(batch.slots.tolist()), [2, 3, 8, 8])

  def test_an_invalid_draw_is_not_fresh_even_if_the_last_slot_is(self):
    state, fresh = compose_test.make_state(8, 7, [1])
    # Row 6 and the fresh row, in slot 7, have an age of at most 2.
    weight_rule = functools.partial(weights.max_age, limit=2)
    batch = pure(sampling.gumbel_top_k, weight_rule, 4)(
      state, fresh, jax.random.key(0), compose_test.STEP
    )
    self.assertEqual(sorted(batch.slots.tolist()), [6, 7, 8, 8])
    np.testing.assert_array_equal(batch.is_fresh, batch.slots == 7)
