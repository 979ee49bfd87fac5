"""Tests of replay_rl.rl.advantages."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl.rl import advantages

ALL = {
  'group_standardized': jax.jit(
    functools.partial(advantages.group_standardized, eps=1e-4)
  ),
  'group_mean_baseline': jax.jit(advantages.group_mean_baseline),
  'leave_one_out': jax.jit(advantages.leave_one_out),
}

# Three groups, of sizes 3, 2 and 1, with their rows mixed.
REWARDS = np.array([1.0, 0.5, 0.0, 0.25, 0.0, 3.0], np.float32)
GROUP_ID = np.array([7, -5, 7, -5, 7, 2**31 - 1], np.int32)


def one_group_at_a_time(name, rewards, group_id):
  """The slow twin: loops over rows, in float64."""
  expected = []
  for i in range(len(rewards)):
    group = rewards[group_id == group_id[i]].astype(np.float64)
    lead = rewards[i] - group.mean()
    if name == 'group_standardized':
      # ddof=1, the sample standard deviation, as torch.std in trl and verl.
      lead /= (group.std(ddof=1) if len(group) > 1 else 0.0) + 1e-4
    if name == 'leave_one_out':
      others = (group.sum() - rewards[i]) / max(len(group) - 1, 1)
      lead = rewards[i] - others if len(group) > 1 else 0.0
    expected.append(lead)
  return np.array(expected)


class AdvantagesTest(parameterized.TestCase):
  @parameterized.parameters(
    # Sample deviations: sqrt(1 / 3) = 0.57735 and sqrt(1 / 32) = 0.17678.
    (
      'group_standardized',
      [1.1545005, 0.7067070, -0.5772503, -0.7067070, -0.5772503, 0.0],
    ),
    ('group_mean_baseline', [2 / 3, 0.125, -1 / 3, -0.125, -1 / 3, 0.0]),
    ('leave_one_out', [1.0, 0.25, -0.5, -0.25, -0.5, 0.0]),
  )
  def test_values_by_hand(self, name, expected):
    np.testing.assert_allclose(
      ALL[name](REWARDS, GROUP_ID), expected, rtol=1e-6
    )

  def test_group_has_variance_by_hand(self):
    rewards = jnp.array([1.0, 1.0, 0.0, 1.0, 0.0, 3.0])
    np.testing.assert_array_equal(
      advantages.group_has_variance(rewards, GROUP_ID),
      [True, False, True, False, True, False],
    )

  @parameterized.parameters(0.1, 0.0)
  def test_w_reinforce_by_hand(self, weight):
    compute = jax.jit(
      functools.partial(advantages.w_reinforce, min_correct=0.5)
    )
    actual = compute(REWARDS, GROUP_ID, correct_weight=weight)
    np.testing.assert_allclose(
      actual, [weight, weight, -1.0, -1.0, -1.0, weight], rtol=1e-6
    )
    self.assertEqual(actual.dtype, jnp.float32)

  @parameterized.parameters(*ALL)
  def test_advantages_equal_those_of_one_group_at_a_time(self, name):
    rng = np.random.default_rng(0)
    for _ in range(10):
      rewards = rng.normal(size=24).astype(np.float32)
      group_id = rng.choice([-(2**31), -1, 0, 5, 9, 2**31 - 1], 24)
      np.testing.assert_allclose(
        ALL[name](rewards, group_id.astype(np.int32)),
        one_group_at_a_time(name, rewards, group_id),
        rtol=1e-4,
        atol=1e-5,
      )

  @parameterized.parameters(*ALL)
  def test_each_seed_of_a_batch_is_computed_by_itself(self, name):
    rng = np.random.default_rng(0)
    rewards = rng.normal(size=(3, 8)).astype(np.float32)
    group_id = rng.integers(0, 3, (3, 8), np.int32)
    batched = np.asarray(jax.vmap(ALL[name])(rewards, group_id))
    for seed in range(3):
      np.testing.assert_allclose(
        batched[seed], ALL[name](rewards[seed], group_id[seed]), rtol=1e-5
      )

  @parameterized.parameters(*ALL)
  def test_equal_rewards_give_exactly_zero(self, name):
    # In float32, the mean of three times 0.1 is not 0.1.
    rewards = np.full(3, 0.1, np.float32)
    np.testing.assert_array_equal(
      ALL[name](rewards, np.zeros(3, np.int32)), 0.0
    )

  @parameterized.parameters(*ALL)
  def test_a_reward_of_one_group_does_not_reach_the_others(self, name):
    rewards = np.array([np.nan, *REWARDS[1:]], np.float32)
    actual = np.asarray(ALL[name](rewards, GROUP_ID))
    expected = np.asarray(ALL[name](REWARDS, GROUP_ID))
    np.testing.assert_array_equal(actual[1::2], expected[1::2])
    self.assertTrue(np.isnan(actual[::2]).all())

  @parameterized.parameters(
    *ALL.values(),
    advantages.group_has_variance,
    functools.partial(
      advantages.w_reinforce, correct_weight=0.1, min_correct=0.5
    ),
  )
  def test_wrong_inputs_raise(self, compute):
    with self.assertRaisesRegex(AssertionError, 'rank'):
      compute(REWARDS[None], GROUP_ID[None])
    with self.assertRaisesRegex(AssertionError, 'shape'):
      compute(REWARDS, GROUP_ID[:-1])
    with self.assertRaisesRegex(AssertionError, 'type'):
      compute(REWARDS, REWARDS)

  @parameterized.parameters(0, -1.0, 1e-30, jnp.inf)
  def test_a_constant_out_of_range_raises(self, eps):
    with self.assertRaisesRegex(
      ValueError, r'^eps = .*: must be in \[1e-12, 1'
    ):
      advantages.group_standardized(REWARDS, GROUP_ID, eps=eps)

  @parameterized.parameters(
    {'correct_weight': -0.1}, {'correct_weight': jnp.inf},
    {'correct_weight': True}, {'min_correct': jnp.nan}, {'min_correct': None},
  )  # fmt: skip
  def test_a_wrong_constant_of_w_reinforce_raises(self, **wrong):
    constants = {'correct_weight': 0.1, 'min_correct': 0.5} | wrong
    with self.assertRaisesRegex(ValueError, f'^{next(iter(wrong))} = .*: must'):
      advantages.w_reinforce(REWARDS, GROUP_ID, **constants)
