"""Tests of replay_rl.rl.batch_advantages."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl import base
from replay_rl.rl import advantages
from replay_rl.rl import batch_advantages
from tests.replay import buffers

EPS = 1e-4
ALL = {
  name: jax.jit(functools.partial(getattr(batch_advantages, name), eps=EPS))
  for name in ('joint', 'apart', 'of_batch')
}


def make_batch(rewards, prompt_id, is_fresh, is_valid=None) -> base.Batch:
  num_rows = len(rewards)
  if is_valid is None:
    is_valid = np.ones(num_rows, bool)
  return base.Batch(
    rollouts=buffers.make_rows(
      range(num_rows), rewards=rewards, prompt_id=prompt_id
    ),
    slots=jnp.arange(num_rows),
    is_valid=jnp.asarray(is_valid, bool),
    is_fresh=jnp.asarray(is_fresh, bool),
    probs=jnp.zeros(num_rows),
    num_eligible=jnp.int32(num_rows),
  )


# Fresh groups of the prompts 2^32 - 1 and 8, and replayed rows of both.
REWARDS = [1, 0, 0, 0, 1, 0, 3]
PROMPTS = [2**32 - 1, 2**32 - 1, 8, 8, 2**32 - 1, 2**32 - 1, 8]
IS_FRESH = [1, 1, 1, 1, 0, 0, 0]


class BatchAdvantagesTest(parameterized.TestCase):
  @parameterized.parameters(
    # Of 1, 0, 1, 0 the sample deviation is sqrt(1 / 3), and of 0, 0, 3 sqrt(3).
    (
      'joint',
      [0.8658755, -0.8658755, -0.5773170, -0.5773170, 0.8658755, -0.8658755]
      + [1.1546338],
    ),
    # Of 1, 0 it is sqrt(1 / 2); the replayed row of 8 is alone.
    (
      'apart',
      [0.7070068, -0.7070068, 0, 0, 0.7070068, -0.7070068, 0],
    ),
    # Of 1, 0, 0, 0, 1, 0, 3 the mean is 5 / 7 and the deviation sqrt(26 / 21).
    (
      'of_batch',
      [0.2567530, -0.6418826, -0.6418826, -0.6418826, 0.2567530, -0.6418826]
      + [2.0540242],
    ),
  )
  def test_values_by_hand(self, name, expected):
    batch = make_batch(REWARDS, PROMPTS, IS_FRESH)
    actual = ALL[name](batch)
    np.testing.assert_allclose(actual, expected, rtol=1e-5)
    self.assertEqual(actual.dtype, jnp.float32)

  def test_the_prompt_counts_and_not_the_group(self):
    batch = make_batch([1, 0, 1, 0], [7, 7, 7, 9], [1, 1, 0, 0])
    # Every row has a group_id of its own.
    np.testing.assert_allclose(
      ALL['joint'](batch),
      np.array([1 / 3, -2 / 3, 1 / 3, 0]) / (np.sqrt(1 / 3) + EPS),
      rtol=1e-5,
    )

  def test_rows_that_are_not_valid_count_nowhere(self):
    # Row 0 is not valid, so row 1 is the first of its prompt.
    batch = make_batch(
      [np.nan, 1, 0, 5], [7, 7, 7, 7], [1, 1, 1, 0], [0, 1, 1, 0]
    )
    expected = np.array([0, 0.5, -0.5, 0]) / (np.sqrt(1 / 2) + EPS)
    for name in ALL:
      np.testing.assert_allclose(ALL[name](batch), expected, rtol=1e-5)
    nothing = batch._replace(is_valid=jnp.zeros(4, bool))
    for name in ALL:
      np.testing.assert_array_equal(ALL[name](nothing), np.zeros(4))

  def test_fresh_groups_alone_get_what_group_standardized_gives(self):
    rng = np.random.default_rng(0)
    prompts = np.repeat([5, 2, 9], 4)
    batch = make_batch(rng.normal(size=12), prompts, np.ones(12))
    expected = advantages.group_standardized(
      batch.rollouts.rewards, jnp.asarray(prompts), eps=EPS
    )
    for name in ('joint', 'apart'):
      np.testing.assert_allclose(ALL[name](batch), expected, rtol=1e-5)

  @parameterized.parameters(*ALL)
  def test_it_equals_a_loop_over_prompts(self, name):
    rng = np.random.default_rng(1)
    for _ in range(10):
      rewards = rng.normal(size=20).astype(np.float32)
      prompts, is_fresh = rng.integers(4, size=20), rng.random(20) < 0.5
      is_valid = rng.random(20) < 0.8
      expected = np.zeros(20)
      for i in np.flatnonzero(is_valid):
        own = is_valid & ((prompts == prompts[i]) | (name == 'of_batch'))
        if name == 'apart':
          own &= is_fresh == is_fresh[i]
        if np.sum(own) > 1:
          lead = rewards[i] - np.mean(rewards[own], dtype=np.float64)
          expected[i] = lead / (np.std(rewards[own], ddof=1) + EPS)
      actual = ALL[name](make_batch(rewards, prompts, is_fresh, is_valid))
      np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-5)

  @parameterized.parameters(*ALL)
  def test_a_constant_out_of_range_raises(self, name):
    batch = make_batch(REWARDS, PROMPTS, IS_FRESH)
    with self.assertRaisesRegex(ValueError, r'^eps = 0: must be in \[1e-12, 1'):
      getattr(batch_advantages, name)(batch, eps=0)

  @parameterized.parameters(*ALL)
  def test_rewards_of_another_type_raise(self, name):
    batch = make_batch(REWARDS, PROMPTS, IS_FRESH)
    rollouts = batch.rollouts._replace(rewards=jnp.zeros(7, jnp.int32))
    with self.assertRaisesRegex(AssertionError, 'type'):
      ALL[name](batch._replace(rollouts=rollouts))
