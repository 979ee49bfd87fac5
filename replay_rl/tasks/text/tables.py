"""Files of problems in the forms in which data sets are published.

JSON Lines, a JSON array, Parquet and CSV, with columns of any names.
"""

import csv
import functools
import glob
import io
import math
import pathlib
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from replay_rl import constants
from replay_rl import json_files
from replay_rl.tasks.text import problems as problems_lib

FORMATS = ('jsonl', 'json', 'parquet', 'csv')
# What `parse` turns into text, and `problems.Report` counts.
CONVERSIONS = ('missing_id', 'numeric_id', 'numeric_answer')
_FLAG = '--columns'
_LARGEST_FIELD = 2**31 - 1  # Characters of a field of CSV.


def read(
  paths: Sequence[pathlib.Path],
  *,
  file_format: str,
  columns: Mapping[str, str],
  source: str,
  allowed: frozenset[str],
  drop_flag: str,
) -> tuple[list[problems_lib.Problem], problems_lib.Report]:
  """Returns `problems.check` of the rows of files, one after the other.

  Args:
    paths: of one format; plain or .gz, but for Parquet.
    file_format: one of `FORMATS`.
    columns: see `parse`.
    source, allowed, drop_flag: see `problems.check`.

  Raises:
    ValueError: see `problems.check`; or a file cannot be read, or lacks a
      column.
  """

  def rows():
    for path in paths:
      yield from _ROWS[file_format](path, columns)

  return problems_lib.check(
    rows(),
    source=source,
    allowed=allowed,
    drop_flag=drop_flag,
    parse_fn=functools.partial(parse, columns=columns),
  )


def parse(
  line: Any,
  *,
  default_id: str,
  columns: Mapping[str, str],
) -> tuple[problems_lib.Problem, tuple[str, ...]]:
  """Returns the problem of a row, and those of `CONVERSIONS` that it took.

  A number becomes its text, and an integral one has no decimal point. Without
  an id, the problem has `default_id`. Null is an empty text.

  Args:
    line: a row, or bytes of JSON that hold one.
    default_id: for a row without an id.
    columns: names of the columns by field of `problems.Problem`; a field that
      is not there has its own name. {} also reads the form of GSM8K, see
      `problems.parse`.

  Raises:
    ValueError: a column is missing, or holds neither text nor number.
  """
  row = json_files.parse(line) if isinstance(line, bytes) else line
  if not isinstance(row, Mapping):
    raise ValueError(f'line = {line!r:.40}: must be a JSON object')
  if not columns and problems_lib.is_gsm8k(row):
    return problems_lib.of_object(row, default_id=default_id), ()
  texts, conversions = {}, []
  for field in problems_lib.Problem._fields:
    column = columns.get(field, field)
    if column not in row and (field != 'id' or field in columns):
      raise ValueError(_missing(field, column, row))
    value = row.get(column)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
      value = _as_text(field, value)
      conversions += [x for x in CONVERSIONS if x == f'numeric_{field}']
    if field == 'id' and (value is None or value == ''):
      value = default_id
      conversions.append('missing_id')
    if value is None:
      value = ''
    if not isinstance(value, str):
      raise ValueError(
        f'{field} = {constants.shown(value)}: must be a text or a number'
      )
    value.encode()  # Raises ValueError for a single surrogate.
    texts[field] = value.strip()
  return problems_lib.Problem(**texts), tuple(conversions)


def parse_columns(entries: Sequence[str]) -> dict[str, str]:
  """Returns the columns that entries such as `problem=question` name.

  Raises:
    ValueError: an entry names no field, or a field twice.
  """
  columns = {}
  fields = problems_lib.Problem._fields
  for entry in entries:
    field, _, column = entry.partition('=')
    if field not in fields or not column or field in columns:
      raise ValueError(
        f'{_FLAG} = {entry!r}: must be FIELD=COLUMN, each field of '
        f'{", ".join(fields)} once at most'
      )
    columns[field] = column
  return columns


def find(pattern: str) -> list[pathlib.Path]:
  """Returns the file of a path, or those that a pattern such as `x-*` names."""
  if not pathlib.Path(pattern).is_file() and (found := glob.glob(pattern)):
    return [pathlib.Path(path) for path in sorted(found)]
  return [pathlib.Path(pattern)]


def _missing(field: str, column: str, there: Any) -> str:
  return (
    f'{field} = None: must be in a column; there are {sorted(there)}, none is '
    f'{column!r}; name it with {_FLAG}={field}=COLUMN'
  )


def _as_text(field: str, value: int | float) -> str:
  if not math.isfinite(value):
    raise ValueError(f'{field} = {value}: must be finite')
  return str(int(value)) if value == int(value) else repr(value)


def _json_lines(
  path: pathlib.Path, columns: Mapping[str, str]
) -> Iterator[bytes]:
  del columns  # `parse` says which line lacks one.
  yield from problems_lib.lines(path)


def _json_array(path: pathlib.Path, columns: Mapping[str, str]) -> list[Any]:
  del columns
  try:
    rows = json_files.parse(problems_lib.unpacked(path))
  except ValueError as error:
    raise ValueError(
      f'path = {str(path)!r}: must be a JSON array ({error})'
    ) from error
  if not isinstance(rows, list):
    raise ValueError(f'path = {str(path)!r}: must be a JSON array')
  return rows


def _csv(
  path: pathlib.Path, columns: Mapping[str, str]
) -> Iterator[dict[str, str]]:
  csv.field_size_limit(_LARGEST_FIELD)
  try:
    text = problems_lib.unpacked(path).decode('utf-8-sig').rstrip('\r\n')
    rows = csv.reader(io.StringIO(text, newline=''), strict=True)
    header = next(rows, [])
    _check(path, header, columns)
    for number, row in enumerate(rows, start=1):
      if len(row) != len(header):
        raise ValueError(
          f'fields of row {number} of {path} = {len(row)}: must be '
          f'{len(header)}, as in its first line'
        )
      yield dict(zip(header, row, strict=True))
  except (csv.Error, UnicodeDecodeError) as error:
    raise ValueError(
      f'path = {str(path)!r}: must be CSV in UTF-8 ({error})'
    ) from error


def _parquet(
  path: pathlib.Path, columns: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
  try:
    from pyarrow import parquet
  except ImportError as error:
    raise ImportError(
      "package = 'pyarrow': must be installed; pip install -e '.[math]'"
    ) from error
  if not path.is_file():
    raise ValueError(f'path = {str(path)!r}: must be a file')
  try:
    file = parquet.ParquetFile(path)
  except (OSError, ValueError) as error:
    raise ValueError(
      f'path = {str(path)!r}: must be a Parquet file ({error})'
    ) from error
  with file:
    names = file.schema_arrow.names
    _check(path, names, columns)
    # Some sets have columns of many gigabytes.
    read = {columns.get(x, x) for x in problems_lib.Problem._fields}
    for batch in file.iter_batches(columns=sorted(read & set(names))):
      yield from batch.to_pylist()


def _check(
  path: pathlib.Path, names: Sequence[str], columns: Mapping[str, str]
) -> None:
  """Raises ValueError if the header of a file lacks a column."""
  for field in problems_lib.Problem._fields:
    column = columns.get(field, field)
    if column not in names and (field != 'id' or field in columns):
      raise ValueError(f'{path}: {_missing(field, column, names)}')
  if len(set(names)) != len(names):
    raise ValueError(f'columns of {path} = {list(names)}: must differ')


_ROWS = {
  'jsonl': _json_lines,
  'json': _json_array,
  'parquet': _parquet,
  'csv': _csv,
}
