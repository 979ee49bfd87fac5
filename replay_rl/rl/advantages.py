"""Advantages: how much better a rollout did than the others of its group.

Groups are found by `group_id`, never by the position of the rows, and may have
any size. Rewards are compared pair by pair. The cost grows as B^2, but is below
1 ms at B = 1024; no sum depends on the order in which a scatter adds; and a
group of equal rewards gets advantages of exactly zero. `w_reinforce` compares
with a constant instead.
"""

from typing import Annotated

import chex
import jax.numpy as jnp

from replay_rl import base
from replay_rl import constants


@constants.checked
def group_standardized(
  rewards: base.Array,
  group_id: base.Array,
  *,
  eps: Annotated[base.Scalar, constants.interval('[1e-12, 1000]')],
) -> base.Array:
  """Returns (r - mean) / (std + eps) within each group.

  DeepSeekMath (GRPO), https://arxiv.org/abs/2402.03300, section 4.1.2. The
  paper does not say which standard deviation; this is the sample one, which
  divides by n - 1, as in the implementations of trl and verl. The population
  one would give values larger by sqrt(n / (n - 1)).

  Args:
    rewards: `[B]` float.
    group_id: `[B]` int, any values.
    eps: in units of reward.

  Returns:
    `[B]` float; 0 for a group of one rollout or of equal rewards.
  """
  centered_B = group_mean_baseline(rewards, group_id)
  same_BB = _is_same_group(group_id)
  squares_B = jnp.sum(jnp.where(same_BB, centered_B[None, :] ** 2, 0.0), axis=1)
  std_B = jnp.sqrt(squares_B / _at_least_one(_group_size(group_id) - 1))
  return centered_B / (std_B + eps)


def group_mean_baseline(
  rewards: base.Array, group_id: base.Array
) -> base.Array:
  """Returns r - mean within each group.

  Dr. GRPO, https://arxiv.org/abs/2503.20783, section 3.2.

  Args:
    rewards: `[B]` float.
    group_id: `[B]` int, any values.

  Returns:
    `[B]` float; 0 for a group of one rollout or of equal rewards.
  """
  return _total_lead(rewards, group_id) / _group_size(group_id)


def leave_one_out(rewards: base.Array, group_id: base.Array) -> base.Array:
  """Returns r minus the mean of the other rewards of the group.

  RLOO, https://arxiv.org/abs/2402.14740.

  Args:
    rewards: `[B]` float.
    group_id: `[B]` int, any values.

  Returns:
    `[B]` float; 0 for a group of one rollout, which has nothing to compare
    with.
  """
  num_others_B = _group_size(group_id) - 1
  return _total_lead(rewards, group_id) / _at_least_one(num_others_B)


@constants.checked
def w_reinforce(
  rewards: base.Array,
  group_id: base.Array,
  *,
  correct_weight: Annotated[base.Scalar, constants.interval('[0, 1e+06]')],
  min_correct: Annotated[base.Scalar, constants.interval('[-1e+06, 1e+06]')],
) -> base.Array:
  """Returns `correct_weight` for a correct response and -1 for a wrong one.

  Weighted REINFORCE, "The Surprising Effectiveness of Negative Reinforcement in
  LLM Reasoning", https://arxiv.org/abs/2506.01347, with `losses.reinforce`. The
  paper's rewards are 1 and -1, where here `min_correct` divides any two.

  Args:
    rewards: `[B]` float.
    group_id: `[B]` int, not used: there is no baseline.
    correct_weight: 0.1 in the paper; 0 learns from wrong responses alone.
    min_correct: the least reward of a correct response.

  Returns:
    `[B]` float.
  """
  _check(rewards, group_id)
  return jnp.where(rewards >= min_correct, correct_weight, -1.0)


def group_has_variance(rewards: base.Array, group_id: base.Array) -> base.Array:
  """Returns whether any two rewards of the rollout's group differ.

  The filter of DAPO's dynamic sampling, https://arxiv.org/abs/2503.14476,
  section 3.2: the other groups have no gradient.

  Args:
    rewards: `[B]` float.
    group_id: `[B]` int, any values.

  Returns:
    `[B]` bool.
  """
  _check(rewards, group_id)
  differs_BB = rewards[:, None] != rewards[None, :]
  return jnp.any(_is_same_group(group_id) & differs_BB, axis=1)


def _total_lead(rewards: base.Array, group_id: base.Array) -> base.Array:
  # The sum of r_i - r_j over the group. The own term is zero: divided by n, the
  # sum is r - mean, and divided by n - 1, it is r - mean of the others.
  _check(rewards, group_id)
  leads_BB = rewards[:, None] - rewards[None, :]
  return jnp.sum(jnp.where(_is_same_group(group_id), leads_BB, 0.0), axis=1)


def _group_size(group_id: base.Array) -> base.Array:
  return jnp.sum(_is_same_group(group_id), axis=1, dtype=jnp.int32)


def _is_same_group(group_id: base.Array) -> base.Array:
  return group_id[:, None] == group_id[None, :]


def _at_least_one(counts: base.Array) -> base.Array:
  return jnp.maximum(counts, 1)


def _check(rewards: base.Array, group_id: base.Array) -> None:
  chex.assert_rank([rewards, group_id], 1)
  chex.assert_equal_shape([rewards, group_id])
  chex.assert_type([rewards, group_id], [float, int])
