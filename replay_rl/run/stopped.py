"""A run that was stopped within a generation: where it is saved and read."""

import contextlib
import pathlib
from collections.abc import Callable

import jax
import numpy as np

from replay_rl import base
from replay_rl.run import checkpoint
from replay_rl.run import state

FOLDER = 'stopped'


def restore(
  workdir: pathlib.Path,
  run: state.RunState,
  restored: checkpoint.Restored | None,
  stack: contextlib.ExitStack,
  *,
  in_flight: base.PyTree | None,
  check_files: Callable[[checkpoint.Marks], None],
  upload: Callable[[int, checkpoint.Marks], None] | None,
) -> tuple[checkpoint.Checkpoints | None, checkpoint.Restored | None]:
  """Returns where to save such a run, and where the run begins.

  Args:
    workdir: the folder of the run.
    run: a run between cycles, for its shapes.
    restored: the newest checkpoint between cycles; None if there is none.
    stack: closes the folder.
    in_flight: shapes of the generation in progress, with shardings; None if the
      run stops only between cycles.
    check_files: see `checkpoint.Checkpoints.restore_latest`.
    upload: see `checkpoint.Checkpoints`.

  Raises:
    ValueError: the run was stopped within a generation, and cannot go on there.
  """
  folder = workdir / FOLDER
  newest = -1 if restored is None else _iteration(restored.run)
  if in_flight is None:
    steps = [int(x.name) for x in folder.glob('*') if x.name.isdigit()]
    if restored is not None and max(steps, default=-1) >= newest:
      raise ValueError(
        f'path = {str(folder)!r}: must be continued with the text.judge_every '
        'and the one process that stopped within a generation, or be removed '
        f'to continue after {newest} iterations'
      )
    return None, restored
  saved = stack.enter_context(
    contextlib.closing(checkpoint.Checkpoints(folder, keep=1, upload=upload))
  )
  if restored is None or max(saved.steps(), default=-1) < newest:
    saved.clear()
    return saved, restored
  like = run._replace(in_flight=in_flight)
  return saved, saved.restore_latest(like, check_files)


def _iteration(run: state.RunState) -> int:
  return int(np.max(jax.device_get(run.clock.iteration)))
