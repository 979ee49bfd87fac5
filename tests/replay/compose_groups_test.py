"""Tests for `replay_rl.replay.compose_groups`."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from absl.testing import parameterized

from replay_rl import base
from replay_rl.replay import buffer
from replay_rl.replay import compose
from replay_rl.replay import compose_groups
from replay_rl.replay import sampling
from replay_rl.replay import weights
from tests.replay import buffers
from tests.replay import compose_test

KEY, STEP = jax.random.key(0), compose_test.STEP
GUMBEL, LARGEST = sampling.gumbel_top_k, sampling.largest


def by_reward(state, step):
  del step
  return state.rollouts.rewards


@functools.lru_cache
def groups(
  draw, replay_fraction=1.0, warmup_steps=0, group_size=2, rule=by_reward
):
  return jax.jit(
    functools.partial(
      compose_groups.fresh_anchored_groups,
      weight_rule=rule,
      draw=draw,
      replay_fraction=replay_fraction,
      warmup_steps=warmup_steps,
      group_size=group_size,
    )
  )


def store(state, ids, is_valid=None, **fields):
  """Stores rows as an iteration does; returns the buffer and the rows."""
  rows = buffers.make_rows(ids, **fields)
  is_valid = np.ones(len(ids), bool) if is_valid is None else is_valid
  state, slots = buffers.INSERT(
    state,
    rows,
    priorities=np.ones(len(ids), np.float32),
    is_valid=np.asarray(is_valid, bool),
  )
  return state, compose_test.make_fresh(rows, slots, np.asarray(is_valid, bool))


def stored_groups(group_id, weight, capacity=12):
  """Older rows with these groups and weights, and fresh groups 90 and 91."""
  state, _ = store(
    buffers.make_state(capacity),
    range(len(group_id)),
    group_id=group_id,
    rewards=weight,
  )
  return store(
    state, range(100, 104), group_id=[90, 90, 91, 91], rewards=[99] * 4
  )


class FreshAnchoredGroupsTest(parameterized.TestCase):
  # Group 5 has the mean 3 and group 3 the mean 4; groups 4 and 6 lack a row.
  STORED = ([5, 3, 4, 5, 3, 6], [6, 4, 50, 0, 4, 50])

  def test_whole_groups_by_the_mean_of_their_weights_by_hand(self):
    state, fresh = stored_groups(*self.STORED)
    batch = groups(LARGEST)(state, fresh, KEY, STEP)
    np.testing.assert_array_equal(batch.slots, [6, 7, 8, 9, 1, 4, 0, 3])
    np.testing.assert_array_equal(batch.is_valid, [1] * 8)
    np.testing.assert_array_equal(batch.is_fresh, [1] * 4 + [0] * 4)
    np.testing.assert_array_equal(batch.probs, [0] * 4 + [1] * 4)
    self.assertEqual(int(batch.num_eligible), 4)
    np.testing.assert_array_equal(
      batch.rollouts.tokens[4:, 0], [8 * 1, 8 * 4, 0, 8 * 3]
    )

  def test_draws_follow_the_mean_weights(self):
    state, fresh = stored_groups(*self.STORED)
    compute = groups(GUMBEL, replay_fraction=0.5)
    batch = jax.jit(
      jax.vmap(lambda rng_key: compute(state, fresh, rng_key, STEP))
    )(jax.random.split(KEY, 7000))
    slots = np.asarray(batch.slots)[:, 4:]
    counts = [
      np.sum(np.all(slots == pair, axis=1)) for pair in ([0, 3], [1, 4])
    ]
    self.assertGreater(scipy.stats.chisquare(counts, [3000, 4000]).pvalue, 1e-3)
    np.testing.assert_allclose(
      batch.probs[:, 4:],
      np.where(slots[:, :1] == 0, 3 / 7, 4 / 7).repeat(2, 1),
      rtol=1e-6,
    )

  def test_the_number_of_groups_follows_the_valid_fresh_ones(self):
    # Of 0, 1 and 2 groups, 0.75 are 0, 0.75 and 1.5: 0, 1 and 2 when rounded.
    older = [5, 5, 4, 4, 3, 3]
    for num_valid, expected in [(0, 0), (1, 1), (2, 2)]:
      state, _ = store(buffers.make_state(12), range(6), group_id=older)
      state, fresh = store(
        state,
        range(100, 104),
        np.arange(4) < 2 * num_valid,
        group_id=[90, 90, 91, 91],
      )
      batch = groups(GUMBEL, 0.75)(state, fresh, KEY, STEP)
      is_valid = np.arange(4) < 2 * expected
      np.testing.assert_array_equal(batch.is_valid[4:], is_valid)
      np.testing.assert_array_equal(batch.slots[4:] < 12, is_valid)
      np.testing.assert_array_equal(batch.probs[4:] > 0, is_valid)

  def test_a_weight_that_is_not_eligible_counts_as_zero(self):
    nan, inf = float('nan'), float('inf')
    for weight, expected in [
      ([6, 1, 0, nan, 1.5, 0], [1, 4, 0, 3]),  # Means 3 of group 5, 1.25 of 3.
      ([2, 3, 0, inf, 1, 0], [1, 4, 0, 3]),
      ([nan, 3, 0, inf, 1, 0], [1, 4, 12, 12]),
    ]:
      if weight[0] == 6:
        expected = [0, 3, 1, 4]
      state, fresh = stored_groups(self.STORED[0], weight)
      batch = groups(LARGEST)(state, fresh, KEY, STEP)
      np.testing.assert_array_equal(batch.slots[4:], expected)

  @parameterized.parameters(
    # Slots that are empty, and the older groups in a buffer of ten slots.
    ((), [5, 3, 5, 3, 4, 96], [[0, 2], [1, 3]]),
    ((5,), [5, 3, 5, 3, 96, 96], [[0, 2], [1, 3]]),
    ((0,), [5, 3, 5, 3, 96, 96], [[1, 3], [4, 5]]),
  )
  def test_a_full_buffer_gives_whole_groups_only(self, empty, ids, expected):
    state, fresh = stored_groups(ids, [1] * 6, capacity=10)
    state = buffers.with_empty(state, *empty)
    batch = groups(LARGEST, 1.5)(state, fresh, KEY, STEP)
    slots = np.asarray(batch.slots)[4:].reshape(-1, 2).tolist()
    self.assertEqual(slots, [*expected, [10, 10]])
    self.assertEqual(int(batch.num_eligible), 4)

  def test_a_group_that_lacks_the_row_in_its_middle_is_not_drawn(self):
    state, _ = store(
      buffers.make_state(9), range(6), group_id=[5, 4, 5, 4, 5, 4]
    )
    state, fresh = store(state, range(100, 103), group_id=[90] * 3)
    state = buffers.with_empty(state, 2)
    batch = groups(LARGEST, 2.0, group_size=3, rule=weights.uniform)(
      state, fresh, KEY, STEP
    )
    np.testing.assert_array_equal(batch.slots[3:], [1, 3, 5, 9, 9, 9])

  def test_large_weights_do_not_overflow(self):
    state, fresh = stored_groups(self.STORED[0], np.float32([3e38] * 6))
    batch = groups(LARGEST)(state, fresh, KEY, STEP)
    np.testing.assert_array_equal(batch.is_valid, [1] * 8)

  def test_warmup_ends_at_its_step(self):
    state, fresh = stored_groups(*self.STORED)
    for warmup_steps, expected in [(10, 1), (11, 0)]:
      batch = groups(LARGEST, warmup_steps=warmup_steps)(
        state, fresh, KEY, STEP
      )
      np.testing.assert_array_equal(batch.is_valid[4:], [expected] * 4)

  def test_units_of_one_row_are_fresh_anchored(self):
    state, _ = store(buffers.make_state(16), range(8))
    state, fresh = store(state, range(100, 104), [1, 0, 1, 1])
    constants = {
      'weight_rule': weights.uniform,
      'draw': GUMBEL,
      'replay_fraction': 0.6,
      'warmup_steps': 0,
    }
    chex.assert_trees_all_equal(
      groups(GUMBEL, 0.6, group_size=1, rule=weights.uniform)(
        state, fresh, KEY, STEP
      ),
      jax.jit(functools.partial(compose.fresh_anchored, **constants))(
        state, fresh, KEY, STEP
      ),
    )

  def test_it_equals_a_loop_over_groups_on_random_buffers(self):
    rng = np.random.default_rng(0)
    compute = groups(LARGEST, replay_fraction=2.0)
    num_partial = 0
    for _ in range(20):
      state, next_id = buffers.make_state(16), 0
      for _ in range(rng.integers(1, 7)):
        ids = next_id + np.arange(6)
        scores = rng.random(16).astype(np.float32)  # Scatters the groups.
        rows = buffers.make_rows(
          ids, group_id=ids // 2, rewards=rng.permutation(6) + ids / 1000
        )
        is_valid = np.repeat(rng.random(3) < 0.8, 2)
        state, slots = buffers.INSERT(
          state,
          rows,
          priorities=np.ones(6, np.float32),
          is_valid=is_valid,
          keep_scores=scores,
        )
        fresh = compose_test.make_fresh(rows, slots, is_valid)
        next_id += 6
      expected, num_groups, partial = self.of_loop(state, fresh)
      num_partial += partial
      batch = compute(state, fresh, KEY, STEP)
      np.testing.assert_array_equal(batch.slots[6:], expected)
      np.testing.assert_array_equal(
        batch.is_valid[6:], np.asarray(expected) < 16
      )
      self.assertEqual(int(batch.num_eligible), 2 * num_groups)
      is_valid = np.asarray(batch.is_valid)
      np.testing.assert_array_equal(
        batch.rollouts.tokens[is_valid, 0],
        state.rollouts.tokens[batch.slots[is_valid], 0],
      )
    self.assertGreater(num_partial, 0)

  def of_loop(self, state, fresh):
    """The slots of the older groups, how many there are, and broken ones."""
    slots_of = {}
    for slot in range(16):
      if state.is_valid[slot] and slot not in np.asarray(fresh.slots):
        slots_of.setdefault(int(state.rollouts.group_id[slot]), []).append(slot)
    whole = [slots for slots in slots_of.values() if len(slots) == 2]
    rewards = np.asarray(state.rollouts.rewards)
    whole.sort(key=lambda slots: -np.mean(rewards[slots]))
    drawn = whole[: int(np.sum(fresh.is_valid))]  # Twice as many as there are.
    drawn = [slot for slots in drawn for slot in slots]
    return (
      drawn + [16] * (12 - len(drawn)),
      len(whole),
      len(slots_of) - len(whole),
    )

  def test_wrong_input_raises(self):
    state, fresh = stored_groups(*self.STORED)
    with self.assertRaisesRegex(
      ValueError, '^group_size = 3: must divide the 4 fresh rows$'
    ):
      groups(LARGEST, group_size=3)(state, fresh, KEY, STEP)
    with self.assertRaisesRegex(
      ValueError,
      '^replay_fraction = 4.0: must give at most capacity = 12 older rows, and '
      'gives 16 for 4 fresh ones$',
    ):
      groups(LARGEST, replay_fraction=4.0)(state, fresh, KEY, STEP)
    with self.assertRaisesRegex(
      ValueError, '^rollouts.group_id = None: must be stored for fresh_anc'
    ):
      rollouts = {'tokens': jnp.zeros((12, 2))}
      groups(LARGEST, rule=weights.uniform)(
        state._replace(rollouts=rollouts), fresh, KEY, STEP
      )


class BothTest(parameterized.TestCase):
  @parameterized.parameters(
    compose_groups.same_prompt, compose_groups.fresh_anchored_groups
  )
  def test_a_donated_iteration_does_not_copy_the_storage(self, function):
    constants = {'num_replayed': 2, 'only_failed': True}
    if function is compose_groups.fresh_anchored_groups:
      constants = {'replay_fraction': 0.5, 'warmup_steps': 0}
    compose_fn = functools.partial(
      function, weight_rule=weights.uniform, draw=GUMBEL, group_size=8,
      **constants,
    )  # fmt: skip

    def iteration(state: base.BufferState, rows, rng_key):
      state, slots = buffer.insert(state, rows, priorities=rows.advantages)
      fresh = compose_test.make_fresh(rows, slots, slots >= 0)
      batch = compose_fn(state, fresh, rng_key, STEP)
      return buffer.mark_sampled(state, batch.slots, STEP), batch

    rows = buffers.make_rows(range(64), num_tokens=320)
    arguments = jax.eval_shape(
      lambda: (buffer.init(rows, capacity=4096), rows, KEY)
    )
    compiled = jax.jit(iteration, donate_argnums=0).lower(*arguments).compile()
    analysis = compiled.memory_analysis()
    assert analysis is not None
    stored = sum(leaf.nbytes for leaf in jax.tree.leaves(rows)) * 64
    self.assertLess(analysis.temp_size_in_bytes, stored / 10)
