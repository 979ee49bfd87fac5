"""Run folders, read into arrays and checked. Nothing is computed or drawn.

A half-written last line and an iteration without all of its seeds, which a
stopped run leaves behind, are left out with a warning on standard error. All
else that is wrong in a file is a ValueError with its place.
"""

import json
import math
import pathlib
import sys
from typing import Any
from typing import NamedTuple

import numpy as np

STEPS = 'learner_step'
TOKENS = 'ledger/generated_tokens'
COST = 'ledger/cost_units'
SECONDS = 'timing/cumulative_seconds'  # Made here, from timing.jsonl.

# Running totals: what a curve can be drawn against.
BUDGETS = (STEPS, TOKENS, COST)
REQUIRED = ('iteration', 'seed', 'reward', *BUDGETS)


class Run(NamedTuple):
  """What one run folder holds: one arm, I iterations of S seeds.

  name: the arm, unique within a report.
  config: the resolved configuration, nested.
  versions: package -> version, None where it is not installed.
  commit, hardware: as the trainer wrote them.
  seeds: `[S]` int64, increasing.
  iterations: `[I]` int64, consecutive.
  values: key -> `[S, I]` float64, NaN where absent or null. `SECONDS` counts
    the whole program, so all seeds have the same.
  histograms: key without 'histogram/' -> `[N]` int64, sums over the run.
  seconds: `[I]` float64, wall-clock of each iteration; NaN where unknown.
  is_first: `[I]` bool, first iteration of a process, with its compilation.
  """

  name: str
  config: dict[str, Any]
  versions: dict[str, str | None]
  commit: str
  hardware: str
  seeds: np.ndarray
  iterations: np.ndarray
  values: dict[str, np.ndarray]
  histograms: dict[str, np.ndarray]
  seconds: np.ndarray
  is_first: np.ndarray

  def column(self, key: str) -> np.ndarray:
    """Returns `[S, I]` values, all NaN if the run never wrote the key."""
    shape = (len(self.seeds), len(self.iterations))
    return self.values.get(key, np.full(shape, np.nan))


def read_all(folders: list[str]) -> list[Run]:
  """Reads run folders; the runs of one name get the folder's path added.

  Raises:
    ValueError: if there is no folder, one is given twice, or one is wrong.
  """
  if not folders:
    raise ValueError('Give at least one run folder.')
  paths = [pathlib.Path(folder) for folder in folders]
  for index, path in enumerate(paths):
    if path.resolve() in [other.resolve() for other in paths[:index]]:
      raise ValueError(f'Run folder {path} is given twice.')
  found = [read(folder) for folder in folders]
  names = [run.name for run in found]
  return [
    run._replace(name=f'{run.name} ({path})')
    if names.count(run.name) > 1
    else run
    for run, path in zip(found, paths, strict=True)
  ]


def read(folder: str) -> Run:
  """Reads config.json, metrics.jsonl and, if there is one, timing.jsonl.

  Args:
    folder: a run folder, as the trainer writes it.

  Returns:
    The run. Its name is the configuration's, else the folder's.

  Raises:
    ValueError: if a file or a required key is missing, or a value is wrong;
      names file, line and key.
  """
  path = pathlib.Path(folder)
  header = _read_header(path / 'config.json')
  rows, histograms = _read_metrics(path / 'metrics.jsonl')
  seeds = sorted({seed for _, seed in rows})
  iterations = sorted({iteration for iteration, _ in rows})
  keys = sorted({key for row in rows.values() for key in row})
  table = [[rows[i, s] for i in iterations] for s in seeds]
  values = {
    key: np.array([[row.get(key, np.nan) for row in line] for line in table])
    for key in keys
  }
  _check_totals(path / 'metrics.jsonl', values, iterations)
  seconds, is_first = _read_timing(path / 'timing.jsonl', iterations)
  shape = (len(seeds), len(iterations))
  values[SECONDS] = np.broadcast_to(np.cumsum(seconds), shape)
  return Run(
    name=str(header['config'].get('name') or path.resolve().name),
    config=header['config'],
    versions=header.get('versions') or {},
    commit=str(header.get('commit') or 'unknown'),
    hardware=str(header.get('hardware') or 'unknown'),
    seeds=np.array(seeds),
    iterations=np.array(iterations),
    values=values,
    histograms=histograms,
    seconds=seconds,
    is_first=is_first,
  )


def _read_header(path: pathlib.Path) -> dict[str, Any]:
  if not path.is_file():
    raise ValueError(f'{path} is missing.')
  try:
    header = json.loads(path.read_bytes())
  except ValueError as error:
    raise ValueError(f'{path} is not valid JSON: {error}') from None
  for key in ('config', 'versions'):
    default = None if key == 'config' else {}
    found = header.get(key, default) if isinstance(header, dict) else None
    if not isinstance(found, dict):
      raise ValueError(f'{path}: {key!r} must be an object.')
  return header


def read_lines(path: pathlib.Path) -> list[tuple[str, dict[str, Any]]]:
  """Returns (place in the file, record) of each line of a JSON Lines file.

  A half-written last line is left out with a warning.

  Raises:
    ValueError: if the file is missing or a line is not an object.
  """
  if not path.is_file():
    raise ValueError(f'{path} is missing.')
  *lines, rest = path.read_bytes().split(b'\n')
  records = []
  for number, line in enumerate([*lines, rest] if rest else lines, start=1):
    place = f'{path}:{number}'
    try:
      record = json.loads(line)
    except ValueError as error:
      if number > len(lines):
        warn(f'{place}: the half-written last line is left out.')
        break
      raise ValueError(f'{place} is not valid JSON: {error}') from None
    if not isinstance(record, dict):
      raise ValueError(f'{place} must be an object, is {record!r}.')
    records.append((place, record))
  return records


def _read_metrics(
  path: pathlib.Path,
) -> tuple[dict[tuple[int, int], dict[str, float]], dict[str, np.ndarray]]:
  """Returns numbers by (iteration, seed), and histograms summed over all."""
  rows = {}
  counts = {}
  lines = {}
  for place, record in read_lines(path):
    for key in REQUIRED:
      check_number(place, record, key)
    where = (
      whole_number(place, record, 'iteration'),
      whole_number(place, record, 'seed'),
    )
    # A run resumed from a checkpoint repeats iterations, bit for bit.
    line = json.dumps(record, sort_keys=True)
    if lines.setdefault(where, line) != line:
      raise ValueError(
        f'{place}: iteration {where[0]} of seed {where[1]} is there before, '
        'with other values.'
      )
    rows[where] = _numbers(place, record)
    counts[where] = _counts(place, record)

  seeds = {seed for _, seed in rows}
  last = max((iteration for iteration, _ in rows), default=-1)
  if not all((last, seed) in rows for seed in seeds):
    warn(f'{path}: iteration {last} lacks some seeds and is left out.')
    rows = {where: row for where, row in rows.items() if where[0] < last}
  if not rows:
    raise ValueError(f'{path} holds no complete iteration.')
  first = min(iteration for iteration, _ in rows)
  last = max(iteration for iteration, _ in rows)
  for iteration in range(first, last + 1):
    for seed in sorted(seeds):
      if (iteration, seed) not in rows:
        raise ValueError(
          f'{path}: iteration {iteration} of seed {seed} is missing.'
        )
  return rows, _sum_counts(path, [counts[where] for where in rows])


def _numbers(place: str, record: dict[str, Any]) -> dict[str, float]:
  numbers = {}
  for key, value in record.items():
    if key.startswith('histogram/'):
      continue
    if value is not None and not isinstance(value, int | float):
      raise ValueError(
        f'{place}: key {key!r} must be a number or null, is {value!r}.'
      )
    numbers[key] = np.nan if value is None else float(value)
  return numbers


def _counts(place: str, record: dict[str, Any]) -> dict[str, list[int]]:
  counts = {}
  for key, value in record.items():
    if key.startswith('histogram/') and value is not None:
      if not isinstance(value, list) or not value:
        raise ValueError(f'{place}: key {key!r} must be a list, is {value!r}.')
      if not all(isinstance(count, int) and count >= 0 for count in value):
        raise ValueError(
          f'{place}: key {key!r} must hold counts, is {value!r}.'
        )
      counts[key.removeprefix('histogram/')] = value
  return counts


def _sum_counts(
  path: pathlib.Path, rows: list[dict[str, list[int]]]
) -> dict[str, np.ndarray]:
  sums = {}
  for row in rows:
    for key, counts in row.items():
      total = sums.setdefault(key, np.zeros(len(counts), np.int64))
      if len(total) != len(counts):
        raise ValueError(
          f"{path}: 'histogram/{key}' has {len(total)} and {len(counts)} bins."
        )
      total += np.array(counts)
  return sums


def _read_timing(
  path: pathlib.Path, iterations: list[int]
) -> tuple[np.ndarray, np.ndarray]:
  """Returns seconds and is_first; of a repeated iteration the last counts."""
  seconds = np.full(len(iterations), np.nan)
  is_first = np.zeros(len(iterations), bool)
  if not path.is_file():
    warn(f'{path} is missing: wall-clock is unknown.')
    return seconds, is_first
  processes = set()
  for place, record in read_lines(path):
    check_number(place, record, 'seconds')
    iteration = whole_number(place, record, 'iteration')
    index = iteration - iterations[0]
    if 0 <= index < len(iterations):
      seconds[index] = record['seconds']
      is_first[index] = record.get('process') not in processes
    processes.add(record.get('process'))
  if np.isnan(seconds).any():
    missing = iterations[int(np.argmax(np.isnan(seconds)))]
    warn(f'{path}: wall-clock is unknown from iteration {missing} on.')
  return seconds, is_first


def _check_totals(
  path: pathlib.Path, values: dict[str, np.ndarray], iterations: list[int]
) -> None:
  for key in BUDGETS:
    falls = np.argwhere(np.diff(values[key], axis=1) < 0)
    if falls.size:
      raise ValueError(
        f'{path}: the running total {key!r} falls at iteration '
        f'{iterations[falls[0, 1] + 1]}.'
      )


def check_number(place: str, record: dict[str, Any], key: str) -> None:
  """Raises ValueError unless the key holds a finite number."""
  if key not in record:
    raise ValueError(f'{place}: key {key!r} is missing.')
  value = record[key]
  is_number = isinstance(value, int | float) and not isinstance(value, bool)
  if not is_number or not math.isfinite(value):
    raise ValueError(
      f'{place}: key {key!r} must be a finite number, is {value!r}.'
    )


def whole_number(place: str, record: dict[str, Any], key: str) -> int:
  """Returns an integer of at least 0; anything else is a ValueError."""
  check_number(place, record, key)
  value = record[key]
  if value != int(value) or value < 0:
    raise ValueError(
      f'{place}: key {key!r} must be a whole number, is {value!r}.'
    )
  return int(value)


def warn(message: str) -> None:
  """Tells the user on standard error what was left out or is unknown."""
  print(f'warning: {message}', file=sys.stderr)
