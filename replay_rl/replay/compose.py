"""How fresh and replayed rollouts make the batch of one update.

The fresh rows are already in the buffer: an insert after the draw, in the same
program, would copy the whole buffer. The caller passes them as a `base.Batch`
with `is_fresh` equal to `is_valid`, `probs` 0 and the slots where they are
stored, C where they are not. These functions write nothing; the caller marks
the slots of the batch as sampled.
"""

import math
from typing import Annotated

import jax
import jax.numpy as jnp

from replay_rl import base
from replay_rl import constants
from replay_rl.replay import buffer


def fresh_only(
  state: base.BufferState,
  fresh: base.Batch,
  rng_key: base.Array,
  step: base.Array,
) -> base.Batch:
  """Returns the F fresh rows alone: on-policy training."""
  del rng_key, step
  return fresh._replace(
    slots=jnp.where(fresh.is_valid, fresh.slots, state.is_valid.shape[0]),
    is_fresh=fresh.is_valid,
    num_eligible=jnp.sum(fresh.is_valid, dtype=jnp.int32),
  )


@constants.checked
def pure_buffer(
  state: base.BufferState,
  fresh: base.Batch,
  rng_key: base.Array,
  step: base.Array,
  *,
  weight_rule: base.WeightRule,
  draw: base.DrawFn,
  batch_size: Annotated[int, constants.interval('[1, inf)')],
  rows_in_use: Annotated[
    int | jax.Array | None, constants.interval('[1, inf)')
  ],
) -> base.Batch:
  """Returns rows drawn from the whole buffer, fresh or not.

  "Efficient RL Training for LLMs with Experience Replay" (arXiv 2604.08706).

  Args:
    state: the buffer, with the fresh rows inserted.
    fresh: the F rows of this iteration.
    rng_key: random key, consumed.
    step: `[]` int32, learner step.
    weight_rule: what to sample.
    draw: how to sample.
    batch_size: B, at most C.
    rows_in_use: only the first so many of the B rows are valid; None for all.
      They are a fair draw of that size, see `sampling`. As an array it sweeps
      over batch sizes in one compiled program.
  """
  drawn = buffer.sample(
    state, rng_key, weight_rule(state, step), batch_size, draw=draw
  )
  if rows_in_use is not None:
    drawn = _first_rows(state, drawn, rows_in_use)
  is_fresh_C = _is_fresh_slot(state, fresh)
  return drawn._replace(
    is_fresh=is_fresh_C.at[drawn.slots].get(mode='fill', fill_value=False)
  )


@constants.checked
def fresh_anchored(
  state: base.BufferState,
  fresh: base.Batch,
  rng_key: base.Array,
  step: base.Array,
  *,
  weight_rule: base.WeightRule,
  draw: base.DrawFn,
  replay_fraction: Annotated[float, constants.NON_NEGATIVE],
  warmup_steps: Annotated[int | jax.Array, constants.NON_NEGATIVE],
) -> base.Batch:
  """Returns all fresh rows, followed by some older ones from the buffer.

  "Rollout-Level Advantage-Prioritized Experience Replay for GRPO"
  (arXiv 2606.04560). With n valid fresh rows and a fraction r, r n older rows
  are valid, rounded half up in float64, or fewer if fewer are eligible. The
  shape is static: F rows, and r F rows rounded likewise.

  The paper draws before it inserts. Here the draw masks out the rows of this
  iteration instead. In a ring of capacity C that gives the rows that the
  paper's order gives at capacity C - F, if all F rows are stored.

  Args:
    state: the buffer, with the fresh rows inserted.
    fresh: the F rows of this iteration.
    rng_key: random key, consumed.
    step: `[]` int32, learner step.
    weight_rule: what to sample.
    draw: how to sample. Its first k draws must be a fair draw of k, as those of
      `sampling` are.
    replay_fraction: r, older rows per fresh row.
    warmup_steps: older rows are valid from this learner step on.

  Raises:
    ValueError: if `replay_fraction` asks for more older rows than slots.
  """
  anchor = fresh_only(state, fresh, rng_key, step)
  num_fresh = fresh.is_valid.shape[0]
  # A table rounds the static and the dynamic count alike.
  num_replayed = [
    math.floor(replay_fraction * n + 0.5) for n in range(num_fresh + 1)
  ]
  if num_replayed[-1] == 0:
    return anchor
  capacity = state.is_valid.shape[0]
  if num_replayed[-1] > capacity:
    raise ValueError(
      f'replay_fraction = {replay_fraction}: must give at most capacity = '
      f'{capacity} older rows, and gives {num_replayed[-1]} for {num_fresh} '
      'fresh ones'
    )

  weights_C = weight_rule(state, step)
  weights_C = jnp.where(_is_fresh_slot(state, fresh), 0.0, weights_C)
  drawn = buffer.sample(state, rng_key, weights_C, num_replayed[-1], draw=draw)
  num_wanted = jnp.asarray(num_replayed, jnp.int32)[anchor.num_eligible]
  num_wanted = jnp.where(step < warmup_steps, 0, num_wanted)
  drawn = _first_rows(state, drawn, num_wanted)
  return base.Batch(
    *jax.tree.map(_append, anchor[:-1], drawn[:-1]),
    num_eligible=drawn.num_eligible,
  )


def _first_rows(
  state: base.BufferState, drawn: base.Batch, num_rows: base.Array | int
) -> base.Batch:
  """Returns a drawn batch of which only the first rows are valid."""
  is_valid_B = drawn.is_valid & (jnp.arange(drawn.slots.shape[0]) < num_rows)
  return drawn._replace(
    slots=jnp.where(is_valid_B, drawn.slots, state.is_valid.shape[0]),
    is_valid=is_valid_B,
    probs=jnp.where(is_valid_B, drawn.probs, 0.0),
  )


def _append(first: base.Array, second: base.Array) -> base.Array:
  return jnp.concatenate([first, second])


def _is_fresh_slot(state: base.BufferState, fresh: base.Batch) -> base.Array:
  """Returns `[C]` bool, True where a row of this iteration is stored."""
  is_fresh_C = jnp.zeros(state.is_valid.shape, bool)
  return is_fresh_C.at[fresh.slots].set(True, mode='drop')
