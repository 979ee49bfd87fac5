"""Batches that wait until enough rows with a gradient are in the buffer."""

from typing import Annotated

import jax
import jax.numpy as jnp

from replay_rl import base
from replay_rl import constants
from replay_rl.replay import buffer
from replay_rl.replay import compose
from replay_rl.replay import sampling

# A waiting update is empty, and `stopping` ends a run after 10 generations in a
# row that have nothing else.
MAX_BATCHES = 9


@constants.checked
def collected(
  state: base.BufferState,
  fresh: base.Batch,
  rng_key: base.Array,
  step: base.Array,
  *,
  weight_rule: base.WeightRule,
  draw: base.DrawFn,
  batch_size: Annotated[int, constants.interval('[1, inf)')],
  num_fresh: Annotated[int, constants.interval('[1, inf)')],
  max_batches: Annotated[
    int | jax.Array, constants.interval(f'[1, {MAX_BATCHES}]')
  ],
) -> base.Batch:
  """Returns drawn rows once enough of them wait, and no row before.

  The dynamic sampling of "DAPO" (arXiv 2503.14476), with
  `replay.drop_zero_variance`, the weights `oldest_unused()` and the draw
  `largest()`: the sampler goes on with the same weights until B rows of groups
  with a gradient wait. A row waits while its weight lets it be drawn. DAPO
  generates without a limit and drops the surplus; here the surplus waits for
  the next update, and the wait has a limit.

  Args:
    state: the buffer, with the fresh rows inserted.
    fresh: the F rows of this iteration.
    rng_key: random key, consumed.
    step: `[]` int32, learner step.
    weight_rule: what to sample.
    draw: how to sample.
    batch_size: B, at most C.
    num_fresh: F, rollouts of a generation; the config gives it.
    max_batches: the batch has what there is, if fewer than B rows, once so many
      generations came after that of the oldest waiting row.

  Returns:
    A batch of B rows; none is valid while the update waits.
  """
  weights_C = weight_rule(state, step)
  is_waiting_C = state.is_valid & sampling.is_eligible(weights_C)
  age_C = buffer.batch_age(state, num_fresh, 'collected')
  oldest = jnp.max(jnp.where(is_waiting_C, age_C, 0))
  is_ready = (jnp.sum(is_waiting_C) >= batch_size) | (
    oldest >= jnp.asarray(max_batches).astype(jnp.uint32)
  )
  return compose.pure_buffer(
    *(state, fresh, rng_key, step),
    weight_rule=lambda state, step: weights_C,
    draw=draw,
    batch_size=batch_size,
    rows_in_use=jnp.where(is_ready, batch_size, 0),
  )
