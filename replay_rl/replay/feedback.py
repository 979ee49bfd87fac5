"""Feedback: new priorities of the rows of a batch, after an update on them.

The caller writes them with `buffer.update_priorities`, which skips the rows
that are in no slot.
"""

import jax.numpy as jnp

from replay_rl import base
from replay_rl.rl import importance


def reweighted_advantage_magnitude(
  batch: base.Batch, outcome: base.Outcome
) -> base.Array:
  """Returns |A| s, an advantage's magnitude under the learner's policy.

  The frozen advantage A belongs to the policy mu that sampled the rollout. Its
  importance weight is the ratio of the sequence, normalised by its length:
  s = exp(mean of log pi - log mu over the row's tokens), as in GSPO
  (arXiv 2507.18071), equation 7. `importance.bounded` bounds the mean.

  Args:
    batch: the B rows of an update.
    outcome: of that update, with the log-probabilities of the batch under pi.

  Returns:
    `[B]` float32; 0 for rows that are not valid.
  """
  rollouts = batch.rollouts
  log_ratios_BT = importance.log_ratios(
    outcome.logprobs, rollouts.behavior_logprobs, rollouts.loss_mask
  )
  lengths_B = jnp.maximum(jnp.sum(rollouts.loss_mask, axis=1), 1)
  mean_B = jnp.sum(log_ratios_BT, axis=1) / lengths_B
  bounded_B, _ = importance.bounded(mean_B)
  magnitudes_B = jnp.abs(rollouts.advantages) * jnp.exp(bounded_B)
  return jnp.where(batch.is_valid, magnitudes_B, 0.0)
