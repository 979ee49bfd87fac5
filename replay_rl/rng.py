"""Named random streams, without keys that are stored or split.

Each use of randomness computes its key from the name of a stream and logical
time. A resumed run therefore needs no stored key, and a new stream does not
change the others.
"""

import zlib

import jax
import jax.numpy as jnp

from replay_rl import base


def stream_key(
  seed: base.Array | int, stream: str, *indices: base.Array | int
) -> base.Array:
  """Returns the key of one named use of randomness.

  Args:
    seed: `[]` integer, the seed of the run.
    stream: name of the use, such as 'generate'. Different names give
      independent keys.
    *indices: `[]` integers, logical time, such as the iteration.

  Returns:
    `[]` typed key. Use it once.
  """
  rng_key = jax.random.fold_in(jax.random.key(seed), _stable_hash(stream))
  for index in indices:
    rng_key = jax.random.fold_in(rng_key, index)
  return rng_key


def mix(words: base.Array) -> base.Array:
  """Returns a hash of each uint32, one to one; 0 stays 0.

  The finalizer of MurmurHash3, https://github.com/aappleby/smhasher.
  """
  for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
    words = (words ^ (words >> shift)) * jnp.uint32(factor)
  return words ^ (words >> 16)


def _stable_hash(name: str) -> int:
  # Python's hash() of a string is different in each process.
  return zlib.crc32(name.encode())
