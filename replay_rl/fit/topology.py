"""Describes accelerators to compile for; this machine need not have them."""

import contextlib
import importlib.util
import itertools
import math
import os
import re
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import jax
from jax.experimental import topologies

from replay_rl.fit import chips
from replay_rl.parallel import mesh as mesh_lib

_TWO_DIMENSIONS = ('1x1', '2x2', '2x4', '4x4', '4x8', '8x8', '8x16', '16x16')
# Generation -> slices that Google rents, from small to large, up to 512 chips:
# https://cloud.google.com/tpu/docs/v5e, and the pages of v5p and v6e.
SLICES: Mapping[str, Sequence[str]] = {
  'v5e': _TWO_DIMENSIONS,
  'v5p': (
    *('2x2x1', '2x2x2', '2x2x4', '2x4x4', '4x4x4', '4x4x8', '4x8x8', '8x8x8'),
  ),
  'v6e': _TWO_DIMENSIONS,
}


class Topology(NamedTuple):
  """Chips to compile for.

  name: such as 'v5e:4x4'.
  memory: bytes of a chip.
  devices: the chips, for a mesh. Those of a TPU cannot execute anything.
  """

  name: str
  memory: float
  devices: Sequence[Any]


def make(name: str, *, memory: float | None = None) -> Topology:
  """Returns the chips of a name.

  Args:
    name: 'v5e:4x4' and the like for a slice of TPUs, of a generation in
      `SLICES`; 'cpu:8' for virtual devices of this machine.
    memory: bytes of a chip; None for those of `chips.DEVICES`, and for 'cpu' an
      equal share of this machine's memory.

  Raises:
    ValueError: an unknown name, or the package that describes the slice is not
      installed.
  """
  generation, _, slice_name = name.partition(':')
  if generation == 'cpu' and slice_name.isdecimal() and int(slice_name):
    devices = _cpu(int(slice_name))
    total = os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')
    return Topology(name, memory or total / len(devices), devices)
  if generation not in SLICES or not re.fullmatch(r'\d+(x\d+)+', slice_name):
    raise ValueError(f'topology = {name!r}: must be {known()}')
  return Topology(name, memory or chips.named(generation).memory, _tpu(name))


def known() -> str:
  """Returns all names, as the end of a sentence."""
  slices = (
    f'{generation}: with {", ".join(names)}'
    for generation, names in SLICES.items()
  )
  return f'one of {"; ".join(slices)}; or cpu: with a number of devices'


def slices(generation: str) -> list[str]:
  """Returns the names of a generation's slices, from small to large.

  Raises:
    ValueError: the generation is not in `SLICES`.
  """
  if generation not in SLICES:
    raise ValueError(
      f'smallest = {generation!r}: must be one of {sorted(SLICES)}'
    )
  return [f'{generation}:{name}' for name in SLICES[generation]]


def num_chips(name: str) -> int:
  """Returns the chips of a slice, such as 16 of 'v5e:4x4'."""
  return math.prod(int(size) for size in name.split(':')[1].split('x'))


def meshes(num_devices: int) -> Iterator[dict[str, int]]:
  """Yields the shapes of all meshes of that many devices whose 'data' is 1.

  'fsdp' splits the rows as 'data' does, and splits the weights as well.
  """
  for fsdp, tensor in itertools.product(range(1, num_devices + 1), repeat=2):
    if fsdp * tensor == num_devices:
      yield dict(zip(mesh_lib.AXES, (1, fsdp, tensor), strict=True))


def _cpu(num_devices: int) -> Sequence[Any]:
  if jax.config.values['jax_num_cpu_devices'] < num_devices:
    # JAX refuses once it has been used.
    with contextlib.suppress(RuntimeError):
      jax.config.update('jax_num_cpu_devices', num_devices)
  devices = jax.devices('cpu')
  if len(devices) < num_devices:
    raise ValueError(
      f"topology = 'cpu:{num_devices}': must be at most the {len(devices)} "
      'devices that JAX was started with'
    )
  return devices[:num_devices]


def _tpu(name: str) -> Sequence[Any]:
  if importlib.util.find_spec('libtpu') is None:
    raise ValueError(
      f'topology = {name!r}: must be cpu: with a number of devices where the '
      'package libtpu is not installed; it needs no TPU: '
      "pip install -e '.[tpu]'"
    )
  # The library looks for a TPU in its environment, and complains without one.
  os.environ.setdefault('TPU_SKIP_MDS_QUERY', '1')
  os.environ.setdefault('TPU_ACCELERATOR_TYPE', 'v5litepod-4')
  os.environ.setdefault('TPU_WORKER_HOSTNAMES', 'localhost')
  # Else a second process is refused, as two cannot share a TPU; none is used.
  os.environ.setdefault('ALLOW_MULTIPLE_LIBTPU_LOAD', '1')
  # The library assumes hosts of four chips.
  bounds = {'chips_per_host_bounds': [1, 1, 1]} if num_chips(name) == 1 else {}
  try:
    return topologies.get_topology_desc(
      platform='tpu', topology_name=name, **bounds
    ).devices
  except jax.errors.JaxRuntimeError as error:
    raise ValueError(
      f'topology = {name!r}: must be {known()} ({str(error).splitlines()[0]})'
    ) from error
