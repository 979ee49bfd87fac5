"""Meshes, and the table that says which axis is split over which mesh axis."""

import math
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from replay_rl import base

AXES = ('data', 'fsdp', 'tensor')

# Logical axis -> mesh axes that split it. An axis that is not named here is
# whole on every device. 'slots' is the axis of the rows that the buffer holds;
# arrays of one number per slot are whole, see `replay.storage`.
RULES: Mapping[str, tuple[str, ...]] = {
  'rows': ('data', 'fsdp'),
  # Rows whose channels or vocabulary are split over fsdp.
  'data_rows': ('data',),
  'fsdp_vocab': ('tensor', 'fsdp'),
  'slots': ('data', 'fsdp'),
  'vocab': ('tensor',),
  'embed': ('fsdp',),
  'heads': ('tensor',),
  'kv_heads': ('tensor',),
  'mlp': ('tensor',),
}


def make(
  shape: Mapping[str, int],
  devices: Sequence[Any] | None = None,
  field: str = 'mesh.shape',
) -> jax.sharding.Mesh:
  """Returns a mesh with the axes data, fsdp and tensor.

  Args:
    shape: size of each axis; at most one may be -1, for all devices that are
      left.
    devices: to use; None for all. A smaller mesh takes the first ones.
    field: name of the shape, for messages.

  Raises:
    ValueError: other axes, sizes that are not positive, or too few devices.
  """
  devices = jax.devices() if devices is None else devices
  full = sizes(shape, len(devices), field)
  needed = math.prod(full.values())
  return jax.sharding.Mesh(
    np.array(devices[:needed]).reshape(tuple(full.values())),
    AXES,
    axis_types=(jax.sharding.AxisType.Auto,) * len(AXES),
  )


def sizes(
  shape: Mapping[str, int], num_devices: int, field: str
) -> dict[str, int]:
  """Returns the size of each axis of a mesh, in the order of `AXES`.

  Args:
    shape: see `make`.
    num_devices: that there are.
    field: name of the shape, for messages.

  Raises:
    ValueError: as `make`.
  """
  if set(shape) != set(AXES):
    raise ValueError(f'{field} = {dict(shape)}: must name the axes {AXES}')
  full = {axis: shape[axis] for axis in AXES}
  if list(full.values()).count(-1) > 1 or not all(
    type(size) is int and (size > 0 or size == -1) for size in full.values()
  ):
    raise ValueError(
      f'{field} = {dict(shape)}: must have positive sizes, and at most one -1'
    )
  given = math.prod(size for size in full.values() if size != -1)
  for axis, size in full.items():
    if size == -1:
      if num_devices % given:
        raise ValueError(
          f'{field} = {dict(shape)}: must have a product that divides the '
          f'{num_devices} devices, not {given}'
        )
      full[axis] = num_devices // given
  if math.prod(full.values()) > num_devices:
    raise ValueError(
      f'{field} = {dict(shape)}: must use at most {num_devices} devices'
    )
  return full


def joined(shape: Mapping[str, int]) -> dict[str, int]:
  """Returns the mesh of the same devices whose `fsdp` is a part of `data`.

  Each device keeps its rows and its share of `tensor`, and has all that `fsdp`
  splits. If a sampler uses it, weights are collected, and nothing else moves.
  """
  data = shape['data'] * shape['fsdp']
  return {'data': data, 'fsdp': 1, 'tensor': shape['tensor']}


def num_parts(
  mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh, logical_axis: str
) -> int:
  """Returns into how many parts a mesh splits an axis, by `RULES`."""
  return math.prod(mesh.shape[axis] for axis in RULES.get(logical_axis, ()))


def num_current_parts(logical_axis: str) -> int:
  """Returns `num_parts` of the current mesh; 1 outside of `jax.set_mesh`."""
  mesh = jax.sharding.get_abstract_mesh()
  return 1 if mesh.empty else num_parts(mesh, logical_axis)


def check(
  mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh,
  field: str,
  sizes: Iterable[tuple[str, str, int]],
) -> None:
  """Raises ValueError if a mesh does not divide what it would split.

  XLA refuses such weights, but only once they are placed. The compiler would
  pad such rows, and some devices would then compute nothing that counts.

  Args:
    mesh: the devices.
    field: of the config that gives the mesh.
    sizes: name, logical axis and size of what is split.
  """
  for name, axis, size in sizes:
    parts = num_parts(mesh, axis)
    if size % parts:
      raise ValueError(
        f'{field} = {dict(mesh.shape)}: must split {name} = {size} into '
        f'{" x ".join(RULES[axis])} = {parts} equal parts'
      )


def spec(logical_axes: Sequence[str | None]) -> jax.sharding.PartitionSpec:
  """Returns how an array with these logical axes is split, by `RULES`."""
  return jax.sharding.PartitionSpec(
    *(RULES.get(axis) if axis is not None else None for axis in logical_axes)
  )


def whole(
  mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh,
) -> jax.sharding.NamedSharding:
  """Returns the sharding of arrays that every device of a mesh has whole."""
  return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())


def constrain(
  array: base.Array, logical_axes: Sequence[str | None]
) -> base.Array:
  """Splits an array inside a jit over the current mesh, by `RULES`.

  Outside of `jax.set_mesh`, or on one device, it changes nothing. Without this
  call the compiler would follow the weights, which `fsdp` splits along
  channels, and would compute all rows on every device.

  Args:
    array: any array of the program. Its gradient is split alike.
    logical_axes: of its leading axes; the others are whole.
  """
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty or mesh.size == 1:
    return array
  return jax.lax.with_sharding_constraint(array, spec(logical_axes))


def split_rows(tree: base.PyTree) -> base.PyTree:
  """Splits the leading axis of each leaf as 'rows', see `constrain`."""
  return jax.tree.map(lambda leaf: constrain(leaf, ('rows',)), tree)
