"""Slot rules: one number per slot from the buffer and the learner's step.

As weights (the first part) they say what to sample; weights multiply, see
`product`, and only their ratios matter. As keep scores (`fifo`,
`positive_bias`) they say what stays when rollouts come in. Empty slots get a
number too: `buffer.sample` and `buffer.insert` pass over them. Bind the
constants with `functools.partial`; they are checked unless they are traced.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from replay_rl import base
from replay_rl.replay import buffer

ADVANTAGE_EPSILON = 1e-6  # Of `advantage_magnitude`.
NEVER_USED_WEIGHT = 1e30  # Of `never_used_first`; a used slot has 1.


def age(state: base.BufferState, step: base.Array) -> base.Array:
  """Returns `[C]` int32, learner steps since the policy of the rollout."""
  return step - state.rollouts.policy_version


def uniform(state: base.BufferState, step: base.Array) -> base.Array:
  """One for every slot."""
  del step
  return jnp.ones(state.is_valid.shape, jnp.float32)


def recency(
  state: base.BufferState, step: base.Array, *, half_life: float
) -> base.Array:
  """Halves with every `half_life` learner steps of age; 0 after 126 halves."""
  _check('half_life', half_life, 'above 0', lambda x: x > 0)
  return jnp.exp2(-age(state, step).astype(jnp.float32) / half_life)


def max_age(
  state: base.BufferState, step: base.Array, *, limit: float
) -> base.Array:
  """One while the age is at most `limit` learner steps, then zero."""
  _check('limit', limit, 'at least 0', lambda x: x >= 0)
  return (age(state, step) <= limit).astype(jnp.float32)


def max_uses(
  state: base.BufferState, step: base.Array, *, limit: int
) -> base.Array:
  """One until the slot was sampled `limit` times, then zero.

  Uses are counted by `mark_sampled`: within one batch that repeats slots the
  limit can be passed.
  """
  del step
  _check('limit', limit, 'at least 1', lambda x: x >= 1)
  return (state.times_sampled < limit).astype(jnp.float32)


def advantage_magnitude(
  state: base.BufferState, step: base.Array, *, exponent: float
) -> base.Array:
  """(|A| + 1e-6)^exponent, with the advantage A frozen at generation.

  "Rollout-Level Advantage-Prioritized Experience Replay for GRPO"
  (arXiv 2606.04560), where the exponent is 0.5.
  """
  del step
  _check('exponent', exponent, 'finite and at least 0', _is_exponent)
  magnitude_C = jnp.abs(state.rollouts.advantages) + ADVANTAGE_EPSILON
  return magnitude_C**exponent


def proportional(
  state: base.BufferState, step: base.Array, *, exponent: float
) -> base.Array:
  """(p / max p)^exponent of the stored priorities p; zero where p is zero.

  "Prioritized Experience Replay" (arXiv 1511.05952), equation 1. Division by
  the largest valid priority keeps any exponent from overflowing. A positive
  priority gets at least `buffer.MIN_PRIORITY`, so it can always be drawn.
  """
  del step
  _check('exponent', exponent, 'finite and at least 0', _is_exponent)
  # An exponent of 0 makes 0^0 = 1, and a logarithm of 0 would be -inf.
  is_positive_C = state.is_valid & (state.priorities > 0)
  logs_C = jnp.log(jnp.where(is_positive_C, state.priorities, 1.0))
  largest = jnp.max(jnp.where(is_positive_C, logs_C, -jnp.inf))
  power_C = jnp.exp(exponent * jnp.where(is_positive_C, logs_C - largest, 0.0))
  return jnp.where(is_positive_C, jnp.maximum(power_C, buffer.MIN_PRIORITY), 0)


def never_used_first(state: base.BufferState, step: base.Array) -> base.Array:
  """Puts slots never sampled before all others; uniform within both.

  "Efficient RL Training for LLMs with Experience Replay" (arXiv 2604.08706),
  `at_least_once`, if drawn with `sampling.gumbel_top_k`. The ratio of weights,
  1e30, is beyond what the noise can turn over.
  """
  del step
  is_unused_C = state.times_sampled == 0
  return jnp.where(is_unused_C, jnp.float32(NEVER_USED_WEIGHT), 1.0)


def fifo(state: base.BufferState, step: base.Array) -> base.Array:
  """Keep score: the oldest insertion goes first."""
  del step
  return -buffer.insertion_age(state).astype(jnp.float32)


def positive_bias(
  state: base.BufferState, step: base.Array, *, fraction: float
) -> base.Array:
  """Keep score: stay recent, but keep correct rollouts for longer.

  "Efficient RL Training for LLMs with Experience Replay" (arXiv 2604.08706),
  the positive-bias buffer with delta = `fraction`. After the insert the buffer
  holds the freshest C - P rollouts ever stored and the freshest P correct ones
  (reward above 0) before them, with P = delta C rounded half up. Rows inserted
  together are all kept, also where they are more than C - P. If there are
  fewer than P correct ones, the freshest others fill the rest.

  Minus the rank by age, except that a correct rollout has the rank of the
  correct one P places fresher: it goes when that one leaves the recent ones,
  and so takes its place among the P. This holds for any number of incoming
  rows, so rows that a filter drops do not matter. Ranks are exact up to 2^24
  slots.

  Args:
    state: the buffer before the insert.
    step: unused.
    fraction: delta in [0, 1]; 0 is `fifo`.
  """
  del step
  _check('fraction', fraction, 'in [0, 1]', lambda x: 0 <= x <= 1)
  capacity = state.is_valid.shape[0]
  num_positive = jnp.floor(fraction * capacity + 0.5).astype(jnp.int32)
  ranks_C = jnp.arange(capacity)
  freshest_first_C = jnp.lexsort((buffer.insertion_age(state), ~state.is_valid))
  is_correct_C = (state.is_valid & (state.rollouts.rewards > 0))[
    freshest_first_C
  ]
  fresher_correct_C = jnp.cumsum(is_correct_C) - is_correct_C
  rank_of_correct_C = (
    jnp.full(capacity, capacity)
    .at[jnp.where(is_correct_C, fresher_correct_C, capacity)]
    .set(ranks_C, mode='drop')
  )
  place_C = fresher_correct_C - num_positive
  taken_over_C = jnp.where(
    place_C < 0, -1, rank_of_correct_C.at[place_C].get(mode='clip')
  )
  scores_C = -jnp.where(is_correct_C, taken_over_C, ranks_C)
  return (
    jnp.zeros(capacity).at[freshest_first_C].set(scores_C.astype(jnp.float32))
  )


def product(*weight_rules: base.SlotRule) -> base.SlotRule:
  """Returns the rule that multiplies the weights of several rules."""
  if not weight_rules:
    raise ValueError('weight_rules is empty; product needs at least one rule.')

  def rule(state: base.BufferState, step: base.Array) -> base.Array:
    weights_C = weight_rules[0](state, step)
    for weight_rule in weight_rules[1:]:
      weights_C = weights_C * weight_rule(state, step)
    return weights_C

  return rule


def _is_exponent(exponent: float) -> bool:
  return 0 <= exponent < float('inf')


def _check(
  name: str,
  value: base.Array | float,
  allowed: str,
  is_allowed: Callable[[float], bool],
) -> None:
  # A traced constant, such as one of a vmapped sweep, has no value to check.
  if not isinstance(value, jax.Array) and not is_allowed(value):
    raise ValueError(f'{name}={value} must be {allowed}.')
