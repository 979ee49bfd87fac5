"""Saves and restores a run, with Orbax: atomic, asynchronous, checked.

With many processes, all of them call these functions. Each process writes and
reads the shards of its own devices, and process 0 moves files. A run can be
restored onto another mesh and other processes than it was saved with.
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

# Folder beside the checkpoints, for those that cannot be read.
DAMAGED = 'damaged_checkpoints'


class DamagedCheckpointWarning(UserWarning):
  """A checkpoint could not be read, and an older one is used."""


def open_folder(folder: pathlib.Path, *, keep: int) -> ocp.CheckpointManager:
  """Returns the checkpoints of a folder; all but the newest `keep` go."""
  return ocp.CheckpointManager(
    folder.resolve(),
    options=ocp.CheckpointManagerOptions(
      max_to_keep=keep,
      create=True,
      cleanup_tmp_directories=True,  # A killed process leaves such folders.
    ),
  )


def save(manager: ocp.CheckpointManager, run: state.RunState) -> None:
  """Saves a run in the background, under its number of iterations.

  Returns after a copy of the run, so that a program may then donate the run. If
  the process dies before the end, no half-written checkpoint remains.
  """
  # On the CPU, Orbax writes from the array's own memory, which a program that
  # donates the run would overwrite.
  copy = jax.tree.map(lambda leaf: leaf.copy(), run)
  manager.save(
    int(np.max(np.asarray(run.clock.iteration))),  # The same for all seeds.
    args=ocp.args.Composite(
      run=ocp.args.StandardSave(copy),
      checksums=ocp.args.JsonSave(checksums(copy)),
    ),
  )


def restore_latest(
  manager: ocp.CheckpointManager, like: state.RunState
) -> state.RunState | None:
  """Returns the newest run that can be read; None without a checkpoint.

  Moves newer checkpoints, which are damaged, to `DAMAGED` with a warning.

  Args:
    manager: the checkpoints.
    like: a run, or its `jax.ShapeDtypeStruct`s with shardings.

  Raises:
    ValueError: there are checkpoints, but none can be read. Then none is moved,
      because probably other code wrote them.
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
    except Exception as error:  # Orbax and TensorStore raise many types.
      damaged[step] = error
      continue
    for bad_step, error in damaged.items():
      _move_aside(manager, bad_step, error)
    return run
  if damaged:
    raise ValueError(
      f'checkpoints of {manager.directory} = {sorted(damaged)}: must be '
      'readable, one at least, or be removed to start again '
      f'({damaged[max(damaged)]})'
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
    f'an older one is used ({error})',
    DamagedCheckpointWarning,
    stacklevel=3,
  )


def _restore(
  manager: ocp.CheckpointManager, step: int, like: state.RunState
) -> state.RunState:
  folder = pathlib.Path(manager.directory) / str(step)
  with processes.together(f'reading {folder}'):
    restored = _read(folder, like)
  sums = checksums(restored['run'])
  with processes.together(f'checking {folder}'):
    saved = restored['checksums'].items()
    wrong = [name for name, value in saved if sums[name] != value]
    if wrong:
      raise ValueError(f'wrong checksums = {wrong}: must be none')
  return restored['run']


def _read(folder: pathlib.Path, like: state.RunState) -> ocp.args.Composite:
  abstract = jax.tree.map(
    lambda leaf: jax.ShapeDtypeStruct(
      leaf.shape, leaf.dtype, sharding=leaf.sharding
    ),
    like,
  )
  # The manager would wait for all processes, also for one that fails because
  # its shards are damaged. This reader waits for none.
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


def checksums(tree: base.PyTree) -> dict[str, int]:
  """Returns a checksum of each array, by its path in the tree.

  Each device sums its own shards, and one number per array goes to the host.
  All processes must call it, and all get the same result.

  Args:
    tree: arrays that `checksum_of_array` accepts.
  """
  leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
  arrays = [leaf for _, leaf in leaves]
  sharding = None  # On every device, where the arrays are on a mesh.
  for leaf in arrays:
    if isinstance(getattr(leaf, 'sharding', None), jax.sharding.NamedSharding):
      sharding = mesh_lib.whole(leaf.sharding.mesh)
      break
  sums = np.asarray(_checksum_program(sharding)(arrays)).tolist()
  paths = [jax.tree_util.keystr(path) for path, _ in leaves]
  return dict(zip(paths, sums, strict=True))


def checksum_of_array(array: base.Array) -> base.Array:
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
