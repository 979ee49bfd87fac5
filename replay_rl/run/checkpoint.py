"""Saves and restores a run, with Orbax: atomic, asynchronous, checked.

With many processes all of them call these functions, each writes and reads the
shards of its own devices, and process 0 does what is left. A run is restored
onto the shardings of another one, whatever mesh and processes it was saved by.
"""

import pathlib
import warnings

import jax
import numpy as np
import orbax.checkpoint as ocp

from replay_rl.parallel import processes
from replay_rl.run import checksum
from replay_rl.run import iteration

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


def save(manager: ocp.CheckpointManager, run: iteration.RunState) -> None:
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
      checksums=ocp.args.JsonSave(checksum.of_leaves(copy)),
    ),
  )


def restore_latest(
  manager: ocp.CheckpointManager, like: iteration.RunState
) -> iteration.RunState | None:
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
  manager: ocp.CheckpointManager, step: int, like: iteration.RunState
) -> iteration.RunState:
  folder = pathlib.Path(manager.directory) / str(step)
  with processes.together(f'reading {folder}'):
    restored = _read(folder, like)
  found = checksum.of_leaves(restored['run'])
  with processes.together(f'checking {folder}'):
    wrong = [
      name
      for name, value in restored['checksums'].items()
      if found[name] != value
    ]
    if wrong:
      raise ValueError(f'checksum differs for {wrong}')
  return restored['run']


def _read(folder: pathlib.Path, like: iteration.RunState) -> ocp.args.Composite:
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


def _iterations_done(run: iteration.RunState) -> int:
  # With an axis of seeds, all have done the same number.
  return int(np.max(np.asarray(run.iteration)))
