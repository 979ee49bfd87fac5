"""The key-value cache: one column per token, the same column for all rows."""

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
  num_columns: `[]` int32, columns written so far in each row.
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
