"""What a sweep would do: which cells have ended, what shares programs, costs.

Cells with the same programs are a group: one process runs them and compiles
each program once. Executors divide a sweep into its groups.
"""

import contextlib
import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import NamedTuple

from replay_rl import train
from replay_rl.disk import durable
from replay_rl.fit import bounds
from replay_rl.run import build
from replay_rl.run import config as config_lib
from replay_rl.run import entry
from replay_rl.run import logs
from replay_rl.run import packages
from replay_rl.run import schedule
from replay_rl.run import workdir
from replay_rl.sweep import cells as cells_lib
from replay_rl.sweep import sharing
from replay_rl.tasks import task as task_lib

FINISHED = 'finished.json'  # In the folder of a cell.


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


class Ended(NamedTuple):
  """How a cell ended.

  name: of the cell.
  error: what went wrong; None if it finished.
  is_skipped: whether it had finished before.
  seconds: of the process that ran it; None if that process died afterwards.
  """

  name: str
  error: str | None
  is_skipped: bool
  seconds: float | None


class Work(NamedTuple):
  """What an executor is asked to do.

  file: of the sweep.
  out: folder of the sweep.
  planned: the cells to run, some of which may have finished.
  chosen: what chose them, see `choose`; none for all of the sweep.
  settings: of the executor; they follow `--` on the command line.
  say: prints a line.
  allow_code_change: see `train.train`.
  """

  file: pathlib.Path
  out: pathlib.Path
  planned: Sequence[PlannedCell]
  chosen: Sequence[str]
  settings: Sequence[str]
  say: Callable[[str], None]
  allow_code_change: bool


# Returns how the cells ended that it has run, in any order.
Executor = Callable[[Work], list[Ended]]


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
      with built(cell.config) as (task, experiment):
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
        is_finished=is_finished(cell, out / cell.name),
        cost_units=cost_units,
      )
    )
  return planned


def choose(
  planned: Sequence[PlannedCell], chosen: Sequence[str]
) -> list[PlannedCell]:
  """Returns some cells of a sweep, in its order.

  Args:
    planned: all cells of the sweep.
    chosen: names of cells, and numbers of sets of programs, which stand for all
      cells that share them; none for all cells.

  Raises:
    ValueError: no cell has the name or the number.
  """
  names = {one.cell.name for one in planned}
  programs = {str(one.program) for one in planned}
  for text in chosen:
    if text not in names | programs:
      raise ValueError(
        f'--cells = {text!r}: must be the name of a cell, or a number of '
        f'programs from 0 to {len(programs) - 1}, as --dry_run prints them'
      )
  numbers = set(chosen) - names
  return [
    one
    for one in planned
    if not chosen or one.cell.name in chosen or str(one.program) in numbers
  ]


def unfinished_groups(
  planned: Sequence[PlannedCell],
) -> dict[int, list[PlannedCell]]:
  """Returns the cells that have to run, by the number of their programs."""
  groups: dict[int, list[PlannedCell]] = {}
  for one in planned:
    if not one.is_finished:
      groups.setdefault(one.program, []).append(one)
  return groups


def mark_finished(cell: cells_lib.Cell, folder: pathlib.Path) -> None:
  """Writes that a cell has ended.

  Raises:
    durable.WriteError: the file cannot be written.
  """
  durable.write(folder / FINISHED, _mark(cell, folder))


def is_finished(cell: cells_lib.Cell, folder: pathlib.Path) -> bool:
  """Returns whether a cell has ended, with its limits as they are now."""
  path = folder / FINISHED
  return path.exists() and path.read_bytes() == _mark(cell, folder)


def check_finished(
  cell: cells_lib.Cell, folder: pathlib.Path, *, allow_code_change: bool
) -> None:
  """Raises ValueError if the folder holds another run, or one of other code."""
  with built(cell.config) as (task, experiment):
    made_of = train.record(cell.config, experiment, task)
  entry.add_checkpoint(made_of, cell.config)
  workdir.compare(folder, made_of, allow_code_change=allow_code_change)


def reason(error: Exception) -> str:
  """Returns what `Ended` says of an error."""
  if isinstance(error, (ValueError, OSError)):
    return str(error)
  return f'{type(error).__name__}: {error}'


@contextlib.contextmanager
def built(
  config: config_lib.Config,
) -> Iterator[tuple[task_lib.Task | task_lib.TextTask, build.Experiment]]:
  """Builds the task of a cell, which ends with the body, and what uses it."""
  packages.check(config)
  task = build.task(config)
  try:
    yield task, build.experiment(config, task.shape)
  finally:
    task_lib.close(task)


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


def _mark(cell: cells_lib.Cell, folder: pathlib.Path) -> bytes:
  """Returns what says that this config has ended with these metrics."""
  metrics = folder / logs.METRICS
  content = metrics.read_bytes() if metrics.exists() else b''
  config = dataclasses.asdict(cell.config)
  mark = {'config': config, 'metrics': hashlib.sha256(content).hexdigest()}
  return (json.dumps(mark) + '\n').encode()
