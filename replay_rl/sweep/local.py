"""Runs the cells of a sweep in this process: --executor=local, the default.

    python -m replay_rl.sweep ...
    python -m replay_rl.sweep ... -- --lockstep=16

Cells with the same programs run one after the other and share them, so that
each program is compiled once. With `--lockstep`, so many of them run at a time,
see `lockstep`. A finished cell is skipped, an unfinished one continues from its
checkpoint, and one that fails does not stop the others.
"""

import functools
import pathlib
import time
from collections.abc import Callable
from collections.abc import Sequence

from absl import flags

from replay_rl import train
from replay_rl.run import maker as maker_lib
from replay_rl.run import programs as programs_lib
from replay_rl.run import state
from replay_rl.sweep import cells as cells_lib
from replay_rl.sweep import lockstep
from replay_rl.sweep import planning
from replay_rl.sweep import progress as progress_lib
from replay_rl.tasks import task as task_lib


def execute(work: planning.Work) -> list[planning.Ended]:
  """Runs the cells in this process; see `planning.Executor`.

  Raises:
    ValueError: a setting is wrong, or the cells cannot run in lockstep.
  """
  num_cells = _num_cells(work.settings)
  if num_cells is None:
    return _run(
      work.planned,
      work.out,
      say=work.say,
      allow_code_change=work.allow_code_change,
    )
  groups = [
    work._replace(planned=group)
    for group in planning.unfinished_groups(work.planned).values()
  ]
  for group in groups:
    lockstep.check(group, num_cells=num_cells)
  progress = progress_lib.Progress(work.planned, work.out, work.say)
  for one in check(work):
    progress.add(one)
  for group in groups:
    for one in lockstep.run(group, num_cells=num_cells):
      progress.add(one)
  return progress.ended


def _num_cells(settings: Sequence[str]) -> int | None:
  """Returns how many cells run in lockstep; None for one after the other.

  Raises:
    ValueError: a setting is wrong.
  """
  own = flags.FlagValues()
  flags.DEFINE_integer(
    'lockstep', None, 'Cells at a time.', lower_bound=2, flag_values=own
  )
  try:
    own(['local', *settings])
  except flags.Error as error:
    raise ValueError(f'{error} (after --, for --executor=local)') from error
  return own['lockstep'].value


def check(work: planning.Work) -> list[planning.Ended]:
  """Returns the finished cells, with an error for those of other code."""
  return _run(
    [one for one in work.planned if one.is_finished],
    work.out,
    say=lambda _: None,
    allow_code_change=work.allow_code_change,
  )


def run(
  cells: Sequence[cells_lib.Cell],
  out: pathlib.Path,
  *,
  say: Callable[[str], None],
  allow_code_change: bool,
) -> list[planning.Ended]:
  """Trains all cells, each in a folder of its own below `out`.

  Args:
    cells: with different names. All are checked before the first one starts.
    out: folder of the sweep.
    say: prints a line.
    allow_code_change: see `train.train`.

  Returns:
    How each cell ended, in the order in which they ran.

  Raises:
    ValueError: a setting of a cell is not allowed.
    SystemExit: after a signal, when the running cell has saved a checkpoint.
  """
  return _run(
    planning.plan(cells, out),
    out,
    say=say,
    allow_code_change=allow_code_change,
  )


def _run(
  planned: Sequence[planning.PlannedCell],
  out: pathlib.Path,
  *,
  say: Callable[[str], None],
  allow_code_change: bool,
) -> list[planning.Ended]:
  progress = progress_lib.Progress(planned, out, say)
  shared: dict[int, programs_lib.Programs] = {}
  for one in sorted(planned, key=lambda one: one.program):
    for program in [x for x in shared if x != one.program]:
      del shared[program]  # No later cell needs it.
    progress.add(
      _run_cell(
        one.cell,
        out / one.cell.name,
        is_finished=one.is_finished,
        make_programs=functools.partial(_shared, shared, one.program),
        allow_code_change=allow_code_change,
      )
    )
  return progress.ended


def _shared(
  shared: dict[int, programs_lib.Programs],
  program: int,
  parts: state.Parts,
  task: task_lib.Task | task_lib.TextTask,
  settings: maker_lib.Settings,
) -> programs_lib.Programs:
  """Returns programs of `shared`, or new ones, which it adds."""
  if program not in shared:
    shared[program] = programs_lib.build(parts, task, settings)
  return shared[program]


def _run_cell(
  cell: cells_lib.Cell,
  folder: pathlib.Path,
  *,
  is_finished: bool,
  make_programs: train.MakePrograms,
  allow_code_change: bool,
) -> planning.Ended:
  started = time.perf_counter()
  error = None
  try:
    if is_finished:
      planning.check_finished(cell, folder, allow_code_change=allow_code_change)
    else:
      train.train(
        cell.config,
        folder,
        make_programs=make_programs,
        allow_code_change=allow_code_change,
      )
      planning.mark_finished(cell, folder)
  except Exception as raised:  # A user's function or a device may raise any.
    error = planning.reason(raised)
  seconds = time.perf_counter() - started
  return planning.Ended(cell.name, error, is_finished, seconds)
