"""Arrays in the memory of the host, which the programs of a device use."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.experimental import compute_on

from replay_rl import base

HOST = jax.memory.Space.Host


def place(
  leaf: jax.ShapeDtypeStruct | base.Array,
  sharding: jax.sharding.NamedSharding,
  memory_kind: str,
) -> jax.sharding.NamedSharding:
  """Returns where the rows of a leaf `[C, ...]` live.

  Bools stay on the device: the TPU compiler fails on a scatter of one-byte
  elements in the memory of the host.

  Args:
    leaf: of a storage.
    sharding: how it is split over devices.
    memory_kind: 'device', or 'pinned_host' for the memory of the host.
  """
  if memory_kind == 'device' or leaf.dtype.itemsize == 1:
    return sharding
  return sharding.with_memory_kind(memory_kind)


def init_in_place(
  leaf: base.Array, sharding: jax.sharding.NamedSharding
) -> base.Array:
  """Returns a leaf of an empty buffer, made where it will live.

  A leaf for the host may be larger than the memory of the device.

  Args:
    leaf: zeros, inside a jit.
    sharding: from `place`.
  """
  if sharding.memory_kind in (None, 'device'):
    return leaf
  return where_it_is(
    lambda zero: jnp.broadcast_to(zero, leaf.shape),
    jax.device_put(jnp.zeros((), leaf.dtype), HOST),
  )


def where_it_is(
  function: Callable, leaf: base.Array, *rest: base.Array
) -> base.Array:
  """Returns `function(leaf, *rest)`, computed where the leaf lives.

  If that is the host, `rest` is moved there, and the result stays there.
  """
  if jax.typeof(leaf).memory_space != HOST:
    return function(leaf, *rest)
  on_host = compute_on.compute_on('device_host')(jax.jit(function))
  return on_host(leaf, *jax.device_put(rest, HOST))
