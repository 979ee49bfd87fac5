"""Saves and restores a run, with Orbax: atomic, asynchronous, checked.

With many processes, all of them call these functions. Each process writes and
reads the shards of its own devices, and process 0 moves files. A run can be
restored onto another mesh and other processes than it was saved with.
"""

import concurrent.futures
import contextlib
import functools
import glob
import hashlib
import os
import pathlib
import tempfile
import warnings
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
import tensorstore

from replay_rl import base
from replay_rl.disk import durable
from replay_rl.disk import line_file
from replay_rl.disk import tensorstore_memory
from replay_rl.parallel import checksums
from replay_rl.parallel import processes
from replay_rl.run import state

# Folder beside the checkpoints, for those that cannot be read.
DAMAGED = 'damaged_checkpoints'

Marks = Mapping[str, line_file.Mark]  # Of the files of a run, by their names.
# Path of an array in `RunState` -> its shape and type
Layout = Mapping[tuple[str, ...], jax.ShapeDtypeStruct]

tensorstore_memory.hold_flat()


class DamagedCheckpointWarning(UserWarning):
  """A checkpoint could not be read, and an older one is used."""


class Restored(NamedTuple):
  """A run, and how far its files were written when it was saved."""

  run: state.RunState
  marks: Marks


class Checkpoints:
  """The checkpoints of a folder.

  A checkpoint counts once it is written and its list of arrays was read back.
  """

  def __init__(
    self,
    folder: pathlib.Path,
    *,
    keep: int,
    upload: Callable[[int, Marks], None] | None = None,
  ):
    """Opens a folder, and creates it; all but the newest `keep` go.

    Args:
      folder: of the checkpoints.
      keep: how many.
      upload: (iterations done, marks) -> None; copies the folder of the run
        once a checkpoint is written, in a thread. None for no copy.

    Raises:
      ValueError: the folder cannot be used.
    """
    self.folder = folder.resolve()
    if self.folder.exists() and not self.folder.is_dir():
      raise ValueError(
        f'path = {str(self.folder)!r}: must be a folder; move that file away'
      )
    with durable.refusing(self.folder, num_bytes=None):
      self.folder.mkdir(parents=True, exist_ok=True)
      self._alias = _plain_name(self.folder)
      self._manager = ocp.CheckpointManager(
        self._alias,
        options=ocp.CheckpointManagerOptions(
          max_to_keep=keep,
          create=False,
          cleanup_tmp_directories=True,  # A killed process leaves such folders.
        ),
      )
    self._upload = upload
    self._thread = concurrent.futures.ThreadPoolExecutor(1)
    # Returns once the last checkpoint is written; None if it is known.
    self._waiting: Callable[[], None] | None = None

  def steps(self) -> list[int]:
    """Returns the numbers of iterations of the checkpoints, in order."""
    return sorted(self._manager.all_steps())

  def save(self, run: state.RunState, marks: Marks) -> None:
    """Saves a run in the background, under its number of iterations.

    Returns after a copy of the run, so that a program may then donate the run.
    If the process dies before the end, no half-written checkpoint remains.

    Args:
      run: the run.
      marks: of the files that belong to it; only those of process 0 count.

    Raises:
      durable.WriteError: this or the checkpoint before cannot be written.
      Exception: see `wait`.
    """
    self.wait()
    # On the CPU, Orbax writes from the array's own memory, which a program that
    # donates the run would overwrite.
    copy = jax.tree.map(lambda leaf: leaf.copy(), run)
    leaves = jax.tree.leaves(copy)
    step = int(np.max(np.asarray(run.clock.iteration)))  # The same for all.
    num_bytes = sum(leaf.nbytes for leaf in leaves)
    self._waiting = functools.partial(
      self._finish, step, num_arrays=len(leaves), num_bytes=num_bytes
    )
    with durable.refusing(self.folder / str(step), num_bytes=num_bytes):
      is_saved = self._manager.save(
        step,
        args=ocp.args.Composite(
          run=ocp.args.StandardSave(copy),
          checksums=ocp.args.JsonSave(checksums.of_tree(copy)),
          marks=ocp.args.JsonSave(dict(marks)),
        ),
      )
    if not is_saved:
      raise durable.WriteError(
        f'path = {str(self.folder / str(step))!r}: must be a new checkpoint, '
        f'after {self.steps()}'
      )
    if self._upload is not None:
      self._waiting = self._thread.submit(
        self._finish_and_upload, self._waiting, step, dict(marks)
      ).result

  def clear(self) -> None:
    """Deletes all checkpoints of the folder."""
    self.wait()
    for step in self.steps():
      self._manager.delete(step)

  def wait(self) -> None:
    """Returns once the last checkpoint is written and its list is read back.

    It is then also copied, if it is to be.

    Raises:
      durable.WriteError: it cannot be written. What was there before remains.
      Exception: of `upload`.
    """
    if self._waiting is not None:
      finish, self._waiting = self._waiting, None
      finish()

  def _finish_and_upload(
    self, finish: Callable[[], None], step: int, marks: Marks
  ) -> None:
    finish()
    assert self._upload is not None
    self._upload(step, marks)

  def _finish(self, step: int, *, num_arrays: int, num_bytes: int) -> None:
    folder = self.folder / str(step)
    # What was written of it goes when the folder is opened again.
    with durable.refusing(folder, num_bytes=num_bytes):
      self._manager.wait_until_finished()
    with processes.together('reading back a checkpoint'):
      if processes.is_main():
        _check_arrays(self._alias / str(step), num_arrays)

  def restore_latest(
    self, like: state.RunState, check_files: Callable[[Marks], None]
  ) -> Restored | None:
    """Returns the newest run that can be continued; None without a checkpoint.

    Moves newer checkpoints to `DAMAGED` with a warning.

    Args:
      like: a run, or its `jax.ShapeDtypeStruct`s with shardings.
      check_files: raises ValueError if the files of the run do not begin with
        what was marked; only process 0 calls it.

    Raises:
      ValueError: there are checkpoints, but none can be continued. Then none is
        moved: other code may have written them, or a file can be restored.
    """
    damaged = {}
    steps = self.steps()
    processes.check_equal(
      'the list of checkpoints', steps, 'all processes must share that folder'
    )
    for step in reversed(steps):
      try:
        restored = _restore(self._alias / str(step), like, check_files)
      except Exception as error:  # Orbax and TensorStore raise many types.
        damaged[step] = error
        continue
      for bad_step, error in damaged.items():
        self._move_aside(bad_step, error)
      return restored
    if damaged:
      raise ValueError(
        f'checkpoints of {self.folder} = {sorted(damaged)}: must be readable '
        'and fit the files beside them, one at least, or be removed to start '
        f'again ({durable.reason(damaged[max(damaged)])})'
      )
    return None

  def close(self) -> None:
    """Ends the threads of Orbax; call `wait` before, to have what was saved."""
    self._thread.shutdown()
    # A save that has failed would fail here again.
    with contextlib.suppress(Exception):
      self._manager.close()
    if self._alias != self.folder:
      self._alias.unlink(missing_ok=True)

  def _move_aside(self, step: int, error: Exception) -> None:
    target = self.folder.parent / DAMAGED / f'{step}'
    with processes.together('moving a checkpoint aside'):
      if processes.is_main():
        target.parent.mkdir(exist_ok=True)
        while target.exists():
          target = target.with_name(target.name + '-again')
        (self.folder / str(step)).rename(target)
    self._manager.reload()
    warnings.warn(
      f'checkpoint {self.folder / str(step)} is damaged and was moved to '
      f'{target}; an older one is used ({durable.reason(error)})',
      DamagedCheckpointWarning,
      stacklevel=3,
    )


def read(
  folder: pathlib.Path,
  step: int,
  like: state.RunState,
  check_files: Callable[[Marks], None] = lambda marks: None,
) -> Restored:
  """Returns the run of one checkpoint, and writes nothing.

  Args:
    folder: of the checkpoints.
    step: the number of iterations of the checkpoint.
    like, check_files: see `Checkpoints.restore_latest`.

  Raises:
    ValueError: the checkpoint cannot be read, or does not fit.
  """
  alias = _plain_name(folder.resolve())
  try:
    return _restore(alias / str(step), like, check_files)
  except Exception as error:  # Orbax and TensorStore raise many types.
    raise ValueError(
      f'checkpoint = {str(folder / str(step))!r}: must be readable and fit the '
      f'config beside it ({durable.reason(error)})'
    ) from error
  finally:
    if alias != folder.resolve():
      alias.unlink(missing_ok=True)


def layout(folder: pathlib.Path, step: int) -> Layout:
  """Returns the layout of the run of one checkpoint.

  Args:
    folder, step: see `read`.

  Raises:
    ValueError: the checkpoint cannot be read.
  """
  where = folder.resolve() / str(step) / 'run'
  try:
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
      return layout_of(reader.metadata(where).item_metadata.tree)
  except Exception as error:  # Orbax and TensorStore raise many types.
    raise ValueError(
      f'checkpoint = {str(where.parent)!r}: must be readable '
      f'({durable.reason(error)})'
    ) from error


def layout_of(tree: base.PyTree) -> Layout:
  """Returns the layout of a run, or of what Orbax says of one."""
  leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
  return {
    tuple(_name(entry) for entry in path): jax.ShapeDtypeStruct(
      leaf.shape, leaf.dtype
    )
    for path, leaf in leaves
  }


def _name(entry: Any) -> str:
  """Returns the key of a dict, the field of a record or a place in a list."""
  for kind in ('key', 'name', 'idx'):
    if hasattr(entry, kind):
      return str(getattr(entry, kind))
  raise TypeError(f'entry = {entry!r}: must be of a dict, a record or a list')


def _plain_name(folder: pathlib.Path) -> pathlib.Path:
  """Returns another name of a folder if Orbax would misread its own.

  Orbax looks for the files of a checkpoint with a pattern that begins with the
  name of the folder. A `[` there finds nothing, and the arrays are lost.
  TensorStore takes no name that Python could not decode.
  """
  name = os.fsencode(folder)
  if glob.escape(name) == name and str(folder).encode(errors='ignore') == name:
    return folder
  digest = hashlib.sha256(name).hexdigest()[:16]
  # The same in all processes of a host, because Orbax may compare it.
  link = (
    pathlib.Path(tempfile.gettempdir()) / f'replay_rl-{os.getuid()}-{digest}'
  )
  try:
    link.symlink_to(folder, target_is_directory=True)
  except FileExistsError:
    if link.resolve() != folder:
      raise ValueError(
        f'path = {str(link)!r}: must be a link to {str(folder)!r}; remove it'
      ) from None
  return link


def _check_arrays(folder: pathlib.Path, num_arrays: int) -> None:
  """Raises WriteError if the manifest of a checkpoint lacks arrays."""
  spec = {
    'driver': 'ocdbt',
    'base': {'driver': 'file', 'path': f'{folder}/run/'},
  }
  keys = tensorstore.KvStore.open(spec).result().list().result()
  actual = sum(key.endswith(b'.zarray') for key in keys)
  if actual != num_arrays:
    raise durable.WriteError(
      f'arrays of {folder} = {actual}: must be {num_arrays}; the checkpoint is '
      'not whole'
    )


def _restore(
  folder: pathlib.Path,
  like: state.RunState,
  check_files: Callable[[Marks], None],
) -> Restored:
  with processes.together('reading a checkpoint'):
    restored = _read(folder, like)
    marks = {
      name: line_file.Mark(*mark) for name, mark in restored['marks'].items()
    }
    if processes.is_main():
      check_files(marks)
  sums = checksums.of_tree(restored['run'])
  with processes.together('checking a checkpoint'):
    saved = restored['checksums'].items()
    wrong = [name for name, value in saved if sums[name] != value]
    if wrong:
      raise ValueError(f'wrong checksums = {wrong}: must be none')
  return Restored(restored['run'], marks)


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
        marks=ocp.args.JsonRestore(),
      ),
    )
