"""How fresh and replayed rollouts make the batch of one update.

The fresh rows are already in the buffer: an insert after the draw, in the same
program, would copy the whole buffer. The caller passes them as a `base.Batch`
with `is_fresh` equal to `is_valid`, `probs` 0 and the slots where they are
stored, C where they are not. These functions write nothing; the caller marks
the slots of the batch as sampled.
"""

import math
from collections.abc import Callable
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

  def draw_rows(num_rows):
    weights_C = older_weights(state, fresh, weight_rule(state, step))
    return buffer.draw_slots(state, rng_key, weights_C, num_rows, draw=draw)

  return anchored(
    state,
    fresh_only(state, fresh, rng_key, step),
    draw_rows,
    step,
    unit_size=1,
    replay_fraction=replay_fraction,
    warmup_steps=warmup_steps,
  )


def fresh_filled(
  state: base.BufferState,
  fresh: base.Batch,
  rng_key: base.Array,
  step: base.Array,
  *,
  weight_rule: base.WeightRule,
  draw: base.DrawFn,
) -> base.Batch:
  """Returns F rows: the valid fresh ones, and older ones in the other places.

  With `replay.drop_zero_variance` the places of groups of equal rewards are
  free. DAPO's dynamic sampling (arXiv 2503.14476, section 3.2) fills them with
  new generations; this fills them from the buffer, at no cost of generation. If
  too few older rows are eligible, the last places stay invalid.

  Args:
    state: the buffer, with the fresh rows inserted.
    fresh: the F rows of this iteration.
    rng_key: random key, consumed.
    step: `[]` int32, learner step.
    weight_rule: what to sample.
    draw: how to sample. Its first k draws must be a fair draw of k.
  """
  anchor = fresh_only(state, fresh, rng_key, step)
  weights_C = older_weights(state, fresh, weight_rule(state, step))
  num_rows = fresh.is_valid.shape[0]
  drawn = buffer.draw_slots(state, rng_key, weights_C, num_rows, draw=draw)
  is_free_F = ~fresh.is_valid
  # The first free place gets the first draw, the second the second.
  place_F = jnp.maximum(jnp.cumsum(is_free_F) - 1, 0)
  replayed = buffer.read(
    state,
    drawn._replace(
      slots=drawn.slots[place_F],
      probs=drawn.probs[place_F],
      is_valid=drawn.is_valid[place_F],
    ),
  )

  def fill(fresh_row, replayed_row):
    is_free = is_free_F.reshape(-1, *(1,) * (fresh_row.ndim - 1))
    return jnp.where(is_free, replayed_row, fresh_row)

  return base.Batch(
    *jax.tree.map(fill, anchor[:-1], replayed[:-1]),
    num_eligible=drawn.num_eligible,
  )


def fresh_first(
  state: base.BufferState,
  fresh: base.Batch,
  rng_key: base.Array,
  step: base.Array,
  *,
  weight_rule: base.WeightRule,
  draw: base.DrawFn,
) -> base.Batch:
  """Returns the F fresh rows in the first update, and then F drawn ones.

  "Freshness-Aware Prioritized Experience Replay" (arXiv 2604.16918): an update
  on the fresh batch, followed by K updates on batches of the whole buffer, in
  which the fresh rows are too. The first update of an iteration is the one
  before which no fresh row was sampled. An iteration without a valid fresh row
  has none: all of its updates draw.

  Args:
    state: the buffer, with the fresh rows inserted.
    fresh: the F rows of this iteration.
    rng_key: random key, consumed.
    step: `[]` int32, learner step.
    weight_rule: what to sample.
    draw: how to sample.
  """
  num_uses_F = state.times_sampled.at[fresh.slots].get(
    mode='fill', fill_value=0
  )
  is_used = jnp.any(fresh.is_valid & (num_uses_F > 0))
  is_first = jnp.any(fresh.is_valid) & ~is_used
  drawn = pure_buffer(
    *(state, fresh, rng_key, step),
    weight_rule=weight_rule,
    draw=draw,
    batch_size=fresh.is_valid.shape[0],
    rows_in_use=None,
  )
  return jax.tree.map(
    lambda anchor, drawn: jnp.where(is_first, anchor, drawn),
    fresh_only(state, fresh, rng_key, step),
    drawn,
  )


def anchored(
  state: base.BufferState,
  anchor: base.Batch,
  draw_units: Callable[[int], base.Draw],
  step: base.Array,
  *,
  unit_size: int,
  replay_fraction: float,
  warmup_steps: base.Array | int,
) -> base.Batch:
  """Returns fresh rows, followed by older units of one or several rows.

  Args:
    state: the buffer.
    anchor: the F fresh rows, from `fresh_only`.
    draw_units: number of units -> slots of all of their rows, unit by unit.
    step: `[]` int32, learner step.
    unit_size: rows of a unit, a divisor of F.
    replay_fraction: older units per unit of valid fresh rows.
    warmup_steps: older rows are valid from this learner step on.

  Raises:
    ValueError: if `replay_fraction` asks for more older rows than slots.
  """
  num_fresh, capacity = anchor.is_valid.shape[0], state.is_valid.shape[0]
  # A table rounds the static and the dynamic count alike.
  num_replayed = [
    math.floor(replay_fraction * n + 0.5)
    for n in range(num_fresh // unit_size + 1)
  ]
  if num_replayed[-1] == 0:
    return anchor
  num_rows = num_replayed[-1] * unit_size
  if num_rows > capacity:
    raise ValueError(
      f'replay_fraction = {replay_fraction}: must give at most capacity = '
      f'{capacity} older rows, and gives {num_rows} for {num_fresh} fresh ones'
    )
  drawn = buffer.read(state, draw_units(num_replayed[-1]))
  num_units = anchor.num_eligible // unit_size
  num_wanted = jnp.asarray(num_replayed, jnp.int32)[num_units] * unit_size
  num_wanted = jnp.where(step < warmup_steps, 0, num_wanted)
  return joined(anchor, _first_rows(state, drawn, num_wanted))


def joined(anchor: base.Batch, drawn: base.Batch) -> base.Batch:
  """Returns fresh rows followed by drawn ones; `num_eligible` of the latter."""
  return base.Batch(
    *jax.tree.map(
      lambda first, second: jnp.concatenate([first, second]),
      anchor[:-1],
      drawn[:-1],
    ),
    num_eligible=drawn.num_eligible,
  )


def older_weights(
  state: base.BufferState, fresh: base.Batch, weights: base.Array
) -> base.Array:
  """Returns `[C]` weights, zero where a row of this iteration is stored."""
  return jnp.where(_is_fresh_slot(state, fresh), 0.0, weights)


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


def _is_fresh_slot(state: base.BufferState, fresh: base.Batch) -> base.Array:
  """Returns `[C]` bool, True where a row of this iteration is stored."""
  is_fresh_C = jnp.zeros(state.is_valid.shape, bool)
  return is_fresh_C.at[fresh.slots].set(True, mode='drop')
