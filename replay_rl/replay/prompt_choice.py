"""Which prompts a generation visits: new ones, or some that it visited before.

Here a prompt is its `stream_index`: the random key of a prompt of a task in JAX
comes from the seed and this number, so the same number gives the same prompt
again. The new prompts have the numbers 0, 1, 2, ... of the order in which a run
visits them; with a training set of n prompts, these numbers modulo n.

A function gets the next P new prompts and returns the P prompts of the next
generation: first as many of the new ones as it takes, in order, and then only
prompts that are not among the new ones. The run counts an entry that differs
from the new prompt of its place as replayed, and offers the new ones that were
not taken again. So replay leaves no prompt of a training set out. It counts
them in the table of prompts; without a table, it offers P others each time.
"""

from typing import Annotated

import jax
import jax.numpy as jnp

from replay_rl import base
from replay_rl import constants
from replay_rl.replay import prompt_table
from replay_rl.replay import sampling


def in_order(
  state: base.BufferState, new: base.Array, rng_key: base.Array
) -> base.Array:
  """Takes the new prompts alone."""
  del state, rng_key
  return new


@constants.checked
def replayed_prompts(
  state: base.BufferState,
  new: base.Array,
  rng_key: base.Array,
  *,
  fraction: Annotated[float, constants.interval('(0, 1]')],
  center: prompt_table.Center,
  width: prompt_table.Width,
  max_visits: Annotated[int | jax.Array, constants.interval('[2, inf)')],
  cooldown: Annotated[int | jax.Array, constants.NON_NEGATIVE],
) -> base.Array:
  """Takes some prompts of the table again, and new ones for the rest.

  "Prompt Replay: Speeding up GRPO with On-Policy Reuse of High-Signal Prompts"
  (arXiv 2603.21177) samples new responses to prompts of medium difficulty. It
  prefers those whose pass rate is the closest to one half. Here they are drawn
  without replacement, entry i in proportion to
  exp(-((rate_i - center) / width)^2 / 2), by the latest rate.

  A prompt is never drawn if all or none of its latest rollouts are correct, or
  if it is among `new`, so that no generation draws a prompt twice. Where too
  few prompts can be drawn, new ones take their places. The table forgets the
  visits of a prompt whose entry a new prompt has replaced.

  Args:
    state: the buffer, of which only the table and `num_batches` are read.
    new: `[P]` uint32, the next new prompts.
    rng_key: random key, consumed.
    fraction: share of the P prompts to take from the table, rounded to a whole
      number of prompts.
    center: pass rate that is drawn most often.
    width: distance of the rate from `center`, in units of the rate, at which
      the weight is exp(-1/2).
    max_visits: visits after which a prompt is not drawn again, the first one
      included.
    cooldown: generations without the prompt between two visits, at least.

  Returns:
    `[P]` uint32, the new prompts first, and then the drawn ones.

  Raises:
    ValueError: the buffer has no table, or `fraction` is less than half a
      prompt.
  """
  table = prompt_table.of_buffer(state, 'replayed_prompts')
  num_prompts = new.shape[0]
  num_draws = round(fraction * num_prompts)
  if not num_draws:
    raise ValueError(
      f'fraction = {fraction}: must give at least one of the {num_prompts} '
      'prompts of a generation'
    )
  # The prompts of the latest generation have the age 1.
  age_N = state.num_batches - table.last_visit
  is_eligible_N = (
    table.is_valid
    & (table.num_visits < max_visits)
    & (age_N > jnp.asarray(cooldown).astype(jnp.uint32))
    & (table.latest_rate > 0)
    & (table.latest_rate < 1)
    & ~jnp.isin(table.stream_index, new)
  )
  density_N = prompt_table.rate_density(table, center, width)
  draw = sampling.gumbel_top_k(
    rng_key, jnp.where(is_eligible_N, density_N, 0.0), num_draws
  )
  # The valid draws come first.
  place_P = jnp.arange(num_prompts) - num_prompts
  place_P += jnp.sum(draw.is_valid, dtype=jnp.int32)
  slots_P = draw.slots.at[place_P].get(mode='clip')
  drawn_P = table.stream_index.at[slots_P].get(mode='clip')
  return jnp.where(place_P < 0, new, drawn_P)
