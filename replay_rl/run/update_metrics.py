"""What a learner update reports, and how the updates of an iteration add up."""

from typing import NamedTuple

import jax.numpy as jnp

from replay_rl import base
from replay_rl.rl import importance
from replay_rl.run import learner
from replay_rl.run import metrics


class Mean(NamedTuple):
  """A mean in two parts, so that means over several updates stay exact."""

  total: base.Array
  count: base.Array


class UpdateMetrics(NamedTuple):
  """Metrics of one update by how they combine; with axis `[U]`, of several."""

  means: dict[str, Mean]
  maxima: dict[str, base.Array]
  histograms: dict[str, base.Array]


def of_update(
  batch: base.Batch,
  outcome: learner.Outcome,
  state: base.BufferState,
  step: base.Array,
  *,
  num_bins: int,
) -> UpdateMetrics:
  """Returns the metrics of one update.

  Args:
    batch: the rows of the update.
    outcome: what the learner saw.
    state: the buffer before these uses were marked.
    step: `[]` int32, learner step of the update.
    num_bins: bins of a histogram, overflow included.
  """
  rollouts = batch.rollouts
  mask_BT = rollouts.loss_mask & batch.is_valid[:, None]
  fresh_BT = mask_BT & batch.is_fresh[:, None]
  replayed_BT = mask_BT & ~batch.is_fresh[:, None]
  log_ratios_BT = importance.log_ratios(
    outcome.logprobs, rollouts.behavior_logprobs, mask_BT
  )
  gaps_BT = jnp.abs(log_ratios_BT)
  age_B = step - rollouts.policy_version
  is_on_policy_B = batch.is_valid & (age_B == 0)
  last_sampled_B = state.last_sampled.at[batch.slots].get(
    mode='fill', fill_value=-1
  )
  one = jnp.ones(())
  return UpdateMetrics(
    means={
      'loss': Mean(outcome.loss, one),
      'grad_norm': Mean(outcome.grad_norm, one),
      'output_projection_grad_norm': Mean(
        outcome.output_projection_grad_norm, one
      ),
      'ess': Mean(
        importance.effective_sample_size(log_ratios_BT, mask_BT), one
      ),
      'clip_fraction/fresh': _mean(outcome.is_clipped, fresh_BT),
      'clip_fraction/replayed': _mean(outcome.is_clipped, replayed_BT),
      'abs_log_ratio/fresh': _mean(gaps_BT, fresh_BT),
      'abs_log_ratio/replayed': _mean(gaps_BT, replayed_BT),
      'staleness/mean': _mean(age_B, batch.is_valid),
      'batch/num_valid': Mean(jnp.sum(batch.is_valid), one),
      'batch/num_fresh': Mean(jnp.sum(batch.is_valid & batch.is_fresh), one),
      'buffer/num_eligible': Mean(batch.num_eligible, one),
    },
    maxima={
      # Zero but for rounding: the same weights, in the sampler and here.
      # Where top-k or top-p truncates, it also holds the truncated mass.
      'sampler_learner_gap': jnp.max(
        jnp.where(is_on_policy_B[:, None], gaps_BT, 0.0)
      ),
    },
    histograms={
      'histogram/staleness': metrics.histogram(
        age_B, batch.is_valid, num_bins=num_bins
      ),
      'histogram/steps_since_last_use': (
        metrics.steps_since_last_use_histogram(
          last_sampled_B, batch.slots, batch.is_valid, step, num_bins=num_bins
        )
      ),
    },
  )


def combine(stacked: UpdateMetrics) -> base.Metrics:
  """Returns the metrics of several updates, given with a leading axis `[U]`.

  A mean over nothing, such as the clip fraction of replayed rows where none
  were replayed, is NaN.
  """
  means = {
    name: jnp.sum(mean.total, axis=0) / jnp.sum(mean.count, axis=0)
    for name, mean in stacked.means.items()
  }
  maxima = {name: jnp.max(x, axis=0) for name, x in stacked.maxima.items()}
  histograms = {
    name: jnp.sum(x, axis=0) for name, x in stacked.histograms.items()
  }
  return means | maxima | histograms


def _mean(values: base.Array, mask: base.Array) -> Mean:
  return Mean(
    jnp.sum(jnp.where(mask, values, 0), dtype=jnp.float32),
    jnp.sum(mask, dtype=jnp.float32),
  )
