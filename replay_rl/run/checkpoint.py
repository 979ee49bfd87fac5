"""Saves and restores a run, with Orbax: atomic, asynchronous, checked.

With many processes, all of them call these functions. Each process writes and
reads the shards of its own devices, and process 0 moves files. A run can be
restored onto another mesh and other processes than it was saved with.
"""

import pathlib
import warnings

import jax
import numpy as np
import orbax.checkpoint as ocp

from replay_rl.parallel import checksums
from replay_rl.parallel import processes
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
      checksums=ocp.args.JsonSave(checksums.of_tree(copy)),
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
  sums = checksums.of_tree(restored['run'])
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
