"""Buffers whose rows show where they came from."""

import jax
import jax.numpy as jnp
import numpy as np

from replay_rl import base
from replay_rl.replay import buffer


def make_rows(ids, num_tokens=3) -> base.Rollout:
  """Rows in which every field encodes the id."""
  ids = np.asarray(ids)
  grid = ids[:, None] * 8 + np.arange(num_tokens)
  return base.Rollout(
    tokens=jnp.asarray(grid, jnp.int32),
    loss_mask=jnp.asarray(grid // 8 % 2 == 1),
    behavior_logprobs=jnp.asarray(-grid, jnp.float32),
    rewards=jnp.asarray(ids * 2, jnp.float32),
    advantages=jnp.asarray(ids + 0.5, jnp.float32),
    group_id=jnp.asarray(ids + 1, jnp.int32),
    policy_version=jnp.asarray(ids + 2, jnp.int32),
  )


def make_state(capacity: int, num_tokens=3) -> base.BufferState:
  return buffer.init(make_rows([0], num_tokens), capacity=capacity)


def filled(capacity: int, num_rows: int) -> base.BufferState:
  """A buffer with rows 0, 1, ... of priority 1 in slots 0, 1, ..."""
  state, _ = jax.jit(buffer.insert)(
    make_state(capacity),
    make_rows(range(num_rows)),
    priorities=jnp.ones(num_rows),
  )
  return state
