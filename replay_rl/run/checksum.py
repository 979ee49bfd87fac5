"""Checksums of global arrays, the same on any mesh and in any process."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from replay_rl import base
from replay_rl.parallel import mesh as mesh_lib
from replay_rl.parallel import processes
from replay_rl.replay import storage


def of_leaves(tree: base.PyTree) -> dict[str, int]:
  """Returns a checksum of each array, by its path in the tree.

  Computed where the arrays are: what crosses devices is one number per array.
  With many processes all have to call it, and all get the same.

  Args:
    tree: arrays as of `of_array`.
  """
  leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
  found = np.asarray(_program(_everywhere(tree))([leaf for _, leaf in leaves]))
  return {
    jax.tree_util.keystr(path): int(value)
    for (path, _), value in zip(leaves, found, strict=True)
  }


def of_array(array: base.Array) -> base.Array:
  """Returns the sum of a hash of each element and its place, `[]` uint32.

  For a given place, the hash of an element is one to one, so that a change of
  one element always changes the sum. Of several, all but one in 2^32 do.

  Args:
    array: of bools, or of numbers of at most 32 bits.
  """
  words = _words(array)
  place = jnp.zeros_like(words)
  for axis, size in enumerate(words.shape):
    place = place * jnp.uint32(size % 2**32) + jax.lax.broadcasted_iota(
      jnp.uint32, words.shape, axis
    )
  place = jax.device_put(place, jax.typeof(words).memory_space)
  # The finalizer of MurmurHash3, https://github.com/aappleby/smhasher.
  mixed = words ^ (place * jnp.uint32(0x9E3779B9))
  for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
    mixed = (mixed ^ (mixed >> shift)) * jnp.uint32(factor)
  # Integers, because their sum modulo 2^32 is the same in any order.
  return jnp.sum(mixed ^ (mixed >> 16), dtype=jnp.uint32)


def _words(array: base.Array) -> base.Array:
  """Returns the bits of each element as a uint32."""
  if array.dtype == jnp.bool_:
    return array.astype(jnp.uint32)
  unsigned = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[array.dtype.itemsize]
  return jax.lax.bitcast_convert_type(array, unsigned).astype(jnp.uint32)


@functools.cache
def _program(sharding: jax.sharding.Sharding | None):
  return processes.aligned(
    jax.jit(
      lambda leaves: jnp.stack(
        jax.device_put(
          [storage.where_it_is(of_array, leaf) for leaf in leaves],
          jax.memory.Space.Device,
        )
      ),
      out_shardings=sharding,
    )
  )


def _everywhere(tree: base.PyTree) -> jax.sharding.Sharding | None:
  """Returns the sharding of what every device of these arrays holds."""
  for leaf in jax.tree.leaves(tree):
    sharding = getattr(leaf, 'sharding', None)
    if isinstance(sharding, jax.sharding.NamedSharding):
      return mesh_lib.whole(sharding.mesh)
  return None
