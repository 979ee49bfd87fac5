"""Rows of slots, on one device or split along the slots over many.

Leaves with two or more axes, `[C, ...]`, have nearly all bytes of a buffer. On
a mesh each of D shards holds the rows of C / D consecutive slots. Only
`write_rows` and `read_rows` touch them, which move O(batch) bytes between
devices, and `row_sums`, which moves one number per slot. Leaves `[C]`, one
number per slot, are whole on every device. So each rule and each draw is the
same computation everywhere and chooses the same slots, bit for bit, on any
mesh.

The mesh is that of `jax.set_mesh`. Without one, or if its slot axes have size
1, the two functions are a plain scatter and gather.

Leaves `[C, ...]` may live in the memory of the host, see `host_memory.place`.
The host then computes the scatter, the gather and the sums, and only their
results are moved.
"""

import math

import jax
import jax.numpy as jnp

from replay_rl import base
from replay_rl.parallel import host_memory
from replay_rl.parallel import mesh as mesh_lib

# The mesh axes that slots are split over. Other axes hold copies.
SLOT_AXES = mesh_lib.RULES['slots']


def write_rows(
  stored: base.PyTree, slots: base.Array, rows: base.PyTree
) -> base.PyTree:
  """Returns the storage with some rows overwritten; in place if donated.

  Args:
    stored: pytree of `[C, ...]`.
    slots: `[B]` int32 in [0, C], no slot twice. C is skipped.
    rows: the same pytree of `[B, ...]`, split over devices or not.

  Raises:
    ValueError: if the mesh does not divide C.
  """
  axes = _split_axes()
  if not axes:
    return _scatter(stored, slots, rows)
  split, per_slot = _partition(stored)
  split_rows, per_slot_rows = _partition(whole(rows))

  def write_own(stored, slots, rows):
    num_local = stored[0].shape[0]
    # A negative index would count from the end, but `num_local` is dropped.
    slots, is_own = _own(slots, axes, num_local)
    return _scatter(stored, jnp.where(is_own, slots, num_local), rows)

  if split:
    _check(split)
    split = jax.shard_map(
      write_own,
      in_specs=(jax.P(axes), jax.P(), jax.P()),
      out_specs=jax.P(axes),
    )(split, slots, split_rows)
  return _merge(stored, split, _scatter(per_slot, slots, per_slot_rows))


def read_rows(stored: base.PyTree, slots: base.Array) -> base.PyTree:
  """Returns rows, bit for bit as they were written.

  Args:
    stored: pytree of `[C, ...]`.
    slots: `[B]` int32 in [0, C]. C reads the last slot.

  Returns:
    The same pytree of `[B, ...]`. If the slots are split over D devices and D
    divides B, leaves with two or more axes are split over B. All others are
    whole.

  Raises:
    ValueError: if the mesh does not divide C.
  """
  axes = _split_axes()
  if not axes:
    return _gather(stored, slots)
  split, per_slot = _partition(stored)
  is_scattered = slots.shape[0] % _num_shards(axes) == 0

  def read_own(stored, slots):
    num_local = stored[0].shape[0]
    last = num_local * _num_shards(axes) - 1
    slots, is_own = _own(jnp.minimum(slots, last), axes, num_local)

    def read(leaf):
      row_shape = (-1,) + (1,) * (leaf.ndim - 1)
      bits = _to_bits(_gather(leaf, slots))
      # One device has the row and the others add zero. A sum of floats would
      # change -0.0 to 0.0 and a NaN to another NaN.
      bits = jnp.where(is_own.reshape(row_shape), bits, jnp.zeros_like(bits))
      if is_scattered:
        bits = jax.lax.psum_scatter(bits, axes, tiled=True)
      else:
        bits = jax.lax.psum(bits, axes)
      return _from_bits(bits, leaf.dtype)

    return [read(leaf) for leaf in stored]

  if split:
    _check(split)
    split = jax.shard_map(
      read_own,
      in_specs=(jax.P(axes), jax.P()),
      out_specs=jax.P(axes) if is_scattered else jax.P(),
    )(split, slots)
  return _merge(stored, split, _gather(per_slot, slots))


def row_sums(leaf: base.Array) -> base.Array:
  """Returns `[C]`, the sum of each row of a stored leaf `[C, T]`."""
  sums_C = host_memory.where_it_is(lambda rows: jnp.sum(rows, axis=1), leaf)
  return whole(_to_device(sums_C))


def whole(tree: base.PyTree) -> base.PyTree:
  """Makes each leaf whole on every device of the mesh, inside a jit.

  The compiler would otherwise split a computation on `[C]`, which would change
  the order of its sums.
  """
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty or mesh.size == 1:
    return tree
  return jax.tree.map(
    lambda leaf: jax.lax.with_sharding_constraint(leaf, jax.P()), tree
  )


def check_capacity(
  capacity: int, mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh
) -> None:
  """Raises ValueError if the slots cannot be split evenly over a mesh."""
  sizes = {axis: mesh.shape[axis] for axis in SLOT_AXES if axis in mesh.shape}
  num_shards = math.prod(sizes.values())
  if capacity % num_shards:
    shape = ' x '.join(f'{axis} = {size}' for axis, size in sizes.items())
    raise ValueError(
      f'capacity = {capacity}: must be divisible by the {num_shards} shards of '
      f'the mesh, {shape}'
    )


def _split_axes() -> tuple[str, ...]:
  """Returns the axes of the current mesh that slots are split over."""
  mesh = jax.sharding.get_abstract_mesh()
  return tuple(axis for axis in SLOT_AXES if mesh.shape.get(axis, 1) > 1)


def _num_shards(axes: tuple[str, ...]) -> int:
  mesh = jax.sharding.get_abstract_mesh()
  return math.prod(mesh.shape[axis] for axis in axes)


def _own(
  slots_B: base.Array, axes: tuple[str, ...], num_local: int
) -> tuple[base.Array, base.Array]:
  """Returns slots as indices of this shard, and which of them it has."""
  slots_B = slots_B - jax.lax.axis_index(axes) * num_local
  return slots_B, (slots_B >= 0) & (slots_B < num_local)


def _check(split: list[base.Array]) -> None:
  check_capacity(split[0].shape[0], jax.sharding.get_abstract_mesh())


def _partition(
  tree: base.PyTree,
) -> tuple[list[base.Array], list[base.Array]]:
  """Returns the leaves that are split along the slots, and the others."""
  leaves = jax.tree.leaves(tree)
  return (
    [leaf for leaf in leaves if leaf.ndim > 1],
    [leaf for leaf in leaves if leaf.ndim == 1],
  )


def _merge(
  like: base.PyTree, split: list[base.Array], per_slot: list[base.Array]
) -> base.PyTree:
  """Inverts `_partition`."""
  split_leaves, per_slot_leaves = iter(split), iter(per_slot)
  return jax.tree.map(
    lambda leaf: next(split_leaves if leaf.ndim > 1 else per_slot_leaves), like
  )


def _scatter(
  stored: base.PyTree, slots: base.Array, rows: base.PyTree
) -> base.PyTree:
  def put(leaf, slots, new):
    return leaf.at[slots].set(new, mode='drop')

  return jax.tree.map(
    lambda leaf, new: host_memory.where_it_is(put, leaf, slots, new),
    stored,
    rows,
  )


def _gather(stored: base.PyTree, slots: base.Array) -> base.PyTree:
  def take(leaf, slots):
    return leaf.at[slots].get(mode='clip')

  def read(leaf):
    return _to_device(host_memory.where_it_is(take, leaf, slots))

  return jax.tree.map(read, stored)


def _to_device(values: base.Array) -> base.Array:
  if jax.typeof(values).memory_space != host_memory.HOST:
    return values
  return jax.device_put(values, jax.memory.Space.Device)


def _to_bits(values: base.Array) -> base.Array:
  if values.dtype == jnp.bool_:
    return values.astype(jnp.uint8)
  if jnp.issubdtype(values.dtype, jnp.integer):
    return values
  return jax.lax.bitcast_convert_type(
    values, jnp.dtype(f'uint{8 * values.dtype.itemsize}')
  )


def _from_bits(bits: base.Array, dtype: jax.typing.DTypeLike) -> base.Array:
  if dtype == jnp.bool_:
    return bits.astype(jnp.bool_)
  return jax.lax.bitcast_convert_type(bits, dtype)
