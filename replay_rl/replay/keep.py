"""Keep rules: which rollouts stay when others come in.

A rule maps the buffer before the insert and the learner step to a score per
slot, and `buffer.insert` overwrites the lowest score first. Without scores the
buffer is a ring, which keeps what `fifo` keeps and does not sort. Bind the
constants with `functools.partial`; they may be traced arrays.
"""

from typing import Annotated

import jax.numpy as jnp

from replay_rl import base
from replay_rl import constants
from replay_rl.replay import buffer
from replay_rl.replay import prompt_table


def fifo(state: base.BufferState, step: base.Array) -> base.Array:
  """The oldest insertion goes first."""
  del step
  return -buffer.insertion_age(state).astype(jnp.float32)


@constants.checked
def positive_bias(
  state: base.BufferState,
  step: base.Array,
  *,
  fraction: Annotated[base.Scalar, constants.FRACTION],
) -> base.Array:
  """Recent rollouts stay, and correct ones (reward above 0) stay for longer.

  "Efficient RL Training for LLMs with Experience Replay" (arXiv 2604.08706),
  the positive-bias buffer with delta = `fraction`. Let P be delta C, rounded
  half up. After the insert the buffer holds the freshest C - P rollouts ever
  stored and the freshest P correct ones before them. If there are fewer than P
  correct ones, the freshest others fill the rest. All rows of one insert stay,
  even if they are more than C - P. A delta of 0 is `fifo`.

  The score is minus the rank by age, 0 for the freshest. A correct rollout
  has instead the rank of the correct one P places fresher: it goes when that
  one leaves the recent ones and takes its place among the P. This holds for any
  number of incoming rows, so rows that a filter drops do not matter. Ranks are
  exact up to 2^24 slots.
  """
  del step
  rewards_C = buffer.field(state, 'rewards', 'positive_bias')
  capacity = state.is_valid.shape[0]
  num_positive = jnp.floor(fraction * capacity + 0.5).astype(jnp.int32)
  ranks_C = jnp.arange(capacity)
  freshest_first_C = jnp.lexsort((buffer.insertion_age(state), ~state.is_valid))
  is_correct_C = state.is_valid & prompt_table.is_correct(rewards_C)
  is_correct_C = is_correct_C[freshest_first_C]
  fresher_correct_C = jnp.cumsum(is_correct_C) - is_correct_C
  rank_of_correct_C = (
    jnp.full(capacity, capacity)
    .at[jnp.where(is_correct_C, fresher_correct_C, capacity)]
    .set(ranks_C, mode='drop')
  )
  place_C = fresher_correct_C - num_positive
  taken_over_C = jnp.where(
    place_C < 0, -1, rank_of_correct_C.at[place_C].get(mode='clip')
  )
  scores_C = -jnp.where(is_correct_C, taken_over_C, ranks_C)
  return (
    jnp.zeros(capacity).at[freshest_first_C].set(scores_C.astype(jnp.float32))
  )
