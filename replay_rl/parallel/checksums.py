"""Checksums of arrays, which do not depend on how a mesh splits them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from replay_rl import base
from replay_rl import rng
from replay_rl.parallel import host_memory
from replay_rl.parallel import mesh as mesh_lib
from replay_rl.parallel import processes


def of_tree(tree: base.PyTree) -> dict[str, int]:
  """Returns a checksum of each array, by its path in the tree.

  Each device sums its own shards, and one number per array goes to the host.
  All processes must call it, and all get the same result.

  Args:
    tree: arrays that `of_array` accepts.
  """
  leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
  arrays = [leaf for _, leaf in leaves]
  sharding = None  # On every device, where the arrays are on a mesh.
  for leaf in arrays:
    if isinstance(getattr(leaf, 'sharding', None), jax.sharding.NamedSharding):
      sharding = mesh_lib.whole(leaf.sharding.mesh)
      break
  sums = np.asarray(_program(sharding)(arrays)).tolist()
  paths = [jax.tree_util.keystr(path) for path, _ in leaves]
  return dict(zip(paths, sums, strict=True))


def of_array(array: base.Array) -> base.Array:
  """Returns the sum of a hash of each element and its place, `[]` uint32.

  For a given place, the hash of an element is one to one, so a change of one
  element always changes the sum. A change of several elements leaves the sum as
  it was with a probability of about 2^-32.

  Args:
    array: bools, or numbers of at most 32 bits; any shape.
  """
  words = _words(array)
  place = jnp.zeros_like(words)
  for axis, size in enumerate(words.shape):
    place = place * jnp.uint32(size % 2**32) + jax.lax.broadcasted_iota(
      jnp.uint32, words.shape, axis
    )
  place = jax.device_put(place, jax.typeof(words).memory_space)
  mixed = rng.mix(words ^ (place * jnp.uint32(0x9E3779B9)))
  # A sum of integers modulo 2^32 does not depend on the order.
  return jnp.sum(mixed, dtype=jnp.uint32)


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
          [host_memory.where_it_is(of_array, leaf) for leaf in leaves],
          jax.memory.Space.Device,
        )
      ),
      out_shardings=sharding,
    )
  )
