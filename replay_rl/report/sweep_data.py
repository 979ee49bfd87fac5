"""Reads a sweep: what each seed of each arm had spent and scored, and when.

The table is `evaluations.csv`, as `python -m replay_rl.sweep` writes it. Below
the sweep, each cell has a run folder of its own, see `runs`.
"""

import csv
import functools
import math
import pathlib
import re
from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

FILE = 'evaluations.csv'
GREEDY = 'eval/greedy'
_SCORES = 'eval/'  # How the names of all scores begin.
_CELL, _SEED = 'cell', 'seed'
_ITERATION, _STEPS = 'iteration', 'learner_step'
_TOKENS = 'ledger/generated_tokens'
_GENERATED, _TRAINED = 'ledger/rollouts', 'ledger/trained_rollouts'
_REQUIRED = (
  *(_CELL, _SEED, GREEDY, _ITERATION, _STEPS),
  *(_TOKENS, _GENERATED, _TRAINED),
)
_SEED_OF_NAME = re.compile(r'(^|,)seed=\d+(?=,|$)')


class SweptSeed(NamedTuple):
  """What a seed had spent, and its scores, at each of E evaluations.

  A seed that was never evaluated has one element, its end, without a score.

  seed: its number.
  cell: name of its run folder, below the folder of the sweep.
  iterations: `[E]` float64, number of the iteration, from 0.
  learner_steps: `[E]` float64, updates.
  generated_tokens: `[E]` float64, of responses.
  generated: `[E]` float64, rollouts.
  trained: `[E]` float64, rollouts of all updates, each use counted.
  scores: name, such as eval/greedy -> `[E]` float64, NaN where not measured.
  """

  seed: int
  cell: str
  iterations: np.ndarray
  learner_steps: np.ndarray
  generated_tokens: np.ndarray
  generated: np.ndarray
  trained: np.ndarray
  scores: dict[str, np.ndarray]

  def costs(self, mu: float) -> np.ndarray:
    """Returns `[E]` costs, in units of training on one rollout.

    Args:
      mu: cost of generating a rollout, in the same units.
    """
    return self.trained + mu * self.generated

  def evaluated(self, score: str = GREEDY) -> np.ndarray:
    """Returns the places of the evaluations that have the score, `[<=E]`."""
    return np.flatnonzero(np.isfinite(self.scores[score]))


class SweptArm(NamedTuple):
  """The seeds of one setting.

  name: that of its cell, without the seed if cells differ in it.
  fields: field of the config in which cells differ -> value, as text; empty
    where it is None.
  seeds: in increasing order of their numbers.
  """

  name: str
  fields: dict[str, str]
  seeds: tuple[SweptSeed, ...]

  def parts(self) -> dict[str, str]:
    """Returns what the name says, such as {'batch_size': '8', 'mu': '2.0'}."""
    pairs = [part.partition('=') for part in self.name.split(',')]
    if not all(equals for _, equals, _ in pairs):
      return {'cell': self.name}
    return {field: value for field, _, value in pairs}


class Sweep(NamedTuple):
  """A sweep with at least one arm.

  path: of the table.
  arms: in the order of the table; cells that differ only in the seed are one.
  fields: those in which the arms differ, in the order of the table.
  scores: names of all scores, in the order of the table.
  """

  path: pathlib.Path
  arms: tuple[SweptArm, ...]
  fields: tuple[str, ...]
  scores: tuple[str, ...]

  def field(self, name: str) -> str:
    """Returns the field with this name, or whose last word it is.

    Raises:
      ValueError: no field of the sweep, or more than one, is named so.
    """
    if name in self.fields:
      return name
    named = [x for x in self.fields if x.rpartition('.')[2] == name]
    if len(named) != 1:
      raise ValueError(
        f'field = {name!r}: must be one in which the arms of {self.path} '
        f'differ: {", ".join(map(label, self.fields)) or "there is none"}'
      )
    return named[0]

  def only(self, arms: Sequence[SweptArm]) -> 'Sweep':
    """Returns the sweep of some of its arms, and the fields they differ in."""
    fields = tuple(
      x for x in self.fields if len({arm.fields[x] for arm in arms}) > 1
    )
    kept = tuple(
      arm._replace(fields={x: arm.fields[x] for x in fields}) for arm in arms
    )
    return self._replace(arms=kept, fields=fields)

  def naming_fields(self) -> list[str]:
    """Returns the fields that the names of the arms tell, in their order.

    All fields, if the names tell none.
    """
    parts = self.arms[0].parts()
    named = [
      field
      for part in parts
      for field in self.fields
      if part in (field, label(field))
    ]
    return list(dict.fromkeys(named)) or list(self.fields)

  def values(self, field: str) -> list[str]:
    """Returns the different values of a field; numbers rise."""
    return ordered([arm.fields[field] for arm in self.arms])


def label(field: str) -> str:
  """Returns the last word of a field, as it stands on an axis."""
  return field.rpartition('.')[2]


def number(value: str) -> float | None:
  """Returns the value of a field as a number, or None if it is none."""
  try:
    parsed = float(value)
  except ValueError:
    return None
  return parsed if math.isfinite(parsed) else None


def ordered(values: Sequence[str]) -> list[str]:
  """Returns each value once: numbers rise, then texts as they come."""

  def place(value: str) -> tuple[bool, float]:
    parsed = number(value)
    return parsed is None, 0.0 if parsed is None else parsed

  return sorted(dict.fromkeys(values), key=place)


def read(folder: str | pathlib.Path) -> Sweep:
  """Reads the table of a sweep.

  Args:
    folder: the `--out` of the sweep.

  Raises:
    ValueError: there is no table of a sweep, or a value in it is wrong.
  """
  return read_table(pathlib.Path(folder) / FILE)


def read_table(path: pathlib.Path) -> Sweep:
  """Reads the table of a sweep from a file; see `read`."""
  rows, columns = _rows(path)
  scores = tuple(x for x in columns if x.startswith(_SCORES))
  fields = columns[columns.index(_CELL) + 1 : columns.index(_SEED)]
  by_seed: dict[tuple[str, str], list[Mapping[str, str]]] = {}
  for row in rows:
    by_seed.setdefault((row[_CELL], row[_SEED]), []).append(row)
  by_arm: dict[tuple[str, ...], list[SweptSeed]] = {}
  for (cell, _), of_seed in by_seed.items():
    # Fields are compared too: another seed, such as that of the warm start, may
    # have the same label.
    arm = _without_seed(cell), *(of_seed[0][field] for field in fields)
    by_arm.setdefault(arm, []).append(_seed(path, of_seed, scores))
  arms = []
  for (name, *values), seeds in by_arm.items():
    seeds = sorted(seeds, key=lambda one: one.seed)
    for one, other in zip(seeds, seeds[1:], strict=False):
      if one.seed == other.seed:
        raise ValueError(
          f'seed {one.seed} of {name!r} in {path} = {one.cell!r}, '
          f'{other.cell!r}: must be in one cell'
        )
    of_arm = dict(zip(fields, values, strict=True))
    arms.append(SweptArm(name, of_arm, tuple(seeds)))
  return Sweep(path, tuple(arms), tuple(fields), scores).only(arms)


def _without_seed(cell: str) -> str:
  return _SEED_OF_NAME.sub('', cell).removeprefix(',') or 'all seeds'


def _rows(path: pathlib.Path) -> tuple[list[Mapping[str, str]], list[str]]:
  """Returns the lines and the columns of the table."""
  try:
    with open(path, newline='', encoding='utf-8') as file:
      rows: list[Mapping[str, str]] = list(csv.DictReader(file))
  except OSError as error:
    raise ValueError(
      f'path = {str(path)!r}: must be the table of a sweep ({error.strerror})'
    ) from error
  columns = list(rows[0]) if rows else []
  lacking = set(_REQUIRED) - set(columns)
  if lacking:
    raise ValueError(
      f'columns of {path} = {columns}: must be those of a sweep; it lacks '
      f'{sorted(lacking)}'
    )
  for number_of_line, row in enumerate(rows, start=2):
    if None in row or None in row.values():  # So csv marks them.
      raise ValueError(
        f'line {number_of_line} of {path} = {list(row.values())}: must have '
        f'{len(columns)} values'
      )
  return rows, columns


def _seed(
  path: pathlib.Path, rows: list[Mapping[str, str]], scores: Sequence[str]
) -> SweptSeed:
  """Returns a seed from its lines."""
  column = functools.partial(_column, path, rows)
  return SweptSeed(
    seed=int(column(_SEED)[0]),
    cell=rows[0][_CELL],
    iterations=column(_ITERATION),
    learner_steps=column(_STEPS),
    generated_tokens=column(_TOKENS),
    generated=column(_GENERATED),
    trained=column(_TRAINED),
    scores={score: column(score, may_be_empty=True) for score in scores},
  )


def _column(
  path: pathlib.Path,
  rows: list[Mapping[str, str]],
  name: str,
  *,
  may_be_empty: bool = False,
) -> np.ndarray:
  values = [
    math.nan if may_be_empty and not row[name] else number(row[name])
    for row in rows
  ]
  if None in values:
    wrong = rows[values.index(None)]
    raise ValueError(
      f'{name} of cell {wrong[_CELL]!r} in {path} = {wrong[name]!r}: must be a '
      'finite number'
    )
  return np.array(values, float)
