"""Weight rules: how often to sample each slot.

A rule maps the buffer and the learner step to one number per slot. Weights
multiply, see `product`, and only their ratios matter. A slot of weight 0 is
never drawn. Empty slots get a number too, which `buffer.sample` ignores. Bind
the constants with `functools.partial`; they may be traced arrays.
"""

from typing import Annotated

import jax
import jax.numpy as jnp

from replay_rl import base
from replay_rl import constants
from replay_rl.replay import buffer
from replay_rl.replay import sampling
from replay_rl.replay import storage

ADVANTAGE_EPSILON = 1e-6  # Of `advantage_magnitude`.
_MAX_COUNT = 2**24  # Up to here, float32 has every integer.
NEVER_USED_WEIGHT = 1e30  # Of `never_used_first`; a used slot has 1.


def age(state: base.BufferState, step: base.Array) -> base.Array:
  """Returns `[C]` int32, learner steps since the policy of the rollout."""
  return _age(state, step, 'age')


def uniform(state: base.BufferState, step: base.Array) -> base.Array:
  """One for every slot."""
  del step
  return jnp.ones(state.is_valid.shape, jnp.float32)


@constants.checked
def newest(
  state: base.BufferState,
  step: base.Array,
  *,
  count: Annotated[int | jax.Array, constants.interval('[1, inf)')],
) -> base.Array:
  """One for the `count` rollouts that were inserted last, zero for older ones.

  A ring of C slots is then a buffer of `count` slots, or of C if that is less.
  """
  del step
  return (buffer.insertion_age(state) < count).astype(jnp.float32)


@constants.checked
def recency(
  state: base.BufferState,
  step: base.Array,
  *,
  half_life: Annotated[base.Scalar, constants.POSITIVE],
) -> base.Array:
  """Halves with every `half_life` learner steps of age; 0 after 126 halves."""
  return jnp.exp2(-_age(state, step, 'recency').astype(jnp.float32) / half_life)


@constants.checked
def max_age(
  state: base.BufferState,
  step: base.Array,
  *,
  limit: Annotated[base.Scalar, constants.interval('[0, inf]')],
) -> base.Array:
  """One while the age is at most `limit` learner steps, then zero."""
  return (_age(state, step, 'max_age') <= limit).astype(jnp.float32)


@constants.checked
def max_uses(
  state: base.BufferState,
  step: base.Array,
  *,
  limit: Annotated[int | jax.Array, constants.interval('[1, inf)')],
) -> base.Array:
  """One until the slot was sampled `limit` times, then zero.

  `buffer.mark_sampled` counts the uses after a batch is drawn: a batch that
  repeats slots can pass the limit.
  """
  del step
  return (state.times_sampled < limit).astype(jnp.float32)


@constants.checked
def advantage_magnitude(
  state: base.BufferState,
  step: base.Array,
  *,
  exponent: Annotated[base.Scalar, constants.interval('[0, 6]')],
) -> base.Array:
  """(|A| + 1e-6)^exponent, with the advantage A frozen at generation.

  "Rollout-Level Advantage-Prioritized Experience Replay for GRPO"
  (arXiv 2606.04560), where the exponent is 0.5. Above 6, rows without an
  advantage would have a weight of zero, and are then never drawn.
  """
  del step
  advantages_C = buffer.field(state, 'advantages', 'advantage_magnitude')
  return (jnp.abs(advantages_C) + ADVANTAGE_EPSILON) ** exponent


@constants.checked
def proportional(
  state: base.BufferState,
  step: base.Array,
  *,
  exponent: Annotated[base.Scalar, constants.NON_NEGATIVE],
) -> base.Array:
  """(p / max p)^exponent of the stored priorities p; zero where p is zero.

  "Prioritized Experience Replay" (arXiv 1511.05952), equation 1. Division by
  the largest valid priority keeps any exponent from overflowing. A positive
  priority gets at least `buffer.MIN_PRIORITY`, so it can always be drawn.
  """
  del step
  # An exponent of 0 makes 0^0 = 1, and a logarithm of 0 would be -inf.
  is_positive_C = state.is_valid & (state.priorities > 0)
  logs_C = jnp.log(jnp.where(is_positive_C, state.priorities, 1.0))
  largest = jnp.max(jnp.where(is_positive_C, logs_C, -jnp.inf))
  power_C = jnp.exp(exponent * jnp.where(is_positive_C, logs_C - largest, 0.0))
  return jnp.where(is_positive_C, jnp.maximum(power_C, buffer.MIN_PRIORITY), 0)


@constants.checked
def inverse_age(
  state: base.BufferState,
  step: base.Array,
  *,
  exponent: Annotated[base.Scalar, constants.interval('[0, 4]')],
) -> base.Array:
  """(1 + age)^-exponent, with the age in learner steps.

  Above an exponent of 4, the largest ages would have a weight of zero.
  """
  age_C = _age(state, step, 'inverse_age').astype(jnp.float32)
  return (1.0 + age_C) ** -exponent


@constants.checked
def exp_reward(
  state: base.BufferState,
  step: base.Array,
  *,
  temperature: Annotated[base.Scalar, constants.TEMPERATURE],
) -> base.Array:
  """exp((r - max r) / temperature) of the rewards r in the buffer.

  "Trajectory Balance with Asynchrony" (arXiv 2503.18929), sampling by a softmax
  of rewards. With `sampling.largest` the highest rewards (RePO, arXiv
  2506.09340, `highest`), and with `sampling.most_varied` the most varied ones.
  At least `sampling.MIN_WEIGHT`, so every rollout can be drawn.
  """
  del step
  rewards_C = buffer.field(state, 'rewards', 'exp_reward')
  return _softmax(rewards_C, state.is_valid, temperature)


@constants.checked
def min_reward(
  state: base.BufferState,
  step: base.Array,
  *,
  limit: Annotated[base.Scalar, constants.interval('[-1e+06, 1e+06]')],
) -> base.Array:
  """One where the reward is at least `limit`, and else zero.

  The correct rollouts, which RLEP (arXiv 2507.07451), ARPO (arXiv 2505.16282)
  and ExGRPO (arXiv 2510.02245) replay.
  """
  del step
  rewards_C = buffer.field(state, 'rewards', 'min_reward')
  return (rewards_C >= limit).astype(jnp.float32)


@constants.checked
def confident(
  state: base.BufferState,
  step: base.Array,
  *,
  temperature: Annotated[base.Scalar, constants.TEMPERATURE],
) -> base.Array:
  """exp((c - max c) / temperature), c the mean log-prob of a row's tokens.

  ExGRPO (arXiv 2510.02245) replays the success of the lowest entropy: this with
  `min_reward` and `sampling.largest`. The paper scores by the current policy,
  and this by the log-probs that were recorded at generation. At least
  `sampling.MIN_WEIGHT`, so every rollout can be drawn.
  """
  del step
  means_C = mean_logprobs(state, 'confident')
  return _softmax(means_C, state.is_valid, temperature)


def newest_first(state: base.BufferState, step: base.Array) -> base.Array:
  """More for later rollouts: C for the newest, C - 1 for the next newest.

  With `sampling.largest` the newest rollouts, such as the `recent` ones of RePO
  (arXiv 2506.09340).

  Raises:
    ValueError: the buffer has more slots than float32 can count.
  """
  del step
  return _rank(state, buffer.insertion_age(state), 'newest_first')


def oldest_first(state: base.BufferState, step: base.Array) -> base.Array:
  """More for earlier rollouts: C for the oldest, C - 1 for the next oldest.

  With `max_age` and `sampling.largest`, the oldest rollouts of a window of
  ages.

  Raises:
    ValueError: the buffer has more slots than float32 can count.
  """
  del step
  # The complement turns the order around.
  return _rank(state, ~buffer.insertion_age(state), 'oldest_first')


def never_used_first(state: base.BufferState, step: base.Array) -> base.Array:
  """Puts slots that were never sampled before all others, in random order.

  "Efficient RL Training for LLMs with Experience Replay" (arXiv 2604.08706),
  `at_least_once`, if drawn with `sampling.gumbel_top_k`. The noise of that draw
  reverses a ratio of 1e30 with a probability of 1e-30.
  """
  del step
  is_unused_C = state.times_sampled == 0
  return jnp.where(is_unused_C, jnp.float32(NEVER_USED_WEIGHT), 1.0)


def newest_unused(state: base.BufferState, step: base.Array) -> base.Array:
  """More for later rollouts, zero for those that were sampled before.

  With `sampling.largest` a buffer is a queue that gives the newest first, LIFO.

  Raises:
    ValueError: the buffer has more slots than float32 can count.
  """
  del step
  rank_C = _rank(state, buffer.insertion_age(state), 'newest_unused')
  return jnp.where(state.times_sampled == 0, rank_C, 0.0)


def oldest_unused(state: base.BufferState, step: base.Array) -> base.Array:
  """More for earlier rollouts, zero for those that were sampled before.

  With `sampling.largest` a buffer is a queue that gives the oldest first, FIFO.

  Raises:
    ValueError: the buffer has more slots than float32 can count.
  """
  del step
  rank_C = _rank(state, ~buffer.insertion_age(state), 'oldest_unused')
  return jnp.where(state.times_sampled == 0, rank_C, 0.0)


def mean_logprobs(state: base.BufferState, reader: str) -> base.Array:
  """Returns `[C]` float32, the mean recorded log-prob of each row's tokens.

  Args:
    state: the buffer.
    reader: what needs them, for the message.

  Raises:
    ValueError: the buffer has no rows with log-probs.
  """
  # Log-probs are zero where the mask is False.
  sums_C = storage.row_sums(buffer.field(state, 'behavior_logprobs', reader))
  num_tokens_C = storage.row_sums(buffer.field(state, 'loss_mask', reader))
  return sums_C / jnp.maximum(num_tokens_C, 1)


def product(*weight_rules: base.WeightRule) -> base.WeightRule:
  """Returns the rule that multiplies the weights of several rules.

  A draw takes no infinite weight and none below `sampling.MIN_WEIGHT`. Only
  ratios matter, so where the largest product is infinite or below 2^-63 both
  factors are first divided by powers of two. A product that is still below
  `sampling.MIN_WEIGHT` then becomes `sampling.MIN_WEIGHT`. So every slot that
  each of the rules lets be drawn can be drawn, however many rules there are.

  Raises:
    ValueError: if there is no rule.
  """
  if not weight_rules:
    raise ValueError('weight_rules = (): must be at least one rule')

  def rule(state: base.BufferState, step: base.Array) -> base.Array:
    weights_C = weight_rules[0](state, step)
    for weight_rule in weight_rules[1:]:
      factor_C = weight_rule(state, step)
      weights_C = _multiply(weights_C, factor_C, state.is_valid)
    return weights_C

  return rule


def _multiply(
  first_C: base.Array, second_C: base.Array, is_valid_C: base.Array
) -> base.Array:
  """Returns a product that is eligible where both factors are, and else 0."""
  is_eligible_C = (
    is_valid_C & sampling.is_eligible(first_C) & sampling.is_eligible(second_C)
  )
  product_C = first_C * second_C
  largest = jnp.max(jnp.where(is_eligible_C, product_C, 0.0))
  # `scaled` is below 4, so that these products are below 2^126.
  rescaled_C = (sampling.scaled(first_C) * 2.0**61) * (
    sampling.scaled(second_C) * 2.0**61
  )
  is_in_range = (largest >= 2.0**-63) & (largest < jnp.inf)
  product_C = jnp.where(is_in_range, product_C, rescaled_C)
  product_C = jnp.maximum(product_C, sampling.MIN_WEIGHT)
  return jnp.where(is_eligible_C, product_C, 0.0)


def _softmax(
  values_C: base.Array, is_valid_C: base.Array, temperature: base.Scalar
) -> base.Array:
  """Returns exp(value / temperature), 1 for the largest of the valid slots."""
  largest = jnp.max(jnp.where(is_valid_C, values_C, -jnp.inf))
  gaps_C = jnp.where(is_valid_C, values_C - largest, 0.0)
  return jnp.maximum(jnp.exp(gaps_C / temperature), sampling.MIN_WEIGHT)


def _rank(
  state: base.BufferState, keys_C: base.Array, reader: str
) -> base.Array:
  """Returns `[C]` float32, C for the smallest key, C - 1 for the next one."""
  capacity = keys_C.shape[0]
  if capacity > _MAX_COUNT:
    raise ValueError(
      f'replay.capacity = {capacity}: must be at most {_MAX_COUNT} for {reader}'
    )
  keys_C = jnp.where(state.is_valid, keys_C, constants.MAX_INT32)
  order_C = jnp.argsort(keys_C, descending=True)
  rank_C = jnp.zeros((capacity,), jnp.float32)
  return rank_C.at[order_C].set(jnp.arange(1, capacity + 1, dtype=jnp.float32))


def _age(state: base.BufferState, step: base.Array, reader: str) -> base.Array:
  return step - buffer.field(state, 'policy_version', reader)
