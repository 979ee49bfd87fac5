"""Importance sampling: how far the learner's policy is from the behaviour's."""

import chex
import jax.numpy as jnp

from replay_rl import base


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


def effective_sample_size(
  log_weights: base.Array, mask: base.Array
) -> base.Array:
  """Returns (sum w)^2 / (n sum w^2), the share of samples that still counts.

  Kong, Liu and Wong, "Sequential Imputations and Bayesian Missing Data
  Problems", 1994, divided by n. Given `log_ratios` it speaks of tokens; given
  their sums over T, and the rows that have any token, of sequences.

  Args:
    log_weights: float, any shape, log w. A constant may be added to all.
    mask: bool, same shape, True for the n samples that are present.

  Returns:
    `[]` float in (0, 1]: 1 if all weights are equal; 0 if there is no sample.
  """
  chex.assert_equal_shape([log_weights, mask])
  chex.assert_type([log_weights, mask], [float, bool])
  log_weights = jnp.where(mask, log_weights, -jnp.inf)
  largest = jnp.max(log_weights, initial=-jnp.inf)
  # Shifted so that the largest weight is 1: nothing overflows, and the sum of
  # squares is at least 1 unless there is no sample.
  shift = jnp.where(jnp.isfinite(largest), largest, 0.0)
  weights = jnp.exp(log_weights - shift)
  sum_of_squares = jnp.sum(weights**2)
  return jnp.sum(weights) ** 2 / jnp.maximum(jnp.sum(mask) * sum_of_squares, 1)


def per_importance_weights(probs: base.Array, *, exponent: float) -> base.Array:
  """Returns the weights that undo the bias of prioritized sampling.

  Prioritized Experience Replay, https://arxiv.org/abs/1511.05952, section 3.4:
  w_i = (N P(i))^-exponent / max_j w_j. The number N of slots cancels.

  Args:
    probs: `[B]` float, probability of each drawn slot in one draw; 0 for rows
      that were not drawn.
    exponent: beta in [0, 1]; 1 undoes the bias in full, 0 not at all.

  Returns:
    `[B]` float in [0, 1], at most 1 by the division; 0 for rows not drawn.
  """
  chex.assert_rank(probs, 1)
  chex.assert_type(probs, float)
  is_drawn_B = probs > 0
  # A row that was not drawn counts as certain, so it is never the rarest.
  probs_B = jnp.where(is_drawn_B, probs, 1.0)
  weights_B = (jnp.min(probs_B, initial=1.0) / probs_B) ** exponent
  return jnp.where(is_drawn_B, weights_B, 0.0)
