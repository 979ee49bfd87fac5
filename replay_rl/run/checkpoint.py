"""Saves and restores a run, with Orbax: atomic, asynchronous, checked.

With many processes all of them call these functions, each writes and reads the
shards of its own devices, and process 0 does what is left. A run is restored
onto the shardings of another one, whatever mesh and processes it was saved by.
"""

import functools
import pathlib
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from replay_rl import base
from replay_rl import rng
from replay_rl.parallel import mesh as mesh_lib
from replay_rl.parallel import processes
from replay_rl.replay import storage
from replay_rl.run import state

# Checkpoints that could not be read are moved here, beside the folder.
DAMAGED = 'damaged_checkpoints'


class DamagedCheckpointWarning(UserWarning):
  """A checkpoint could not be read, and an older one is used."""


def open_folder(folder: pathlib.Path, *, keep: int) -> ocp.CheckpointManager:
  """Returns the checkpoints of a folder; only the newest `keep` stay."""
  return ocp.CheckpointManager(
    folder.resolve(),
    options=ocp.CheckpointManagerOptions(
      max_to_keep=keep,
      create=True,
      cleanup_tmp_directories=True,  # What a killed process had half-written.
    ),
  )


def save(manager: ocp.CheckpointManager, run: state.RunState) -> None:
  """Saves a run under the iterations it has done, in the background.

  Returns once the run has been copied, so that it may then be donated. A
  process that dies meanwhile leaves no half-written checkpoint behind.
  """
  # On the CPU a saved array would be a view of memory that a donated program
  # overwrites while it is being written.
  copy = jax.tree.map(lambda leaf: leaf.copy(), run)
  manager.save(
    _iterations_done(run),
    args=ocp.args.Composite(
      run=ocp.args.StandardSave(copy),
      checksums=ocp.args.JsonSave(checksums(copy)),
    ),
  )


def restore_latest(
  manager: ocp.CheckpointManager, like: state.RunState
) -> state.RunState | None:
  """Returns the newest run that can be read; None if there is none.

  A checkpoint that is damaged is moved aside with a warning, and the one before
  it is used.

  Args:
    manager: where to look.
    like: a run, or `jax.ShapeDtypeStruct`s with shardings, to restore as.

  Raises:
    ValueError: there are checkpoints, but none can be read. Nothing is moved:
      more likely than all being damaged, other code wrote them.
  """
  damaged = {}
  steps = sorted(manager.all_steps(), reverse=True)
  processes.check_equal(
    f'the checkpoints in {manager.directory}',
    steps,
    'all processes must share that folder',
  )
  for step in steps:
    try:
      run = _restore(manager, step, like)
    except Exception as error:  # Orbax and TensorStore raise many kinds.
      damaged[step] = error
      continue
    for bad_step, error in damaged.items():
      _move_aside(manager, bad_step, error)
    return run
  if damaged:
    raise ValueError(
      f'{manager.directory}: none of the checkpoints {sorted(damaged)} can be '
      f'read; remove them to start again. Reason: {damaged[max(damaged)]}'
    )
  return None


def _move_aside(
  manager: ocp.CheckpointManager, step: int, error: Exception
) -> None:
  folder = pathlib.Path(manager.directory)
  target = folder.parent / DAMAGED / f'{step}'
  with processes.together(f'moving {folder / str(step)} aside'):
    if processes.is_main():
      target.parent.mkdir(exist_ok=True)
      while target.exists():
        target = target.with_name(target.name + '-again')
      (folder / str(step)).rename(target)
  manager.reload()
  warnings.warn(
    f'checkpoint {folder / str(step)} is damaged and was moved to {target}; '
    f'an older one is used. Reason: {error}',
    DamagedCheckpointWarning,
    stacklevel=3,
  )


def _restore(
  manager: ocp.CheckpointManager, step: int, like: state.RunState
) -> state.RunState:
  folder = pathlib.Path(manager.directory) / str(step)
  with processes.together(f'reading {folder}'):
    restored = _read(folder, like)
  found = checksums(restored['run'])
  with processes.together(f'checking {folder}'):
    wrong = [
      name
      for name, value in restored['checksums'].items()
      if found[name] != value
    ]
    if wrong:
      raise ValueError(f'checksum differs for {wrong}')
  return restored['run']


def _read(folder: pathlib.Path, like: state.RunState) -> ocp.args.Composite:
  abstract = jax.tree.map(
    lambda leaf: jax.ShapeDtypeStruct(
      leaf.shape, leaf.dtype, sharding=leaf.sharding
    ),
    like,
  )
  # Reading needs no other process. The manager would wait for them, and a
  # process whose share is damaged would not come.
  alone = ocp.options.MultiprocessingOptions(
    primary_host=jax.process_index(), active_processes={jax.process_index()}
  )
  handler = ocp.CompositeCheckpointHandler()
  with ocp.Checkpointer(handler, multiprocessing_options=alone) as reader:
    return reader.restore(
      folder,
      args=ocp.args.Composite(
        run=ocp.args.StandardRestore(abstract),
        checksums=ocp.args.JsonRestore(),
      ),
    )


def _iterations_done(run: state.RunState) -> int:
  # With an axis of seeds, all have done the same number.
  return int(np.max(np.asarray(run.clock.iteration)))


def checksums(tree: base.PyTree) -> dict[str, int]:
  """Returns a checksum of each array, by its path in the tree.

  Computed where the arrays are: what crosses devices is one number per array.
  With many processes all have to call it, and all get the same.

  Args:
    tree: arrays as of `checksum_of_array`.
  """
  leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
  found = np.asarray(
    _checksum_program(_everywhere(tree))([leaf for _, leaf in leaves])
  )
  return {
    jax.tree_util.keystr(path): int(value)
    for (path, _), value in zip(leaves, found, strict=True)
  }


def checksum_of_array(array: base.Array) -> base.Array:
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
  mixed = rng.mix(words ^ (place * jnp.uint32(0x9E3779B9)))
  # Integers, because their sum modulo 2^32 is the same in any order.
  return jnp.sum(mixed, dtype=jnp.uint32)


def _words(array: base.Array) -> base.Array:
  """Returns the bits of each element as a uint32."""
  if array.dtype == jnp.bool_:
    return array.astype(jnp.uint32)
  unsigned = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[array.dtype.itemsize]
  return jax.lax.bitcast_convert_type(array, unsigned).astype(jnp.uint32)


@functools.cache
def _checksum_program(sharding: jax.sharding.Sharding | None):
  return processes.aligned(
    jax.jit(
      lambda leaves: jnp.stack(
        jax.device_put(
          [storage.where_it_is(checksum_of_array, leaf) for leaf in leaves],
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
