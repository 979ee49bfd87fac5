"""Tests of batches that begin with fresh rows and leave no place empty."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl.replay import buffer
from replay_rl.replay import compose
from replay_rl.replay import sampling
from replay_rl.replay import weights
from tests.replay import buffers
from tests.replay import compose_test

KEY, STEP = jax.random.key(0), compose_test.STEP


@functools.lru_cache
def composer(name, draw):
  return jax.jit(
    functools.partial(
      getattr(compose, name), weight_rule=weights.newest_unused, draw=draw
    )
  )


filled = functools.partial(composer, 'fresh_filled')
first = functools.partial(composer, 'fresh_first')


class FreshFilledTest(parameterized.TestCase):
  def test_older_rows_take_the_places_of_dropped_ones_by_hand(self):
    # Slots 0 to 5 hold the older rows, 6 and 7 the fresh ones.
    state, fresh = compose_test.make_state(16, 6, [0, 1, 0, 1])
    batch = filled(sampling.largest)(state, fresh, KEY, STEP)
    ids = buffers.ids_of(batch.rollouts)
    np.testing.assert_array_equal(ids, [5, 101, 4, 103])
    chex.assert_trees_all_equal(batch.rollouts, buffers.make_rows(ids))
    np.testing.assert_array_equal(batch.slots, [5, 6, 4, 7])
    np.testing.assert_array_equal(batch.is_valid, [1] * 4)
    np.testing.assert_array_equal(batch.is_fresh, [0, 1, 0, 1])
    np.testing.assert_array_equal(batch.probs, [1, 0, 1, 0])
    self.assertEqual(int(batch.num_eligible), 6)

  @parameterized.parameters(
    ([0, 1, 0, 0], [0, 1, 16, 16], [1, 0, 0, 0]),
    ([1, 1, 0, 0], [1, 2, 0, 16], [0, 0, 1, 0]),
  )
  def test_with_too_few_older_rows_the_last_places_stay_invalid(
    self, is_valid, slots, probs
  ):
    state, fresh = compose_test.make_state(16, 1, is_valid)
    batch = filled(sampling.largest)(state, fresh, KEY, STEP)
    np.testing.assert_array_equal(batch.slots, slots)
    np.testing.assert_array_equal(batch.is_valid, np.array(slots) < 16)
    np.testing.assert_array_equal(batch.probs, probs)

  def test_without_a_dropped_row_the_fresh_ones_are_alone(self):
    state, fresh = compose_test.make_state(16, 6, [1] * 4)
    batch = filled(sampling.largest)(state, fresh, KEY, STEP)
    alone = compose.fresh_only(state, fresh, KEY, STEP)
    chex.assert_trees_all_equal(batch[:-1], alone[:-1])

  def test_older_rows_come_once_in_a_draw_without_replacement(self):
    state, fresh = compose_test.make_state(16, 8, [0, 0, 1, 0])
    seen = set()
    for seed in range(40):
      batch = filled(sampling.gumbel_top_k)(
        state, fresh, jax.random.key(seed), STEP
      )
      slots = np.asarray(batch.slots)[[0, 1, 3]]
      self.assertLen(set(slots.tolist()), 3)
      # The fresh row has the weight 16, and slots 7 to 0 have 15 to 8.
      probs = np.asarray(batch.probs)[[0, 1, 3]]
      np.testing.assert_allclose(probs, (slots + 8) / 92, rtol=1e-6)
      seen |= set(slots.tolist())
    self.assertEqual(seen, set(range(8)))


class FreshFirstTest(parameterized.TestCase):
  def test_the_first_update_is_on_policy_and_later_ones_draw(self):
    state, fresh = compose_test.make_state(16, 6, [1, 0, 1, 1])
    arguments = (fresh, KEY, STEP)
    compute = first(sampling.largest)
    batch = compute(state, *arguments)
    chex.assert_trees_all_equal(
      batch, jax.jit(compose.fresh_only)(state, *arguments)
    )
    for _ in range(2):
      state = buffer.mark_sampled(state, batch.slots, STEP)
      batch = compute(state, *arguments)
      # Older rows are left: the first update used the fresh ones.
      self.assertTrue(np.all(np.asarray(batch.slots)[:2] < 6))
    np.testing.assert_array_equal(batch.slots, [1, 0, 16, 16])
    np.testing.assert_array_equal(batch.is_valid, [1, 1, 0, 0])

  def test_later_updates_are_those_of_pure_buffer_with_fresh_rows_in_it(self):
    state, fresh = compose_test.make_state(16, 6, [1, 0, 1, 1])
    # One of the fresh rows was sampled.
    state = buffer.mark_sampled(state, fresh.slots[2:3], STEP)
    batch = first(sampling.largest)(state, fresh, KEY, STEP)
    np.testing.assert_array_equal(batch.slots, [8, 6, 5, 4])
    np.testing.assert_array_equal(batch.is_fresh, [1, 1, 0, 0])
    np.testing.assert_array_equal(batch.probs, [1] * 4)
    self.assertEqual(int(batch.num_eligible), 8)

  def test_uses_of_other_rows_do_not_end_the_first_update(self):
    state, fresh = compose_test.make_state(16, 6, [1, 0, 1, 1])
    state = buffer.mark_sampled(state, jnp.arange(6), STEP)
    batch = first(sampling.largest)(state, fresh, KEY, STEP)
    np.testing.assert_array_equal(batch.slots, [6, 16, 7, 8])

  def test_rows_that_do_not_count_do_not_end_the_first_update(self):
    # Row 2 was masked after its insert, and row 3 is in no slot.
    state, fresh = compose_test.make_state(16, 6, [1, 1, 1, 1])
    fresh = fresh._replace(
      is_valid=jnp.array([True, True, False, True]),
      slots=fresh.slots.at[3].set(16),
    )
    state = buffer.mark_sampled(state, jnp.int32([8, 15]), STEP)
    batch = first(sampling.largest)(state, fresh, KEY, STEP)
    np.testing.assert_array_equal(batch.slots, [6, 7, 16, 16])
    np.testing.assert_array_equal(batch.is_valid, [1, 1, 0, 1])

  def test_an_iteration_without_a_valid_fresh_row_draws_at_once(self):
    state, fresh = compose_test.make_state(16, 6, [0] * 4)
    batch = first(sampling.largest)(state, fresh, KEY, STEP)
    np.testing.assert_array_equal(batch.slots, [5, 4, 3, 2])
