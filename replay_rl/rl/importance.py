"""Importance sampling: how far the learner's policy is from the behaviour's."""

from typing import Annotated

import chex
import jax
import jax.numpy as jnp

from replay_rl import base
from replay_rl import constants

MAX_LOG_RATIO = 20.0  # As in verl. A float32 overflows at exp(88.7).


def log_ratios(
  logprobs: base.Array, behavior_logprobs: base.Array, loss_mask: base.Array
) -> base.Array:
  """Returns log pi(token) - log mu(token), and zero outside the mask.

  The mask comes before any exponential, so that a padded token can produce
  inf * 0 = nan neither in a value nor in a gradient.

  Args:
    logprobs: `[B, T]` float, under the learner's policy pi.
    behavior_logprobs: `[B, T]` float, under the behaviour policy mu.
    loss_mask: `[B, T]` bool.

  Returns:
    `[B, T]` float, nats.
  """
  chex.assert_rank(logprobs, 2)
  chex.assert_equal_shape([logprobs, behavior_logprobs, loss_mask])
  chex.assert_type(
    [logprobs, behavior_logprobs, loss_mask], [float, float, bool]
  )
  return jnp.where(loss_mask, logprobs - behavior_logprobs, 0.0)


def bounded(log_ratios: base.Array) -> tuple[base.Array, base.Array]:
  """Returns log ratios that are safe to exponentiate.

  Args:
    log_ratios: float, any shape, nats.

  Returns:
    The log ratios within `[-MAX_LOG_RATIO, MAX_LOG_RATIO]`, without a gradient
    outside; and bool, same shape, True where this bound acts.
  """
  bounded_log_ratios = jnp.clip(log_ratios, -MAX_LOG_RATIO, MAX_LOG_RATIO)
  return bounded_log_ratios, bounded_log_ratios != log_ratios


def moves_away(log_ratios: base.Array, advantages: base.Array) -> base.Array:
  """Returns where the gradient moves the ratio further from 1.

  That is: A > 0 and a ratio above 1, or A < 0 and a ratio below 1.

  Args:
    log_ratios: `[B, T]` float, nats.
    advantages: `[B]` float, A of each row.

  Returns:
    `[B, T]` bool.
  """
  advantages_B1 = advantages[:, None]
  is_raised_BT = (advantages_B1 > 0) & (log_ratios > 0)
  return is_raised_BT | (advantages_B1 < 0) & (log_ratios < 0)


def effective_sample_size(
  log_weights: base.Array, mask: base.Array
) -> base.Array:
  """Returns (sum w)^2 / (n sum w^2), the share of samples that still counts.

  Kong, Liu and Wong, "Sequential Imputations and Bayesian Missing Data
  Problems", 1994, divided by n. `log_ratios` give the share of tokens; their
  sums over T, for the rows that have any token, give the share of sequences.

  Args:
    log_weights: float, any shape, log w. A constant may be added to all.
    mask: bool, same shape, True for the n samples that are present.

  Returns:
    `[]` float in (0, 1]: 1 if all weights are equal; 0 if there is no sample.
  """
  chex.assert_equal_shape([log_weights, mask])
  chex.assert_type([log_weights, mask], [float, bool])
  log_weights = jnp.where(mask, log_weights, -jnp.inf)
  # Infinite weights become equal ones, beside which no other counts.
  log_weights = jnp.minimum(log_weights, jnp.finfo(log_weights.dtype).max)
  largest = jnp.max(log_weights, initial=-jnp.inf)
  # After the shift the largest weight is 1: nothing overflows, and the sum of
  # squares is at least 1 unless there is no sample.
  shift = jnp.where(jnp.isfinite(largest), largest, 0.0)
  weights = jnp.exp(log_weights - shift)
  sum_of_squares = jnp.sum(weights**2)
  return jnp.sum(weights) ** 2 / jnp.maximum(jnp.sum(mask) * sum_of_squares, 1)


@constants.checked
def per_importance_weights(
  batch: base.Batch,
  step: base.Array,
  *,
  exponent: Annotated[base.Scalar, constants.FRACTION],
) -> base.Array:
  """Returns the row weights that undo the bias of prioritized sampling.

  Prioritized Experience Replay, https://arxiv.org/abs/1511.05952, section 3.4:
  w_i = (N P(i))^-exponent / max_j w_j. The number N of slots cancels, and the
  largest weight is that of the row with the smallest P.

  Args:
    batch: its `probs` are the P of the drawn rows.
    step: `[]` int32, learner step, not used.
    exponent: beta; 1 undoes the bias in full, 0 not at all.

  Returns:
    `[B]` float in [0, 1]: 1 for a valid row that was not drawn, such as a fresh
    one; 0 for a row that is not valid.
  """
  del step
  probs, is_valid = batch.probs, batch.is_valid
  chex.assert_rank([probs, is_valid], 1)
  chex.assert_equal_shape([probs, is_valid])
  chex.assert_type([probs, is_valid], [float, bool])
  is_drawn_B = is_valid & (probs > 0)
  # A row that was not drawn counts as certain, so it is never the rarest.
  probs_B = jnp.where(is_drawn_B, probs, 1.0)
  weights_B = (jnp.min(probs_B, initial=1.0) / probs_B) ** exponent
  weights_B = jnp.where(is_drawn_B, weights_B, 1.0)
  return jnp.where(is_valid, weights_B, 0.0)


@constants.checked
def annealed_per_importance_weights(
  batch: base.Batch,
  step: base.Array,
  *,
  start: Annotated[base.Scalar, constants.FRACTION],
  end: Annotated[base.Scalar, constants.FRACTION],
  num_steps: Annotated[int | jax.Array, constants.interval('[1, inf)')],
) -> base.Array:
  """Returns `per_importance_weights` with an exponent that is annealed.

  Prioritized Experience Replay, https://arxiv.org/abs/1511.05952, section 3.4:
  beta goes from 0.4 to 1, linearly, because the bias matters most at the end.

  Args:
    batch: its `probs` are the P of the drawn rows.
    step: `[]` int32, learner step.
    start: beta at step 0.
    end: beta from step `num_steps` on.
    num_steps: learner steps from `start` to `end`.

  Returns:
    `[B]` float in [0, 1].
  """
  progress = jnp.minimum(step / num_steps, 1.0)
  exponent = start + (end - start) * progress
  return per_importance_weights(batch, step, exponent=exponent)
