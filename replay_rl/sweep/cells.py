"""The cells of a sweep: configs that differ in a few fields.

A sweep file is Python, with a function `get_cells`:

    def get_cells():
      return cells.make(
        quickstart.get_config('reuse_2'),
        cells.product({
          'replay.batch_size': [64, 128],
          'optimizer.learning_rate': [3e-4, 6e-4],
        }),
      )
"""

import importlib.util
import itertools
import pathlib
import re
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

from replay_rl.run import config as config_lib

# Path of a field, such as `replay.capacity` -> value.
Changes = Mapping[str, Any]

_LONGEST_NAME = 120  # Characters; a folder may have 255, and files need some.


class Cell(NamedTuple):
  """One run of a sweep.

  name: of its folder, made from `fields`.
  fields: values of the fields in which the cells differ.
  config: the run.
  """

  name: str
  fields: dict[str, Any]
  config: config_lib.Config


def product(axes: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
  """Returns every combination of values, the last field changing fastest.

  Args:
    axes: field of the config -> values.

  Raises:
    ValueError: a field has no values.
  """
  for field, values in axes.items():
    if isinstance(values, str) or not values:
      raise ValueError(f'{field} = {values!r}: must be one value or more')
  return [
    dict(zip(axes, values, strict=True))
    for values in itertools.product(*axes.values())
  ]


def combine(*lists: Sequence[Changes]) -> list[dict[str, Any]]:
  """Returns every combination of one element from each list of changes.

  An arm is often a few changes together, such as a reuse with its batch size.

  Raises:
    ValueError: two elements of one combination change the same field.
  """
  combined = []
  for parts in itertools.product(*lists):
    fields = [field for part in parts for field in part]
    twice = {field for field in fields if fields.count(field) > 1}
    if twice:
      raise ValueError(
        f'fields changed twice = {sorted(twice)}: must be none in {parts}'
      )
    combined.append({k: v for part in parts for k, v in part.items()})
  return combined


def make(
  base: config_lib.Config,
  changes: Sequence[Changes],
  *,
  named_by: Sequence[str] | None = None,
) -> list[Cell]:
  """Returns a cell for each element of `changes`.

  Args:
    base: the run that all cells start from.
    changes: what is different in each cell.
    named_by: fields that name a cell, which may be `name`; None for all in
      which the cells differ, but `name`.

  Raises:
    ValueError: there are no changes, a field does not exist, two cells are the
      same run, or a name would be too long.
  """
  if not changes:
    raise ValueError('changes = []: must be one cell or more')
  configs = [config_lib.changed(base, one) for one in changes]
  flat = [config_lib.flatten(config) for config in configs]
  differing = [
    field
    for field in dict.fromkeys(field for one in changes for field in one)
    if any(one[field] != flat[0][field] for one in flat)
  ]
  if named_by is None:
    named_by = [field for field in differing if field != 'name']
  unknown = sorted(set(named_by) - set(differing))
  if unknown:
    raise ValueError(
      f'named_by = {unknown}: must be fields in which the cells differ'
    )
  labels = _labels(named_by)
  made = []
  for config, values in zip(configs, flat, strict=True):
    fields = {field: values[field] for field in differing}
    name = ','.join(
      f'{labels[field]}={_plain(fields[field])}' for field in named_by
    )
    config.name = name or base.name
    made.append(Cell(config.name, fields, config))
  _check(made)
  return made


def load(path: pathlib.Path) -> list[Cell]:
  """Returns the cells of a sweep file.

  Raises:
    ValueError: the file cannot be run, or has no `get_cells`.
  """
  spec = importlib.util.spec_from_file_location(path.stem, path)
  if spec is None or spec.loader is None or not path.is_file():
    raise ValueError(f'--sweep = {str(path)!r}: must be a Python file')
  module = importlib.util.module_from_spec(spec)
  try:
    spec.loader.exec_module(module)
    loaded = list(module.get_cells())
    _check(loaded)
    return loaded
  except Exception as error:  # A file may raise anything.
    kind = '' if isinstance(error, ValueError) else f'{type(error).__name__}: '
    raise ValueError(
      f'--sweep = {str(path)!r}: must have a function get_cells that returns '
      f'cells ({kind}{error})'
    ) from error


def _labels(fields: Sequence[str]) -> dict[str, str]:
  """Returns the last word of each field, or the field if two have that word."""
  words = [field.rpartition('.')[2] for field in fields]
  return {
    field: word if words.count(word) == 1 else field
    for field, word in zip(fields, words, strict=True)
  }


def _plain(value: Any) -> str:
  """Returns a value as it may stand in the name of a folder."""
  return re.sub(r'[^A-Za-z0-9_.+-]+', '-', str(value)).strip('-')


def _check(made: Sequence[Cell]) -> None:
  names = [cell.name for cell in made]
  for cell in made:
    if names.count(cell.name) > 1:
      raise ValueError(
        f'cell = {cell.fields}: must differ from all others; two are named '
        f'{cell.name!r}'
      )
    if len(cell.name) > _LONGEST_NAME:
      raise ValueError(
        f'name = {cell.name!r}: must have at most {_LONGEST_NAME} characters'
      )
