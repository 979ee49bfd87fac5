"""Buffers whose rows show where they came from."""

import chex
import jax
import jax.numpy as jnp
import numpy as np

from replay_rl import base
from replay_rl.parallel import mesh as mesh_lib
from replay_rl.replay import buffer
from replay_rl.replay import storage

INSERT = jax.jit(buffer.insert)
INIT = jax.jit(buffer.init, static_argnames='capacity')


def make_rows(ids, num_tokens=3, **fields) -> base.Rollout:
  """Rows in which every field encodes the id, except those that are given."""
  ids = np.asarray(ids)
  grid = ids[:, None] * 8 + np.arange(num_tokens)
  rows = base.Rollout(
    tokens=jnp.asarray(grid, jnp.int32),
    loss_mask=jnp.asarray(grid // 8 % 2 == 1),
    behavior_logprobs=jnp.asarray(-grid, jnp.float32),
    rewards=jnp.asarray(ids * 2, jnp.float32),
    advantages=jnp.asarray(ids + 0.5, jnp.float32),
    group_id=jnp.asarray(ids + 1, jnp.int32),
    prompt_id=jnp.asarray(ids + 3, jnp.uint32),
    rollout_id=jnp.asarray(ids + 4, jnp.uint32),
    policy_version=jnp.asarray(ids + 2, jnp.int32),
  )
  return rows._replace(
    **{
      name: jnp.asarray(values, getattr(rows, name).dtype)
      for name, values in fields.items()
    }
  )


def ids_of(rows: base.Rollout) -> np.ndarray:
  """The ids that `make_rows` made the rows of."""
  return np.asarray(rows.group_id) - 1


def make_state(capacity: int, num_tokens=3) -> base.BufferState:
  return INIT(make_rows([0], num_tokens), capacity=capacity)


def filled(
  capacity: int, num_rows: int, priorities=None, **fields
) -> base.BufferState:
  """A buffer with rows 0, 1, ... in slots 0, 1, ...; their priority is 1."""
  if priorities is None:
    priorities = np.ones(num_rows)
  state, _ = INSERT(
    make_state(capacity),
    make_rows(range(num_rows), **fields),
    priorities=np.asarray(priorities, np.float32),
  )
  return state


def with_empty(state: base.BufferState, *slots: int) -> base.BufferState:
  """The buffer in which some slots hold no rollout, but what it left there."""
  is_valid = np.array(state.is_valid)
  is_valid[list(slots)] = False
  return state._replace(is_valid=jnp.asarray(is_valid))


def make_mesh(shape: tuple[int, int, int]) -> jax.sharding.Mesh:
  return mesh_lib.make(dict(zip(mesh_lib.AXES, shape, strict=True)))


def shardings(stored: base.PyTree, mesh: jax.sharding.Mesh) -> base.PyTree:
  """Where the leaves of a storage, or of a buffer, live on a mesh."""
  return jax.tree.map(
    lambda leaf: jax.NamedSharding(
      mesh, jax.P(storage.SLOT_AXES) if leaf.ndim > 1 else jax.P()
    ),
    stored,
  )


def shapes_on(stored: base.PyTree, mesh: jax.sharding.Mesh) -> base.PyTree:
  """The shapes of a storage, or of a buffer, on a mesh."""
  return jax.tree.map(
    lambda leaf, sharding: jax.ShapeDtypeStruct(
      leaf.shape, leaf.dtype, sharding=sharding
    ),
    stored,
    shardings(stored, mesh),
  )


def assert_integers_equal(actual: base.PyTree, expected: base.PyTree) -> None:
  """Asserts that two buffers are equal in all but floats.

  Another mesh rounds floats in another order.
  """

  def integers(buffer_state):
    leaves = jax.tree_util.tree_leaves_with_path(jax.device_get(buffer_state))
    return {
      jax.tree_util.keystr(path): leaf
      for path, leaf in leaves
      if not np.issubdtype(leaf.dtype, np.floating)
    }

  chex.assert_trees_all_equal(integers(actual), integers(expected))
