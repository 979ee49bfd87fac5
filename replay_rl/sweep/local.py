"""Runs the cells of a sweep one after the other, in this process.

Cells with the same programs run one after the other and share them, so that
each program is compiled once. A finished cell is skipped, an unfinished one
continues from its checkpoint, and one that fails does not stop the others.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import pathlib
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import NamedTuple

from replay_rl import train
from replay_rl.disk import durable
from replay_rl.fit import bounds
from replay_rl.run import build
from replay_rl.run import config as config_lib
from replay_rl.run import logs
from replay_rl.run import maker as maker_lib
from replay_rl.run import programs as programs_lib
from replay_rl.run import schedule
from replay_rl.run import state
from replay_rl.run import workdir
from replay_rl.sweep import cells as cells_lib
from replay_rl.sweep import sharing
from replay_rl.tasks import task as task_lib

FINISHED = 'finished.json'  # In the folder of a cell.


class Ended(NamedTuple):
  """How a cell ended.

  name: of the cell.
  error: what went wrong; None if it finished.
  is_skipped: whether it had finished before.
  seconds: of this process.
  """

  name: str
  error: str | None
  is_skipped: bool
  seconds: float


class PlannedCell(NamedTuple):
  """What a sweep would do.

  cell: the cell.
  program: number of its set of programs, from 0.
  is_finished: whether it would be skipped.
  cost_units: of its seeds together, at most; see `ledger.prices`.
  """

  cell: cells_lib.Cell
  program: int
  is_finished: bool
  cost_units: float


def run(
  cells: Sequence[cells_lib.Cell],
  out: pathlib.Path,
  *,
  say: Callable[[str], None],
  allow_code_change: bool,
) -> list[Ended]:
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
  ordered = sorted(plan(cells, out), key=lambda one: one.program)
  shared: dict[int, programs_lib.Programs] = {}
  ended: list[Ended] = []
  for number, planned in enumerate(ordered, start=1):
    for program in [x for x in shared if x != planned.program]:
      del shared[program]  # No later cell needs it.
    one = _run_cell(
      planned.cell,
      out / planned.cell.name,
      is_finished=planned.is_finished,
      make_programs=functools.partial(_shared, shared, planned.program),
      allow_code_change=allow_code_change,
    )
    ended.append(one)
    say(_line(one, number, ordered, ended))
  return ended


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


@contextlib.contextmanager
def _built(
  config: config_lib.Config,
) -> Iterator[tuple[task_lib.Task | task_lib.TextTask, build.Experiment]]:
  """Builds the task of a cell, which ends with the body, and what uses it."""
  task = build.task(config)
  try:
    yield task, build.experiment(config, task.shape)
  finally:
    task_lib.close(task)


def plan(
  cells: Sequence[cells_lib.Cell], out: pathlib.Path
) -> list[PlannedCell]:
  """Returns what a sweep would do, without training anything.

  Raises:
    ValueError: a setting of a cell is not allowed; names the cell.
  """
  keys: dict[str, int] = {}
  planned = []
  for cell in cells:
    try:
      with _built(cell.config) as (task, experiment):
        key = sharing.key(cell.config, experiment)
        cost_units = _cost(cell.config, experiment)
    except ValueError as error:
      raise ValueError(f'cell {cell.name!r}: {error}') from error
    if not isinstance(task, task_lib.Task):
      key += cell.name  # Its programs call the verifier of its own task.
    planned.append(
      PlannedCell(
        cell=cell,
        program=keys.setdefault(key, len(keys)),
        is_finished=_is_finished(cell, out / cell.name),
        cost_units=cost_units,
      )
    )
  return planned


def _cost(config: config_lib.Config, experiment: build.Experiment) -> float:
  """Returns the most that all seeds cost together, in cost units."""
  iterations = config.num_iterations
  updates = schedule.mean_updates(
    experiment.schedule, min(iterations, schedule.MAX_CYCLES)
  )
  each = bounds.replay(
    experiment.parts, updates_per_iteration=updates, mu=config.mu
  ).cost_units
  limits = [each * iterations]
  if 'stop' in experiment.chosen:
    for name, _, values, _ in experiment.chosen['stop'].program:
      if name == 'max_cost':
        # It ends after the iteration that reaches the limit.
        limits.append(dict(values)['cost_units'] + each)
  return config.num_seeds * min(limits)


def _run_cell(
  cell: cells_lib.Cell,
  folder: pathlib.Path,
  *,
  is_finished: bool,
  make_programs: train.MakePrograms,
  allow_code_change: bool,
) -> Ended:
  started = time.perf_counter()
  error = None
  try:
    if is_finished:
      _check_finished(cell, folder, allow_code_change=allow_code_change)
    else:
      train.train(
        cell.config,
        folder,
        make_programs=make_programs,
        allow_code_change=allow_code_change,
      )
      durable.write(folder / FINISHED, _mark(cell, folder))
  except (ValueError, OSError) as raised:
    error = str(raised)
  except Exception as raised:  # A user's function or a device may raise any.
    error = f'{type(raised).__name__}: {raised}'
  return Ended(cell.name, error, is_finished, time.perf_counter() - started)


def _mark(cell: cells_lib.Cell, folder: pathlib.Path) -> bytes:
  """Returns what says that this config has ended with these metrics."""
  metrics = folder / logs.METRICS
  content = metrics.read_bytes() if metrics.exists() else b''
  config = dataclasses.asdict(cell.config)
  mark = {'config': config, 'metrics': hashlib.sha256(content).hexdigest()}
  return (json.dumps(mark) + '\n').encode()


def _is_finished(cell: cells_lib.Cell, folder: pathlib.Path) -> bool:
  """Returns whether a cell has ended, with its limits as they are now."""
  path = folder / FINISHED
  return path.exists() and path.read_bytes() == _mark(cell, folder)


def _check_finished(
  cell: cells_lib.Cell, folder: pathlib.Path, *, allow_code_change: bool
) -> None:
  """Raises ValueError if the folder holds another run, or one of other code."""
  with _built(cell.config) as (task, experiment):
    made_of = train.record(cell.config, experiment, task)
  train.add_checkpoint(made_of, cell.config)
  workdir.compare(folder, made_of, allow_code_change=allow_code_change)


def _line(
  one: Ended,
  number: int,
  planned: Sequence[PlannedCell],
  ended: Sequence[Ended],
) -> str:
  """Returns what is said of a cell, with the time left for the others."""
  how = f'failed: {one.error}'
  if one.error is None:
    how = 'had finished before' if one.is_skipped else f'{one.seconds:.0f} s'
  left = ''
  rest = sum(x.cost_units for x in planned[number:] if not x.is_finished)
  done = [
    (x.seconds, y.cost_units)
    for x, y in zip(ended, planned, strict=False)
    if not x.is_skipped and x.error is None
  ]
  if rest and done:
    seconds, cost = map(sum, zip(*done, strict=True))
    left = f'; about {rest * seconds / cost / 60:.0f} min left'
  return f'[{number}/{len(planned)}] {one.name}: {how}{left}'
