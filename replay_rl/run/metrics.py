"""What a run reports of its batches: pure functions, called inside the jit.

A histogram counts in its last bin all values that are too large for a bin of
their own, so that the counts always add up to the number of valid rows.
"""

from typing import Any
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from replay_rl import base
from replay_rl.rl import importance
from replay_rl.run import learner


class Mean(NamedTuple):
  """A mean in two parts, so that means over several updates stay exact."""

  total: base.Array
  count: base.Array


class UpdateMetrics(NamedTuple):
  """Metrics of updates, by how those of several updates combine."""

  means: dict[str, Mean]
  maxima: dict[str, base.Array]
  sums: dict[str, base.Array]


def of_update(
  batch: base.Batch,
  outcome: base.Outcome,
  status: learner.Status,
  state: base.BufferState,
  step: base.Array,
  *,
  num_bins: int,
) -> UpdateMetrics:
  """Returns the metrics of one update.

  Args:
    batch: the rows of the update; none valid where it was left out.
    outcome: what the learner saw.
    status: what became of the update.
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
  has_rows = jnp.any(batch.is_valid)

  def of_one(value):
    # An update without rows has no loss that a mean could count.
    return Mean(jnp.where(has_rows, value, 0), has_rows.astype(jnp.float32))

  return UpdateMetrics(
    means={
      'loss': of_one(outcome.loss),
      'grad_norm': of_one(outcome.grad_norm),
      'output_projection_grad_norm': of_one(
        outcome.output_projection_grad_norm
      ),
      'ess': of_one(importance.effective_sample_size(log_ratios_BT, mask_BT)),
      'clip_fraction/fresh': _mean(outcome.is_clipped, fresh_BT),
      'clip_fraction/replayed': _mean(outcome.is_clipped, replayed_BT),
      'abs_log_ratio/fresh': _mean(gaps_BT, fresh_BT),
      'abs_log_ratio/replayed': _mean(gaps_BT, replayed_BT),
      'staleness/mean': _mean(age_B, batch.is_valid),
      'batch/num_valid': of_one(jnp.sum(batch.is_valid)),
      'batch/num_fresh': of_one(jnp.sum(batch.is_valid & batch.is_fresh)),
      'buffer/num_eligible': of_one(batch.num_eligible),
    },
    maxima={
      # Zero but for rounding: sampler and learner have the same weights. Where
      # top-k or top-p truncates, it also holds the truncated mass.
      'sampler_learner_gap': jnp.max(
        jnp.where(is_on_policy_B[:, None], gaps_BT, 0.0)
      ),
    },
    sums={
      'updates/applied': status.is_applied.astype(jnp.int32),
      # Its batch had no valid row.
      'updates/empty': status.is_empty.astype(jnp.int32),
      # By the gate, after the gradient was computed.
      'updates/refused': status.is_refused.astype(jnp.int32),
      'histogram/staleness': histogram(
        age_B, batch.is_valid, num_bins=num_bins
      ),
      'histogram/steps_since_last_use': steps_since_last_use_histogram(
        last_sampled_B, batch.slots, batch.is_valid, step, num_bins=num_bins
      ),
    },
  )


def of_overwritten(
  before: base.BufferState, slots: base.Array, num_bins: int
) -> base.Metrics:
  """Returns the metrics of the rollouts that an insert overwrote.

  Args:
    before: the buffer before the insert.
    slots: `[F]` int32, where the insert wrote; C where it did not.
    num_bins: bins of the histogram.
  """
  # A slot C reads as one that was never valid.
  was_valid = before.is_valid.at[slots].get(mode='fill', fill_value=False)
  uses = before.times_sampled.at[slots].get(mode='fill', fill_value=0)
  return {
    'num_overwritten': jnp.sum(was_valid, dtype=jnp.int32),
    # NaN if nothing was overwritten.
    'never_used_fraction': jnp.sum(was_valid & (uses == 0))
    / jnp.sum(was_valid),
    'histogram/uses': histogram(uses, was_valid, num_bins=num_bins),
  }


def total(stacked: UpdateMetrics) -> UpdateMetrics:
  """Returns the metrics of several updates, given with a leading axis `[U]`."""
  return UpdateMetrics(
    means=jax.tree.map(lambda x: jnp.sum(x, axis=0), stacked.means),
    # Of no update at all it is 0; a gap is never below.
    maxima={
      name: jnp.max(x, axis=0, initial=0.0)
      for name, x in stacked.maxima.items()
    },
    sums={name: jnp.sum(x, axis=0) for name, x in stacked.sums.items()},
  )


def merge(one: UpdateMetrics, other: UpdateMetrics) -> UpdateMetrics:
  """Returns the metrics of all updates that two records tell of."""
  return UpdateMetrics(
    means=jax.tree.map(jnp.add, one.means, other.means),
    maxima=jax.tree.map(jnp.maximum, one.maxima, other.maxima),
    sums=jax.tree.map(jnp.add, one.sums, other.sums),
  )


def as_numbers(updates: UpdateMetrics) -> dict[str, np.ndarray]:
  """Returns NumPy values, `[S]` or `[S, bins]`, of metrics on the host.

  A mean over nothing, such as the clip fraction of replayed rows where none
  were replayed, is NaN.
  """
  values: dict[str, Any] = {**updates.maxima, **updates.sums}
  with np.errstate(invalid='ignore'):
    for name, mean in updates.means.items():
      values[name] = np.asarray(mean.total, np.float32) / mean.count
  return values


def histogram(
  values: base.Array, mask: base.Array, *, num_bins: int
) -> base.Array:
  """Counts integers: the ages of a batch, or the uses of the buffer's slots.

  Args:
    values: `[N]` int, 0 or more.
    mask: `[N]` bool, which of them to count.
    num_bins: bins for 0, 1, ..., and for all from `num_bins - 1` on.

  Returns:
    `[num_bins]` int32.

  Raises:
    ValueError: if there is no bin.
  """
  chex.assert_rank([values, mask], 1)
  chex.assert_equal_shape([values, mask])
  chex.assert_type([values, mask], [int, bool])
  if num_bins < 1:
    raise ValueError(f'num_bins = {num_bins}: must be at least 1')
  bins = jnp.clip(values, 0, num_bins - 1)
  return jnp.zeros(num_bins, jnp.int32).at[bins].add(mask)


def steps_since_last_use_histogram(
  last_sampled: base.Array,
  slots: base.Array,
  is_valid: base.Array,
  step: base.Array,
  *,
  num_bins: int,
) -> base.Array:
  """Counts learner steps between a use of a rollout and the use before it.

  The third histogram of figure 2 of https://arxiv.org/abs/2604.08706. Where
  one batch holds a slot several times, each use after the first was last used
  0 steps ago.

  Args:
    last_sampled: `[B]` int32, learner step of the latest use of the slot before
      this update; -1 before any.
    slots: `[B]` int32, the buffer slot of each row.
    is_valid: `[B]` bool, which rows to count.
    step: `[]` int32, the learner step of this update.
    num_bins: bins for 0, 1, ..., and for all from `num_bins - 1` on.

  Returns:
    `[1 + num_bins]` int32: first uses, then uses after k steps at index 1 + k.
  """
  chex.assert_rank([last_sampled, slots, is_valid, step], [1, 1, 1, 0])
  chex.assert_equal_shape([last_sampled, slots, is_valid])
  is_same_BB = (slots[:, None] == slots[None, :]) & is_valid[None, :]
  is_repeat_B = jnp.any(jnp.tril(is_same_BB, k=-1), axis=1)
  gap_B = jnp.where(is_repeat_B, 0, step - last_sampled)
  is_new_B = ~is_repeat_B & (last_sampled < 0)
  num_new = jnp.sum(is_new_B & is_valid, dtype=jnp.int32)
  counts = histogram(gap_B, is_valid & ~is_new_B, num_bins=num_bins)
  return jnp.concatenate([num_new[None], counts])


def _mean(values: base.Array, mask: base.Array) -> Mean:
  return Mean(
    jnp.sum(jnp.where(mask, values, 0), dtype=jnp.float32),
    jnp.sum(mask, dtype=jnp.float32),
  )
