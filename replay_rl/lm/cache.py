"""The key-value cache: one column per token, the same column for all rows.

The columns of a row need not be in the order of its tokens: the rotation of the
keys has the positions, and `is_valid` says which columns the row may read.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from replay_rl import base
from replay_rl.lm import architecture
from replay_rl.lm import layers


class Cache(NamedTuple):
  """Keys and values of the tokens read so far.

  layers: `layers.KeyValues` `[num_layers, B, K, S, head_dim]`; if the layers
  run
    unrolled, a list with one `[1, B, K, S, head_dim]` for each layer.
  is_valid: `[B, S]` bool, True where the column holds a token of the row.
  num_tokens: `[B]` int32, tokens of each row, and so the position of the next.
  num_columns: `[]` int32, the column that is written next in each row.
  """

  layers: base.PyTree
  is_valid: base.Array
  num_tokens: base.Array
  num_columns: base.Array


def init(
  config: architecture.TransformerConfig, *, batch_size: int, num_columns: int
) -> Cache:
  """Returns an empty cache with room for `num_columns` tokens per row."""

  def empty(num_layers):
    shape = (
      num_layers,
      batch_size,
      config.num_kv_heads,
      num_columns,
      config.head_dim,
    )
    return layers.KeyValues(
      jnp.zeros(shape, config.compute_dtype),
      jnp.zeros(shape, config.compute_dtype),
    )

  if layers.is_unrolled(config.num_layers):
    key_values = [empty(1) for _ in range(config.num_layers)]
  else:
    key_values = empty(config.num_layers)
  return Cache(
    layers=key_values,
    is_valid=jnp.zeros((batch_size, num_columns), bool),
    num_tokens=jnp.zeros((batch_size,), jnp.int32),
    num_columns=jnp.zeros((), jnp.int32),
  )


def grow(cache: Cache, num_columns: int) -> Cache:
  """Returns the cache with room for `num_columns` more tokens per row."""

  def pad(leaf):
    return jnp.pad(leaf, ((0, 0),) * 3 + ((0, num_columns), (0, 0)))

  return cache._replace(
    layers=jax.tree.map(pad, cache.layers),
    is_valid=jnp.pad(cache.is_valid, ((0, 0), (0, num_columns))),
  )


def repeat(cache: Cache, count: int) -> Cache:
  """Returns the cache with each row `count` times, side by side."""
  return cache._replace(
    layers=jax.tree.map(
      lambda leaf: jnp.repeat(leaf, count, axis=1), cache.layers
    ),
    is_valid=jnp.repeat(cache.is_valid, count, axis=0),
    num_tokens=jnp.repeat(cache.num_tokens, count, axis=0),
  )


def load(
  cache: Cache, store: Cache, sources: base.Array, is_loaded: base.Array
) -> Cache:
  """Returns the cache, in which some rows start anew with those of a store.

  Args:
    cache: B rows.
    store: U rows, with at most as many columns.
    sources: `[N, B / N]` int32, in `[0, U / N)`: the row of the store that each
      row of the cache gets. The rows of both are in N parts of equal size, and
      a row is loaded from its own part.
    is_loaded: `[B]` bool, False for the rows that stay as they are.
  """
  num_columns = store.is_valid.shape[1]

  def load_axis_1(leaf, stored):
    first_columns = (slice(None),) * 3 + (slice(num_columns),)
    loaded = jnp.where(
      is_loaded[None, :, None, None, None],
      take(stored, sources, axis=1),
      leaf[first_columns],
    )
    return leaf.at[first_columns].set(loaded)

  num_left = cache.is_valid.shape[1] - num_columns
  is_valid = jnp.pad(take(store.is_valid, sources), ((0, 0), (0, num_left)))
  return cache._replace(
    layers=jax.tree.map(load_axis_1, cache.layers, store.layers),
    is_valid=jnp.where(is_loaded[:, None], is_valid, cache.is_valid),
    num_tokens=jnp.where(
      is_loaded, take(store.num_tokens, sources), cache.num_tokens
    ),
  )


def take(array: base.Array, indices: base.Array, axis: int = 0) -> base.Array:
  """Returns rows of an array, each from its own part.

  Without the parts, devices that split the rows would exchange them.

  Args:
    array: its `axis` has the rows of N parts, one after the other.
    indices: `[N, M]` int32, rows of each part, in `[0, rows of the part)`.
    axis: of the rows.

  Returns:
    The array with N x M rows.
  """
  num_parts = indices.shape[0]
  before, after = array.shape[:axis], array.shape[axis + 1 :]
  parts = array.reshape(*before, num_parts, -1, *after)
  taken = jax.vmap(
    lambda part, index: jnp.take(part, index, axis=axis, mode='clip'),
    in_axes=(axis, 0),
    out_axes=axis,
  )(parts, indices)
  return taken.reshape(*before, -1, *after)
