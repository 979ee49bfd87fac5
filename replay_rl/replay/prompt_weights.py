"""Weight rules that read generations and the history of prompts.

They are rules as those of `weights`, and multiply with them. The history is
that of `base.PromptTable`; `replay.num_prompts` gives it N entries. A prompt
without an entry has no history, because a new one replaced it; the metric
`prompts/num_unknown_rows` counts the stored rows of such prompts.
"""

from typing import Annotated

import jax
import jax.numpy as jnp

from replay_rl import base
from replay_rl import constants
from replay_rl.replay import buffer
from replay_rl.replay import prompt_table
from replay_rl.replay import weights


@constants.checked
def max_age_batches(
  state: base.BufferState,
  step: base.Array,
  *,
  limit: Annotated[int | jax.Array, constants.NON_NEGATIVE],
  num_fresh: Annotated[int, constants.interval('[1, inf)')],
) -> base.Array:
  """One while at most `limit` generations came after the row's own, then zero.

  The age limit of `weights.max_age` counts learner steps, this one generations,
  whatever the number of updates between two of them. Generations of which the
  buffer stored no row count too.

  Args:
    state: the buffer.
    step: not used.
    limit: generations; 0 leaves the rows of the latest one.
    num_fresh: F, rollouts of a generation; the config gives it.
  """
  del step
  age_C = buffer.batch_age(state, num_fresh, 'max_age_batches')
  return (age_C <= jnp.asarray(limit).astype(jnp.uint32)).astype(jnp.float32)


@constants.checked
def pass_rate(
  state: base.BufferState,
  step: base.Array,
  *,
  center: prompt_table.Center,
  width: prompt_table.Width,
) -> base.Array:
  """Draws prompts by a normal density of their latest pass rate.

  The weights of all stored rows of a prompt add up to
  exp(-((rate - center) / width)^2 / 2), however many rows it has. A prompt with
  a rate of 1 is retired: its rows have weight 0, as those of a prompt without
  an entry. `correct_by_pass_rate` is the same for correct rows alone.

  In a product, the other rules change the sum of a prompt.
  """
  del step
  return _by_pass_rate(state, state.is_valid, center, width, 'pass_rate')


@constants.checked
def correct_by_pass_rate(
  state: base.BufferState,
  step: base.Array,
  *,
  center: prompt_table.Center,
  width: prompt_table.Width,
) -> base.Array:
  """`pass_rate` for the correct rows of each prompt; zero for all others.

  "ExGRPO: Learning to Reason from Experience" (arXiv 2510.02245), which replays
  successes alone, with the center 0.5 and retired prompts as here. It sorts the
  prompts into buckets by their latest rate, draws buckets by a normal density
  and takes the response of least entropy. Here the density is that of each
  prompt's own rate, and all correct rows of a prompt are as likely.
  """
  del step
  rewards_C = buffer.field(state, 'rewards', 'correct_by_pass_rate')
  is_drawn_C = state.is_valid & prompt_table.is_correct(rewards_C)
  return _by_pass_rate(state, is_drawn_C, center, width, 'correct_by_pass_rate')


@constants.checked
def confident_by_rate_bucket(
  state: base.BufferState,
  step: base.Array,
  *,
  center: prompt_table.Center,
  width: prompt_table.Width,
  group_size: Annotated[int, constants.interval('[2, inf)')],
) -> base.Array:
  """Draws a bucket of prompts, one of them, and its most confident success.

  "ExGRPO: Learning to Reason from Experience" (arXiv 2510.02245). Bucket k of
  1, ..., G - 1 has the prompts whose latest pass rate is k / G, and which have
  a stored success; a prompt with a rate of 0 or 1 is in none. The weights of a
  bucket add up to exp(-((rate - center) / width)^2 / 2), and its prompts have
  equal shares. The whole share of a prompt is that of its success with the
  largest mean log-prob, see `weights.confident`; of equal ones, that in the
  lowest slot. All other rows have weight 0.

  Args:
    state: the buffer.
    step: not used.
    center: pass rate that is drawn most often, 0.5 in the paper.
    width: distance from `center` at which a bucket has the weight exp(-1/2).
    group_size: G; the config gives it. The rate of a prompt of several groups
      in a generation is rounded to that of a bucket.
  """
  del step
  reader = 'confident_by_rate_bucket'
  table = prompt_table.of_buffer(state, reader)
  num_entries, capacity = table.is_valid.shape[0], state.is_valid.shape[0]
  entry_C = prompt_table.lookup(table, _prompt_ids(state, reader))
  rate_C = table.latest_rate.at[entry_C].get(mode='fill', fill_value=0.0)
  bucket_C = jnp.round(rate_C * group_size).astype(jnp.int32)
  is_success_C = (
    state.is_valid
    & prompt_table.is_correct(buffer.field(state, 'rewards', reader))
    & (bucket_C > 0)
    & (bucket_C < group_size)
  )
  # Each of the two passes keeps the best of the rows that are left.
  mean_C = weights.mean_logprobs(state, reader)
  best_N = (
    jnp.full(num_entries, -jnp.inf)
    .at[entry_C]
    .max(jnp.where(is_success_C, mean_C, -jnp.inf), mode='drop')
  )
  is_best_C = is_success_C & (mean_C == best_N.at[entry_C].get(mode='clip'))
  slot_C = jnp.arange(capacity)
  first_N = (
    jnp.full(num_entries, capacity)
    .at[entry_C]
    .min(jnp.where(is_best_C, slot_C, capacity), mode='drop')
  )
  is_drawn_C = is_best_C & (slot_C == first_N.at[entry_C].get(mode='clip'))
  num_prompts_K = (
    jnp.zeros(group_size, jnp.int32).at[bucket_C].add(is_drawn_C, mode='drop')
  )
  num_prompts_C = num_prompts_K.at[bucket_C].get(mode='fill', fill_value=0)
  density_C = _by_pass_rate(state, is_drawn_C, center, width, reader)
  return density_C / jnp.maximum(num_prompts_C, 1).astype(jnp.float32)


@constants.checked
def min_pass_rate(
  state: base.BufferState,
  step: base.Array,
  *,
  limit: Annotated[base.Scalar, constants.FRACTION],
) -> base.Array:
  """One for all slots if the latest generation passes often enough, else zero.

  ExGRPO (arXiv 2510.02245) starts to replay once the pass rate of a batch is
  0.35. Here, `limit` is that of the mean pass rate of the prompts of the latest
  generation. So replay pauses again if the rate falls below it.
  """
  del step
  table = prompt_table.of_buffer(state, 'min_pass_rate')
  is_latest_N = table.is_valid & (state.num_batches - table.last_visit == 1)
  num_latest = jnp.sum(is_latest_N)
  total = jnp.sum(jnp.where(is_latest_N, table.latest_rate, 0.0))
  is_enough = (num_latest > 0) & (total >= limit * num_latest)
  return jnp.broadcast_to(is_enough, state.is_valid.shape).astype(jnp.float32)


def unsolved(state: base.BufferState, step: base.Array) -> base.Array:
  """Zero for prompts whose latest visit was all correct, one for all others.

  A prompt without an entry counts as unsolved.
  """
  del step
  table = prompt_table.of_buffer(state, 'unsolved')
  entry_C = prompt_table.lookup(table, _prompt_ids(state, 'unsolved'))
  rate_C = table.latest_rate.at[entry_C].get(mode='fill', fill_value=0.0)
  return (rate_C < 1).astype(jnp.float32)


def _by_pass_rate(
  state: base.BufferState,
  is_drawn_C: base.Array,
  center: base.Scalar,
  width: base.Scalar,
  reader: str,
) -> base.Array:
  """Returns the density of each prompt, shared by its rows to draw."""
  table = prompt_table.of_buffer(state, reader)
  entry_C = prompt_table.lookup(table, _prompt_ids(state, reader))
  density_N = prompt_table.rate_density(table, center, width)
  density_N = jnp.where(table.latest_rate < 1, density_N, 0.0)
  num_rows_N = jnp.zeros(table.is_valid.shape, jnp.int32)
  num_rows_N = num_rows_N.at[entry_C].add(is_drawn_C, mode='drop')
  share_N = density_N / jnp.maximum(num_rows_N, 1).astype(jnp.float32)
  share_C = share_N.at[entry_C].get(mode='fill', fill_value=0.0)
  return jnp.where(is_drawn_C, share_C, 0.0)


def _prompt_ids(state: base.BufferState, reader: str) -> base.Array:
  return buffer.field(state, 'prompt_id', reader)
