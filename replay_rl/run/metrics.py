"""Metrics of batches and of the buffer: pure functions inside the jit."""

from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from replay_rl import base
from replay_rl.lm import packing
from replay_rl.replay import histograms
from replay_rl.replay import prompt_table
from replay_rl.rl import importance
from replay_rl.run import learner


class Mean(NamedTuple):
  """A sum and its count, so that the mean over several updates is exact."""

  total: base.Array
  count: base.Array


class UpdateMetrics(NamedTuple):
  """Metrics of updates, by how they combine over several updates."""

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
  age_edges: tuple[int, ...],
) -> UpdateMetrics:
  """Returns the metrics of one update.

  Args:
    batch: the rows; none is valid if the update was left out.
    outcome, status: what `learner.update` returned.
    state: the buffer before `mark_sampled`.
    step: `[]` int32, learner step before the update.
    num_bins: bins of a histogram, overflow included.
    age_edges: see `histograms.age_buckets`.
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
  # Rows that are in no slot are no repeats of each other.
  num_rows, capacity = batch.slots.shape[0], state.is_valid.shape[0]
  slots_B = jnp.where(
    batch.slots < capacity, batch.slots, capacity + jnp.arange(num_rows)
  )
  of_tokens = {}
  if rollouts.token_versions is not None:
    of_tokens['staleness/tokens'] = _mean(
      step - rollouts.token_versions, mask_BT
    )
  has_rows = jnp.any(batch.is_valid)
  output_norm = outcome.output_projection_grad_norm
  num_read = jnp.sum(packing.num_columns(mask_BT), dtype=jnp.float32)
  num_columns = jnp.where(has_rows, status.num_columns, 0.0)

  def of_one(value):
    # The mean over updates leaves out an update without rows.
    return Mean(jnp.where(has_rows, value, 0), has_rows.astype(jnp.float32))

  return UpdateMetrics(
    means={
      'loss': of_one(outcome.loss),
      'grad_norm': of_one(outcome.grad_norm),
      'output_projection_grad_norm': of_one(output_norm),
      'ess': of_one(importance.effective_sample_size(log_ratios_BT, mask_BT)),
      'clip_fraction/fresh': _mean(outcome.is_clipped, fresh_BT),
      'clip_fraction/replayed': _mean(outcome.is_clipped, replayed_BT),
      'abs_log_ratio/fresh': _mean(gaps_BT, fresh_BT),
      'abs_log_ratio/replayed': _mean(gaps_BT, replayed_BT),
      'staleness/mean': _mean(age_B, batch.is_valid),
      'batch/num_valid': of_one(jnp.sum(batch.is_valid)),
      'batch/num_invalid': of_one(jnp.sum(~batch.is_valid)),
      'batch/num_fresh': of_one(jnp.sum(batch.is_valid & batch.is_fresh)),
      'batch/padding_fraction': Mean(num_columns - num_read, num_columns),
      'buffer/num_eligible': of_one(batch.num_eligible),
      **of_tokens,
      **_of_ages(
        log_ratios_BT,
        outcome.is_clipped,
        mask_BT,
        histograms.age_buckets(age_B, age_edges),
        outcome.grad_norms_of_sets,
      ),
    },
    maxima={
      # Only rounding, because sampler and learner have the same weights; with
      # top-k or top-p also the truncated probability.
      'sampler_learner_gap': jnp.max(
        jnp.where(is_on_policy_B[:, None], gaps_BT, 0.0)
      ),
    },
    sums={
      'updates/applied': status.is_applied.astype(jnp.int32),
      'updates/empty': status.is_empty.astype(jnp.int32),
      'updates/refused': status.is_refused.astype(jnp.int32),
      'histogram/staleness': histograms.histogram(
        age_B, batch.is_valid, num_bins=num_bins
      ),
      'histogram/steps_since_last_use': histograms.steps_since_last_use(
        last_sampled_B, slots_B, batch.is_valid, step, num_bins=num_bins
      ),
    },
  )


def _of_ages(
  log_ratios_BT: base.Array,
  is_clipped_BT: base.Array,
  mask_BT: base.Array,
  buckets: dict[str, base.Array],
  grad_norms: base.Array | None,
) -> dict[str, Mean]:
  """Returns means over the tokens of the rows of each bucket of ages.

  Effective sample size and norm of the gradient are those of the bucket's
  tokens in an update, and their means are over the updates that have any, as
  for all ages together.
  """
  means = {}
  for index, (name, is_inside_B) in enumerate(buckets.items()):
    inside_BT = mask_BT & is_inside_B[:, None]
    has_tokens = jnp.any(inside_BT)
    means[f'ess/{name}'] = Mean(
      # Of no token it is 0.
      importance.effective_sample_size(log_ratios_BT, inside_BT),
      has_tokens.astype(jnp.float32),
    )
    means[f'abs_log_ratio/{name}'] = _mean(jnp.abs(log_ratios_BT), inside_BT)
    means[f'clip_fraction/{name}'] = _mean(is_clipped_BT, inside_BT)
    if grad_norms is not None:
      # The norm of no token is 0.
      means[f'grad_norm/{name}'] = Mean(
        grad_norms[index], has_tokens.astype(jnp.float32)
      )
  return means


def of_overwritten(
  before: base.BufferState, slots: base.Array, num_bins: int
) -> base.Metrics:
  """Returns the metrics of the rollouts that an insert overwrote.

  Args:
    before: the buffer before the insert.
    slots: `[F]` int32, slots that the insert wrote; C for rows left out.
    num_bins: bins of the histogram, overflow included.
  """
  was_valid = before.is_valid.at[slots].get(mode='fill', fill_value=False)
  uses = before.times_sampled.at[slots].get(mode='fill', fill_value=0)
  num_overwritten = jnp.sum(was_valid, dtype=jnp.int32)
  num_unused = jnp.sum(was_valid & (uses == 0))
  return {
    'num_overwritten': num_overwritten,
    'never_used_fraction': num_unused / num_overwritten,  # NaN for 0 / 0.
    'histogram/uses': histograms.histogram(uses, was_valid, num_bins=num_bins),
  }


def of_events(before: base.Metrics, now: base.Metrics) -> base.Metrics:
  """Returns the metrics of a cycle after one more of its events.

  What counts overwritten rollouts adds up, so that a cycle with several inserts
  loses none. Of any other metric the later value stays.

  Args:
    before: of the events before.
    now: of this event.
  """
  both = before | now
  if 'num_overwritten' not in before or 'num_overwritten' not in now:
    return both
  for name in ('num_overwritten', 'histogram/uses'):
    both[name] = before[name] + now[name]
  num_unused = sum(
    jnp.where(
      one['num_overwritten'] > 0,
      one['num_overwritten'] * one['never_used_fraction'],
      0,
    )
    for one in (before, now)
  )
  return both | {'never_used_fraction': num_unused / both['num_overwritten']}


def of_prompts(
  state: base.BufferState, before: base.PromptTable | None, num_groups: int
) -> base.Metrics:
  """Returns the metrics of the table of prompts; none without a table.

  Args:
    state: the buffer after a generation.
    before: the table before it.
    num_groups: P, groups of the generation.
  """
  table = state.prompts
  if table is None or before is None:
    return {}
  num_entries = table.is_valid.shape[0]
  num_seen = jnp.sum(table.is_valid, dtype=jnp.int32)
  # An entry without a prompt has a rate of 0.
  num_solved = jnp.sum(table.latest_rate == 1)
  entry_C = prompt_table.lookup(table, state.rollouts.prompt_id)
  is_unknown_C = state.is_valid & (entry_C == num_entries)
  return {
    'buffer/num_replaced_prompts': table.num_replaced,
    'prompts/num_seen': num_seen,
    'prompts/replayed_fraction': (table.num_replayed - before.num_replayed)
    / num_groups,
    'prompts/solved_fraction': num_solved / num_seen,
    'prompts/num_unknown_rows': jnp.sum(is_unknown_C, dtype=jnp.int32),
  }


def of_buffer(state: base.BufferState, *, num_bins: int) -> base.Metrics:
  """Returns the metrics of the buffer after the events of a cycle.

  With `of_overwritten` of all cycles so far, the histogram of uses counts each
  rollout that was ever inserted once.

  Args:
    state: the buffer; its rollouts are not read.
    num_bins: bins of the histogram, overflow included.
  """
  return {
    # Not below histogram/, whose lines add up over a run.
    'buffer_histogram/uses': histograms.histogram(
      state.times_sampled, state.is_valid, num_bins=num_bins
    )
  }


def total(stacked: UpdateMetrics) -> UpdateMetrics:
  """Combines the metrics of several updates, stacked on an axis `[U]`."""
  return UpdateMetrics(
    means=jax.tree.map(lambda x: jnp.sum(x, axis=0), stacked.means),
    # The maximum of no update is 0, because no gap is negative.
    maxima={
      name: jnp.max(x, axis=0, initial=0.0)
      for name, x in stacked.maxima.items()
    },
    sums={name: jnp.sum(x, axis=0) for name, x in stacked.sums.items()},
  )


@jax.jit
def merge(one: UpdateMetrics, other: UpdateMetrics) -> UpdateMetrics:
  """Combines two records of updates."""
  return total(jax.tree.map(lambda *pair: jnp.stack(pair), one, other))


def as_numbers(updates: UpdateMetrics) -> dict[str, np.ndarray]:
  """Returns metrics on the host as NumPy arrays, `[S]` or `[S, bins]`.

  A mean of no rows is NaN, such as the clip fraction of replayed rows in an
  on-policy update.
  """
  values: dict[str, Any] = {**updates.maxima, **updates.sums}
  with np.errstate(invalid='ignore'):
    for name, mean in updates.means.items():
      values[name] = np.asarray(mean.total, np.float32) / mean.count
  return values


def _mean(values: base.Array, mask: base.Array) -> Mean:
  return Mean(
    jnp.sum(jnp.where(mask, values, 0), dtype=jnp.float32),
    jnp.sum(mask, dtype=jnp.float32),
  )
