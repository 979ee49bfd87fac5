"""Tests of `compose_groups.same_prompt`."""

import functools

import chex
import jax
import numpy as np
import scipy.stats
from absl.testing import parameterized

from replay_rl.replay import compose_groups
from replay_rl.replay import sampling
from tests.replay import buffers
from tests.replay import compose_groups_test
from tests.replay import compose_test

KEY, STEP = jax.random.key(0), compose_test.STEP
GUMBEL, LARGEST = sampling.gumbel_top_k, sampling.largest


@functools.lru_cache
def same_prompt(draw, num_replayed=2, only_failed=False, group_size=2):
  return jax.jit(
    functools.partial(
      compose_groups.same_prompt,
      weight_rule=compose_groups_test.by_reward,
      draw=draw,
      group_size=group_size,
      num_replayed=num_replayed,
      only_failed=only_failed,
    )
  )


def two_prompts(is_valid=(1, 1, 1, 1), rewards=(0, 1, 0, 0)):
  """Six older rows of prompts 7, 8 and 9, and fresh groups of 7 and 8."""
  state, _ = compose_groups_test.store(
    buffers.make_state(12),
    range(6),
    prompt_id=[7, 7, 7, 8, 9, 9],
    rewards=[1, 3, 2, 5, 9, 9],
  )
  return compose_groups_test.store(
    state,
    range(100, 104),
    is_valid,
    prompt_id=[7, 7, 8, 8],
    rewards=rewards,
  )


class SamePromptTest(parameterized.TestCase):
  def test_the_fresh_rows_and_then_those_of_each_prompt_by_hand(self):
    state, fresh = two_prompts()
    batch = same_prompt(LARGEST)(state, fresh, KEY, STEP)
    # Slots 0 to 5 hold the older rows and 6 to 9 the fresh ones. Prompt 7 has
    # three older rows, of which 1 and 2 have the largest weights; 8 has one.
    np.testing.assert_array_equal(batch.slots, [6, 7, 8, 9, 1, 2, 3, 12])
    np.testing.assert_array_equal(batch.is_valid, [1] * 7 + [0])
    np.testing.assert_array_equal(batch.is_fresh, [1] * 4 + [0] * 4)
    np.testing.assert_array_equal(batch.probs, [0] * 4 + [1, 1, 1, 0])
    np.testing.assert_array_equal(
      buffers.ids_of(batch.rollouts)[:7], [100, 101, 102, 103, 1, 2, 3]
    )
    self.assertEqual(int(batch.num_eligible), 4)

  def test_an_empty_slot_is_neither_drawn_nor_counted(self):
    state, fresh = two_prompts()
    state = buffers.with_empty(state, 1)
    batch = same_prompt(LARGEST)(state, fresh, KEY, STEP)
    np.testing.assert_array_equal(batch.slots[4:], [2, 0, 3, 12])
    self.assertEqual(int(batch.num_eligible), 3)

  def test_only_groups_without_a_reward_get_older_rows(self):
    state, fresh = two_prompts()
    batch = same_prompt(LARGEST, only_failed=True)(state, fresh, KEY, STEP)
    np.testing.assert_array_equal(batch.slots[4:], [12, 12, 3, 12])
    np.testing.assert_array_equal(batch.is_valid[4:], [0, 0, 1, 0])
    self.assertEqual(int(batch.num_eligible), 1)

  @parameterized.parameters(
    # Rewards of the second group, and whether it is valid again.
    ([0, 0], 1),
    ([-1, -1], 1),
    ([5, 5], 0),  # The older row has this reward, too.
  )
  def test_a_dropped_group_is_valid_again_beside_another_reward(
    self, rewards, is_revived
  ):
    state, fresh = two_prompts([1, 1, 0, 0], [0, 1, *rewards])
    batch = same_prompt(LARGEST)(state, fresh, KEY, STEP)
    np.testing.assert_array_equal(
      batch.is_valid, [1, 1, is_revived, is_revived, 1, 1, 1, 0]
    )
    np.testing.assert_array_equal(batch.is_fresh[2:4], [is_revived] * 2)
    # The rows that were dropped are stored nowhere.
    np.testing.assert_array_equal(batch.slots, [6, 7, 12, 12, 1, 2, 3, 12])

  def test_a_dropped_group_without_an_older_row_stays_dropped(self):
    state, fresh = two_prompts([1, 1, 0, 0])
    rollouts = fresh.rollouts
    rollouts = rollouts._replace(prompt_id=rollouts.prompt_id.at[2:].set(5))
    fresh = fresh._replace(rollouts=rollouts)
    batch = same_prompt(LARGEST)(state, fresh, KEY, STEP)
    np.testing.assert_array_equal(batch.is_valid, [1, 1, 0, 0, 1, 1, 0, 0])

  def test_two_groups_of_one_prompt_both_get_older_rows_of_their_own_draw(self):
    state, _ = compose_groups_test.store(
      buffers.make_state(64), range(40), prompt_id=[7] * 40, rewards=[1] * 40
    )
    state, fresh = compose_groups_test.store(
      state, range(100, 104), prompt_id=[7] * 4, rewards=[1] * 4
    )
    batch = same_prompt(GUMBEL, num_replayed=4)(state, fresh, KEY, STEP)
    ids = buffers.ids_of(batch.rollouts)[4:]
    self.assertTrue(np.all(batch.is_valid) and np.all(ids < 40))
    self.assertNotEqual(sorted(ids[:4]), sorted(ids[4:]))
    self.assertEqual(int(batch.num_eligible), 40)

  def test_draws_follow_the_weights_within_a_prompt(self):
    state, fresh = two_prompts()
    compute = same_prompt(GUMBEL, num_replayed=1)
    batch = jax.jit(
      jax.vmap(lambda rng_key: compute(state, fresh, rng_key, STEP))
    )(jax.random.split(KEY, 6000))
    slots = np.asarray(batch.slots)[:, 4]
    counts = np.bincount(slots, minlength=12)
    np.testing.assert_array_equal(counts[3:], 0)
    # The weights are 1, 3 and 2.
    self.assertGreater(
      scipy.stats.chisquare(counts[:3], [1000, 3000, 2000]).pvalue, 1e-3
    )
    expected = np.array([1, 3, 2])[slots] / 6
    np.testing.assert_allclose(batch.probs[:, 4], expected, rtol=1e-6)

  def test_it_equals_a_loop_over_groups_on_random_buffers(self):
    rng = np.random.default_rng(0)
    compute = same_prompt(LARGEST, num_replayed=3, only_failed=True)
    num_revived = 0
    for _ in range(30):
      state, next_id = buffers.make_state(24), 0
      for _ in range(rng.integers(1, 9)):
        prompts = np.repeat(rng.integers(4, size=3), 2)
        # No two positive rewards are equal, so that no weights tie.
        ids = next_id + np.arange(6)
        rewards = np.where(rng.random(6) < 0.4, 1 + ids, 0)
        is_valid = np.repeat(rng.random(3) < 0.7, 2)
        state, fresh = compose_groups_test.store(
          state, ids, is_valid, prompt_id=prompts, rewards=rewards
        )
        next_id += 6
      batch = compute(state, fresh, KEY, STEP)
      made = buffers.make_rows(
        buffers.ids_of(batch.rollouts),
        prompt_id=batch.rollouts.prompt_id,
        rewards=batch.rollouts.rewards,
      )
      chex.assert_trees_all_equal(
        *(x.tokens[batch.is_valid] for x in (batch.rollouts, made))
      )
      expected, is_valid = self.of_loop(state, fresh, num_replayed=3)
      np.testing.assert_array_equal(batch.slots[6:], expected)
      np.testing.assert_array_equal(batch.is_valid[:6], is_valid)
      num_revived += np.sum(is_valid & ~np.asarray(fresh.is_valid))
    self.assertGreater(num_revived, 0)

  def of_loop(self, state, fresh, num_replayed):
    """The slots of the older rows of failed groups, and which rows count."""
    rewards, prompts = (
      np.asarray(x) for x in (fresh.rollouts.rewards, fresh.rollouts.prompt_id)
    )
    stored = state.rollouts
    slots, is_valid = [], np.array(fresh.is_valid)
    for start in range(0, 6, 2):
      own = []
      for slot in range(24):
        is_own = state.is_valid[slot] and slot not in np.asarray(fresh.slots)
        is_own = is_own and stored.prompt_id[slot] == prompts[start]
        if (
          is_own
          and stored.rewards[slot] > 0
          and max(rewards[start : start + 2]) <= 0
        ):
          own.append(slot)
      own.sort(key=lambda slot: -stored.rewards[slot])
      own = own[:num_replayed]
      if own:
        is_valid[start : start + 2] = True
      slots += own + [24] * (num_replayed - len(own))
    return slots, is_valid

  def test_groups_that_are_no_parts_of_the_fresh_rows_raise(self):
    state, fresh = two_prompts()
    with self.assertRaisesRegex(
      ValueError, '^group_size = 3: must divide the 4 fresh rows$'
    ):
      same_prompt(LARGEST, group_size=3)(state, fresh, KEY, STEP)

  def test_more_rows_than_slots_raise(self):
    state, fresh = two_prompts()
    with self.assertRaisesRegex(
      ValueError, '^num_replayed = 13: must be at most capacity = 12$'
    ):
      same_prompt(LARGEST, num_replayed=13)(state, fresh, KEY, STEP)

  @parameterized.parameters(
    ('num_replayed', 0, r'in \[1, inf\)'),
    ('num_replayed', 1.5, 'of type int'),
    ('only_failed', 'no', 'of type bool'),
  )
  def test_a_bad_constant_raises(self, name, value, allowed):
    state, fresh = two_prompts()
    with self.assertRaisesRegex(
      ValueError, f'^{name} = {value!r}: must be {allowed}$'
    ):
      same_prompt(LARGEST, **{name: value})(state, fresh, KEY, STEP)
