"""Reads run folders into arrays and checks them; computes and draws nothing.

A run that was stopped may leave a half-written last line, and a last iteration
that lacks some seeds. Both are left out, with a warning on standard error.
Everything else that is wrong in a file is a ValueError with its place.
"""

import itertools
import math
import pathlib
import sys
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import numpy as np

from replay_rl import json_files
from replay_rl.disk import paths as disk_paths

STEPS = 'learner_step'
TOKENS = 'ledger/generated_tokens'
COST = 'ledger/cost_units'
ROLLOUTS = 'ledger/rollouts'  # Generated, those that were dropped included.
GREEDY = 'eval/greedy'
SECONDS = 'timing/cumulative_seconds'  # Made here, from timing.jsonl.

# Running totals: what a curve can be drawn against.
BUDGETS = (STEPS, TOKENS, COST)
_TOTALS = (*BUDGETS, ROLLOUTS)
REQUIRED = ('iteration', 'seed', 'reward', *_TOTALS)
_HISTOGRAM = 'histogram/'  # A part of the whole: the lines add up.
_OF_BUFFER = 'buffer_histogram/'  # Of what the buffer holds after the line.


class ValueKind(NamedTuple):
  """Which JSON values a key may have, also in words."""

  is_allowed: Callable[[Any], bool]
  words: str


def is_integer(value: Any) -> bool:
  """Tells whether a JSON value is an integer, which true and false are not."""
  return isinstance(value, int) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
  return is_integer(value) or isinstance(value, float) and math.isfinite(value)


def _is_count(value: Any) -> bool:
  return is_integer(value) and value >= 0


FINITE = ValueKind(_is_finite, 'a finite number')
COUNT = ValueKind(_is_count, 'a whole number >= 0')
_COUNTS = ValueKind(
  lambda x: isinstance(x, list) and x != [] and all(map(_is_count, x)),
  'a list of whole numbers >= 0',
)
_NUMBER = ValueKind(
  lambda x: x is None or isinstance(x, int | float), 'a number or null'
)
_OBJECT = ValueKind(lambda x: isinstance(x, dict), 'an object')


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
  histograms: key without 'histogram/' -> `[N]` int64, sums over the run; uses
    are those of all rollouts that were inserted, if the run wrote them.
  seconds: `[I]` float64, wall-clock of each iteration; NaN where unknown.
  is_first: `[I]` bool, first iteration of a process, with its compilation.
  timed: what timing.jsonl says of the events, such as 'learn_seconds', and of
    'mu' -> `[I]` float64, NaN where unknown; {} if they were not timed.
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
  timed: dict[str, np.ndarray]

  def column(self, key: str) -> np.ndarray:
    """Returns `[S, I]` values, all NaN if the run never wrote the key."""
    shape = (len(self.seeds), len(self.iterations))
    return self.values.get(key, np.full(shape, np.nan))


def read_all(folders: list[str], given: list[str] | None = None) -> list[Run]:
  """Reads run folders; runs that share a name get their folder's path added.

  Args:
    folders: where the files are.
    given: for each, the path or address that a user knows; None for the same.

  Raises:
    ValueError: if there is no folder, one is given twice, or one is wrong.
  """
  given = folders if given is None else given
  paths = [
    name if disk_paths.is_address(name) else pathlib.Path(name).resolve()
    for name in given
  ]
  if not paths or len(set(paths)) < len(paths):
    raise ValueError(f'runs = {given}: must be one or more distinct folders')
  arms = [read(folder) for folder in folders]
  names = [run.name for run in arms]
  return [
    run._replace(name=f'{run.name} ({_shown(place)})')
    if names.count(run.name) > 1
    else run
    for run, place in zip(arms, given, strict=True)
  ]


def _shown(place: str) -> str:
  """Returns a path without what does not count; an address as it is."""
  return place if disk_paths.is_address(place) else str(pathlib.Path(place))


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
  values = {
    key: np.array(
      [[rows[i, s].get(key, np.nan) for i in iterations] for s in seeds]
    )
    for key in keys
  }
  for key in _TOTALS:
    falls = np.argwhere(np.diff(values[key], axis=1) < 0)
    if falls.size:
      raise ValueError(
        f'falls of {key} in {path}/metrics.jsonl = {len(falls)}: must be none '
        f'(the first is at iteration {iterations[falls[0, 1] + 1]})'
      )
  seconds, is_first, timed = _read_timing(path / 'timing.jsonl', iterations)
  shape = (len(seeds), len(iterations))
  values[SECONDS] = np.broadcast_to(np.cumsum(seconds), shape)
  return Run(
    name=str(header['config'].get('name') or path.resolve().name),
    config=header['config'],
    versions=header['versions'],
    commit=str(header.get('commit') or 'unknown'),
    hardware=str(header.get('hardware') or 'unknown'),
    seeds=np.array(seeds),
    iterations=np.array(iterations),
    values=values,
    histograms=histograms,
    seconds=seconds,
    is_first=is_first,
    timed=timed,
  )


def _read_header(path: pathlib.Path) -> dict[str, Any]:
  header = json_files.read_object(path, advice='name the folder of a run')
  header = {'versions': {}} | header
  for key in ('config', 'versions'):
    value_of(str(path), header, key, _OBJECT)
  return header


def read_lines(path: pathlib.Path) -> list[tuple[str, dict[str, Any]]]:
  """Returns (place in the file, record) of each line of a JSON Lines file.

  A half-written last line is left out with a warning.

  Raises:
    ValueError: if the file is missing or a line is not an object.
  """
  *lines, rest = _bytes(path).split(b'\n')
  records = []
  for number, line in enumerate([*lines, rest] if rest else lines, start=1):
    place = f'{path}:{number}'
    try:
      record = json_files.parse(line)
    except ValueError as error:
      if number > len(lines):
        warn(f'{place}: the half-written last line is left out')
        break
      raise ValueError(
        f'{place} = {line!r:.40}: must be JSON ({error})'
      ) from None
    records.append((place, _object(place, record)))
  return records


def _bytes(path: pathlib.Path) -> bytes:
  if not path.is_file():
    raise ValueError(f'path = {str(path)!r}: must be a file')
  return path.read_bytes()


def _read_metrics(
  path: pathlib.Path,
) -> tuple[dict[tuple[int, int], dict[str, float]], dict[str, np.ndarray]]:
  """Returns numbers by (iteration, seed), and histograms summed over all."""
  rows = {}
  for place, record in read_lines(path):
    for key in REQUIRED:
      value_of(place, record, key, FINITE)
    iteration, seed = (
      value_of(place, record, key, COUNT) for key in ('iteration', 'seed')
    )
    row = _numbers_and_counts(place, record)
    # A run resumed from a checkpoint repeats iterations, bit for bit.
    if repr(rows.setdefault((iteration, seed), row)) != repr(row):
      raise ValueError(
        f'iteration {iteration} of seed {seed} = {place}: must equal the line '
        'before of the same iteration and seed'
      )

  seeds = sorted({seed for _, seed in rows})
  last = max((iteration for iteration, _ in rows), default=-1)
  if not all((last, seed) in rows for seed in seeds):
    warn(f'{path}: iteration {last} lacks some seeds and is left out')
    rows = {where: row for where, row in rows.items() if where[0] < last}
  if not rows:
    raise ValueError(f'path = {str(path)!r}: must hold a whole iteration')
  first = min(iteration for iteration, _ in rows)
  last = max(iteration for iteration, _ in rows)
  for iteration, seed in itertools.product(range(first, last + 1), seeds):
    if (iteration, seed) not in rows:
      raise ValueError(
        f'iteration {iteration} of seed {seed} = None: must be in {path}'
      )
  parts = [_starting(counts, _HISTOGRAM) for _, counts in rows.values()]
  at_end = [_starting(rows[last, seed][1], _OF_BUFFER) for seed in seeds]
  if any('uses' in part for part in parts) and not any(at_end):
    warn(f'{path}: the uses of rollouts still in the buffer are unknown')
  histograms = _sum_counts(path, parts + at_end)
  return {where: numbers for where, (numbers, _) in rows.items()}, histograms


def _numbers_and_counts(
  place: str, record: dict[str, Any]
) -> tuple[dict[str, float], dict[str, list[int]]]:
  numbers, counts = {}, {}
  for key in sorted(record):
    if not key.startswith((_HISTOGRAM, _OF_BUFFER)):
      value = value_of(place, record, key, _NUMBER)
      numbers[key] = np.nan if value is None else float(value)
    elif record[key] is not None:
      counts[key] = value_of(place, record, key, _COUNTS)
  return numbers, counts


def _starting(
  counts: dict[str, list[int]], prefix: str
) -> dict[str, list[int]]:
  """Returns the counts whose key starts with a prefix, without it."""
  return {
    key.removeprefix(prefix): values
    for key, values in counts.items()
    if key.startswith(prefix)
  }


def _sum_counts(
  path: pathlib.Path, rows: list[dict[str, list[int]]]
) -> dict[str, np.ndarray]:
  sums = {}
  for row in rows:
    for key, counts in row.items():
      total = sums.setdefault(key, np.zeros(len(counts), np.int64))
      if len(total) != len(counts):
        raise ValueError(
          f'bins of {_HISTOGRAM}{key} in {path} = {len(total)}, {len(counts)}: '
          'must be equally many in all lines'
        )
      total += np.array(counts)
  return sums


def _read_timing(
  path: pathlib.Path, iterations: list[int]
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
  """Returns fields of a `Run`; of a repeated iteration the last line counts."""
  seconds = np.full(len(iterations), np.nan)
  is_first, timed = np.zeros(len(iterations), bool), {}
  if not path.is_file():
    warn(f'{path} is missing: wall-clock is unknown')
    return seconds, is_first, timed
  processes = set()
  for place, record in read_lines(path):
    index = value_of(place, record, 'iteration', COUNT) - iterations[0]
    elapsed = value_of(place, record, 'seconds', FINITE)
    if 0 <= index < len(iterations):
      seconds[index] = elapsed
      is_first[index] = record.get('process') not in processes
      for key in sorted(record):
        if key != 'mu' and not key.endswith('_seconds'):
          continue
        value = value_of(place, record, key, _NUMBER)
        of_key = timed.setdefault(key, np.full(len(iterations), np.nan))
        of_key[index] = np.nan if value is None else value
    processes.add(record.get('process'))
  if np.isnan(seconds).any():
    missing = iterations[int(np.argmax(np.isnan(seconds)))]
    warn(f'{path}: wall-clock is unknown from iteration {missing} on')
  return seconds, is_first, timed


def value_of(
  place: str, record: dict[str, Any], key: str, kind: ValueKind
) -> Any:
  """Returns the value of a key.

  Raises:
    ValueError: if the key is missing or its value is not of the kind.
  """
  if key in record and kind.is_allowed(record[key]):
    return record[key]
  value = repr(record[key]) if key in record else 'missing'
  raise ValueError(f'{key} of {place} = {value}: must be {kind.words}')


def _object(place: str, record: Any) -> dict[str, Any]:
  if not isinstance(record, dict):
    raise ValueError(f'{place} = {record!r}: must be an object')
  return record


def warn(message: str) -> None:
  """Tells the user on standard error what was left out or is unknown."""
  print(f'warning: {message}', file=sys.stderr)
