"""How fresh and replayed rollouts make the batch of one update.

The fresh rows are already in the buffer: an insert after the draw, in the same
program, would copy the whole buffer. Nothing is written here; the caller marks
`batch.slots` as sampled.
"""

import math

import jax
import jax.numpy as jnp

from replay_rl import base
from replay_rl.replay import buffer


def fresh_only(
  state: base.BufferState,
  fresh: base.Fresh,
  rng_key: base.Array,
  step: base.Array,
) -> base.Batch:
  """Returns the F fresh rows alone: on-policy training."""
  del rng_key, step
  capacity = state.is_valid.shape[0]
  return base.Batch(
    rollouts=fresh.rollouts,
    slots=jnp.where(fresh.is_valid, fresh.slots, capacity),
    is_valid=fresh.is_valid,
    is_fresh=fresh.is_valid,
    num_eligible=jnp.sum(fresh.is_valid, dtype=jnp.int32),
  )


def pure_buffer(
  state: base.BufferState,
  fresh: base.Fresh,
  rng_key: base.Array,
  step: base.Array,
  *,
  weight_rule: base.SlotRule,
  draw: base.DrawFn,
  batch_size: int,
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
  """
  drawn = buffer.sample(
    state, rng_key, weight_rule(state, step), batch_size, draw=draw
  )
  is_fresh_C = _is_fresh_slot(state, fresh)
  return base.Batch(
    rollouts=drawn.rollouts,
    slots=drawn.slots,
    is_valid=drawn.is_valid,
    is_fresh=is_fresh_C.at[drawn.slots].get(mode='fill', fill_value=False),
    num_eligible=drawn.num_eligible,
  )


def fresh_anchored(
  state: base.BufferState,
  fresh: base.Fresh,
  rng_key: base.Array,
  step: base.Array,
  *,
  weight_rule: base.SlotRule,
  draw: base.DrawFn,
  replay_fraction: float,
  warmup_steps: base.Array | int,
) -> base.Batch:
  """Returns all fresh rows, followed by some older ones from the buffer.

  "Rollout-Level Advantage-Prioritized Experience Replay for GRPO"
  (arXiv 2606.04560). Of n valid fresh rows and a fraction r, r n rounded half
  up (in float64) older rows are valid, fewer if the draw finds fewer. The shape
  is static: F rows and the same share of F.

  The paper draws before it inserts. Here the rows of this iteration are masked
  out of the draw instead. In a ring of capacity C that gives the rows that the
  paper's order gives at capacity C - F, if all F rows are stored.

  Args:
    state: the buffer, with the fresh rows inserted.
    fresh: the F rows of this iteration.
    rng_key: random key, consumed.
    step: `[]` int32, learner step.
    weight_rule: what to sample.
    draw: how to sample. Its first k draws must be a fair draw of k, as those of
      `sampling` are.
    replay_fraction: r, older rows per fresh row, finite and at least 0.
    warmup_steps: older rows are valid from this learner step on.

  Raises:
    ValueError: if `replay_fraction` is out of range, or asks for more older
      rows than there are slots.
  """
  if not 0 <= replay_fraction < math.inf:
    raise ValueError(
      f'replay_fraction={replay_fraction} must be finite and at least 0.'
    )
  anchor = fresh_only(state, fresh, rng_key, step)
  num_fresh = fresh.is_valid.shape[0]
  # A table, so that the static and the dynamic count are rounded alike.
  num_replayed = [
    math.floor(replay_fraction * n + 0.5) for n in range(num_fresh + 1)
  ]
  if num_replayed[-1] == 0:
    return anchor
  capacity = state.is_valid.shape[0]
  if num_replayed[-1] > capacity:
    raise ValueError(
      f'replay_fraction={replay_fraction} of {num_fresh} fresh rows is '
      f'{num_replayed[-1]} rows; capacity={capacity} allows no more.'
    )

  weights_C = weight_rule(state, step)
  weights_C = jnp.where(_is_fresh_slot(state, fresh), 0.0, weights_C)
  drawn = buffer.sample(state, rng_key, weights_C, num_replayed[-1], draw=draw)
  num_wanted = jnp.asarray(num_replayed, jnp.int32)[anchor.num_eligible]
  num_wanted = jnp.where(step < warmup_steps, 0, num_wanted)
  is_valid_K = drawn.is_valid & (jnp.arange(num_replayed[-1]) < num_wanted)
  slots_K = jnp.where(is_valid_K, drawn.slots, capacity)
  return base.Batch(
    rollouts=jax.tree.map(_append, anchor.rollouts, drawn.rollouts),
    slots=_append(anchor.slots, slots_K),
    is_valid=_append(anchor.is_valid, is_valid_K),
    is_fresh=_append(anchor.is_fresh, jnp.zeros_like(is_valid_K)),
    num_eligible=drawn.num_eligible,
  )


def _append(first: base.Array, second: base.Array) -> base.Array:
  return jnp.concatenate([first, second])


def _is_fresh_slot(state: base.BufferState, fresh: base.Fresh) -> base.Array:
  """Returns `[C]` bool, True where a row of this iteration is stored."""
  is_fresh_C = jnp.zeros(state.is_valid.shape, bool)
  return is_fresh_C.at[fresh.slots].set(True, mode='drop')
