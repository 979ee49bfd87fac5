"""The memory of the host: how much there is, and arrays that live there."""

import pathlib
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.experimental import compute_on

from replay_rl import base

HOST = jax.memory.Space.Host
_PROC, _CGROUPS = pathlib.Path('/proc'), pathlib.Path('/sys/fs/cgroup')


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


def available(
  proc: pathlib.Path = _PROC, cgroups: pathlib.Path = _CGROUPS
) -> int | None:
  """Returns the bytes that processes of this machine can still get.

  Swap counts too. A limit of a control group counts in full, because what its
  processes hold may be memory that they can give back.

  Args:
    proc: folder of the system's numbers.
    cgroups: folder of the control groups.

  Returns:
    None where the system does not say, such as on macOS.
  """
  numbers = {}
  for line in _read(proc / 'meminfo').splitlines():
    name, _, value = line.partition(':')
    numbers[name] = 1024 * int(value.split()[0])  # Each in kB.
  if 'MemAvailable' not in numbers:
    return None
  swap = numbers.get('SwapFree', 0)
  limits = [numbers['MemAvailable'] + swap]
  for line in _read(proc / 'self' / 'cgroup').splitlines():
    _, controllers, name = line.split(':', 2)
    root, file = cgroups, 'memory.max'
    if controllers:  # Version 1, which has a folder for each controller.
      root, file = cgroups / 'memory', 'memory.limit_in_bytes'
    if not controllers or 'memory' in controllers.split(','):
      folder = pathlib.PurePath(name.lstrip('/'))
      # Inside a container the root may be its own group.
      for path in (folder, *folder.parents, pathlib.PurePath()):
        text = _read(root / path / file).strip()
        if text.isdigit():
          limits.append(int(text) + swap)
  return min(limits)


def _read(path: pathlib.Path) -> str:
  """Returns the text of a file; '' where there is none."""
  try:
    return path.read_text()
  except OSError:
    return ''
