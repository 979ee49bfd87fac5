"""Statistics of prompts: how often each was visited, and with what success.

A table has N entries, `base.PromptTable`. A run visits it once per generation,
with all groups of rollouts, also those that the buffer does not store. On a
mesh the table is whole on every device, and each device computes the same
table. Weight rules read it, see `prompt_weights`, and so does the choice of the
next prompts, see `prompt_choice`.
"""

from typing import Annotated

import jax.numpy as jnp

from replay_rl import base
from replay_rl import constants
from replay_rl.replay import storage

MAX_PROMPTS = 2**30  # An index, and N for none, must fit an int32.

Center = Annotated[base.Scalar, constants.FRACTION]
# At 0.1, a rate that differs from the center by 1 has the weight exp(-50), and
# can still be drawn.
Width = Annotated[base.Scalar, constants.interval('[0.1, inf]')]


def init(num_prompts: int) -> base.PromptTable:
  """Returns a table of N entries without prompts.

  Raises:
    ValueError: if `num_prompts` is out of range.
  """
  if not 1 <= num_prompts <= MAX_PROMPTS:
    raise ValueError(
      f'num_prompts = {num_prompts}: must be in [1, {MAX_PROMPTS}]'
    )
  return base.PromptTable(
    prompt_id=jnp.zeros(num_prompts, jnp.uint32),
    is_valid=jnp.zeros(num_prompts, bool),
    num_visits=jnp.zeros(num_prompts, jnp.int32),
    num_rollouts=jnp.zeros(num_prompts, jnp.int32),
    num_correct=jnp.zeros(num_prompts, jnp.int32),
    latest_rate=jnp.zeros(num_prompts, jnp.float32),
    last_visit=jnp.zeros(num_prompts, jnp.uint32),
    stream_index=jnp.zeros(num_prompts, jnp.uint32),
    num_replayed=jnp.zeros([], jnp.uint32),
    num_replaced=jnp.zeros([], jnp.uint32),
  )


def is_correct(rewards: base.Array) -> base.Array:
  """Returns where a reward is that of a correct response: above 0."""
  return rewards > 0


def visit(
  table: base.PromptTable,
  prompt_id: base.Array,
  rewards: base.Array,
  generation: base.Array,
  *,
  stream_index: base.Array | None = None,
) -> base.PromptTable:
  """Adds the groups of one generation to the statistics of their prompts.

  A prompt of several groups gets the sums over these groups. New prompts take
  the entries without a prompt, in order, and then those of the prompts whose
  last visit is the longest ago; of equal ones the entry with the lower number.
  They never take the entry of a prompt of this generation. The last ones get no
  entry if too few are left. This costs O(P^2 + N log N).

  Args:
    table: N entries.
    prompt_id: `[P]` uint32, the prompt of each group.
    rewards: `[P, G]` float32, of the rollouts of each group.
    generation: `[]` uint32, number of this generation, modulo 2^32.
    stream_index: `[P]` uint32, see `prompt_choice`; of several groups of a
      prompt, the table has that of the first. None for zeros.

  Raises:
    ValueError: a shape or a type does not fit.
  """
  num_groups, num_entries = prompt_id.shape[0], table.is_valid.shape[0]
  if rewards.ndim != 2 or rewards.shape[0] != num_groups:
    raise ValueError(
      f'rewards = {rewards.dtype}{list(rewards.shape)}: must have the shape '
      f'[{num_groups}, G], a row for each prompt_id'
    )
  if stream_index is None:
    stream_index = jnp.zeros_like(prompt_id)
  prompt_id_P, rewards_PG, index_P = storage.whole(
    (prompt_id, rewards, stream_index)
  )
  is_same_PP = prompt_id_P[:, None] == prompt_id_P[None, :]
  order_P = jnp.arange(num_groups)
  first_P = jnp.argmax(is_same_PP, axis=1)
  is_first_P = first_P == order_P
  num_visits_P = jnp.sum(is_same_PP, axis=1, dtype=jnp.int32)
  num_rollouts_P = num_visits_P * rewards.shape[1]
  correct_P = jnp.sum(is_correct(rewards_PG), axis=1, dtype=jnp.int32)
  num_correct_P = jnp.sum(
    is_same_PP * correct_P[None, :], axis=1, dtype=jnp.int32
  )
  # A division may round, and would make 1 of equal numbers only nearly.
  rate_P = jnp.where(
    num_correct_P == num_rollouts_P,
    1.0,
    num_correct_P / num_rollouts_P.astype(jnp.float32),
  )

  entry_P = lookup(table, prompt_id_P)
  is_new_P = is_first_P & (entry_P == num_entries)
  is_visited_N = jnp.zeros(num_entries, bool).at[entry_P].set(True, mode='drop')
  order_N = _replacement_order(table, is_visited_N, generation)
  rank_P = jnp.cumsum(is_new_P, dtype=jnp.int32) - 1
  num_left = num_entries - jnp.sum(is_visited_N, dtype=jnp.int32)
  entry_P = jnp.where(
    is_new_P,
    jnp.where(
      rank_P < num_left, order_N.at[rank_P].get(mode='clip'), num_entries
    ),
    entry_P,
  )
  is_lost_P = is_new_P & table.is_valid.at[entry_P].get(
    mode='fill', fill_value=True
  )

  def put(old_N, new_P):
    # All groups of a known prompt write the same values, and only the first
    # one of a new prompt has an entry.
    return old_N.at[entry_P].set(new_P, mode='drop')

  def add(old_N, more_P):
    old_P = old_N.at[entry_P].get(mode='fill', fill_value=0)
    return put(old_N, jnp.where(is_new_P, 0, old_P) + more_P)

  return base.PromptTable(
    prompt_id=put(table.prompt_id, prompt_id_P),
    is_valid=put(table.is_valid, True),
    num_visits=add(table.num_visits, num_visits_P),
    num_rollouts=add(table.num_rollouts, num_rollouts_P),
    num_correct=add(table.num_correct, num_correct_P),
    latest_rate=put(table.latest_rate, rate_P),
    last_visit=put(table.last_visit, generation.astype(jnp.uint32)),
    stream_index=put(table.stream_index, index_P[first_P]),
    num_replayed=table.num_replayed,
    num_replaced=table.num_replaced + jnp.sum(is_lost_P, dtype=jnp.uint32),
  )


def lookup(table: base.PromptTable, prompt_id: base.Array) -> base.Array:
  """Returns `[C]` int32, the entry of each prompt; N for one without an entry.

  This costs O((N + C) log N) and no array `[C, N]`.

  Args:
    table: N entries.
    prompt_id: `[C]` uint32.

  Raises:
    ValueError: `prompt_id` is not a vector of uint32.
  """
  if prompt_id.ndim != 1 or prompt_id.dtype != jnp.uint32:
    raise ValueError(
      f'prompt_id = {prompt_id.dtype}{list(prompt_id.shape)}: must be uint32[C]'
    )
  num_entries = table.is_valid.shape[0]
  num_valid = jnp.sum(table.is_valid, dtype=jnp.int32)
  order_N = jnp.lexsort((table.prompt_id, ~table.is_valid)).astype(jnp.int32)
  is_valid_N = jnp.arange(num_entries) < num_valid
  # The largest id fills the end; of equal ids the search gives the first.
  sorted_N = jnp.where(
    is_valid_N, table.prompt_id[order_N], jnp.uint32(2**32 - 1)
  )
  place_C = jnp.searchsorted(sorted_N, prompt_id)
  is_known_C = (place_C < num_valid) & (
    sorted_N.at[place_C].get(mode='clip') == prompt_id
  )
  return jnp.where(
    is_known_C, order_N.at[place_C].get(mode='clip'), num_entries
  )


def rate_density(
  table: base.PromptTable, center: base.Scalar, width: base.Scalar
) -> base.Array:
  """Returns `[N]` float32, exp(-((rate - center) / width)^2 / 2)."""
  return jnp.exp(-(((table.latest_rate - center) / width) ** 2) / 2)


def of_buffer(state: base.BufferState, reader: str) -> base.PromptTable:
  """Returns the table of a buffer.

  Args:
    state: the buffer.
    reader: what needs the table, for the message.

  Raises:
    ValueError: the buffer has no table.
  """
  if state.prompts is None:
    raise ValueError(f'replay.num_prompts = None: must be given for {reader}')
  return state.prompts


def _replacement_order(
  table: base.PromptTable, is_visited_N: base.Array, generation: base.Array
) -> base.Array:
  """Returns `[N]` int32, all entries, the first to be replaced first."""
  # The difference is 2^32 minus the age, so it rises from old to new whatever
  # the number of the generation has wrapped to.
  recency_N = table.last_visit - generation.astype(jnp.uint32)
  # No prompt of an earlier generation has 0.
  recency_N = jnp.where(table.is_valid, recency_N, 0)
  # The last key decides first.
  return jnp.lexsort((recency_N, is_visited_N)).astype(jnp.int32)
