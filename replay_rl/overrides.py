"""Parsers of `--config.field=value` for types that ml_collections lacks.

ml_collections parses neither `Annotated` types nor dicts nor None.
"""

import dataclasses
import json
import math
import types
import typing
from typing import Annotated
from typing import Any

from absl import flags
from ml_collections import config_flags


def integer(text: str) -> int:
  """Returns a whole number; `int` would read the digits of any script."""
  if not text.isascii():
    raise ValueError('must be a whole number in digits 0 to 9')
  return flags.IntegerParser().parse(text)


def real(text: str) -> float:
  """Returns a number; infinity only for a word such as inf."""
  is_word = text.strip().lstrip('+-').lower() in ('inf', 'infinity')
  return float(text) if is_word else _finite(text)


def _finite(text: str) -> float:
  """Returns a finite number; `float` would read 1e400 as infinity."""
  number = float(text) if text.isascii() else math.nan
  if not math.isfinite(number):
    raise ValueError(f'must be a finite number in digits 0 to 9, not {text}')
  return number


def integers(text: str) -> tuple[int, ...]:
  """Returns whole numbers with commas between them, as in 1,2 or (1, 2)."""
  inside = text.strip().removeprefix('(').removesuffix(')').strip()
  parts = inside.removesuffix(',').split(',') if inside else []
  return tuple(integer(part.strip()) for part in parts)


_PARSERS = {
  tuple[int, ...]: integers,
  int: integer,
  float: real,
  str: str,
  bool: flags.BooleanParser().parse,
}


class DictParser(flags.ArgumentParser):
  """Parses a dict in JSON, such as the shape of a mesh; null is None."""

  def parse(self, argument: Any) -> dict[str, Any] | None:
    """Returns the dict; raises ValueError if the text is not one."""
    if not isinstance(argument, str):
      return argument  # The value of the config itself.
    try:
      value = json.loads(
        'null' if argument == 'None' else argument,
        parse_float=_finite,
        parse_constant=_finite,
      )
    except (ValueError, RecursionError) as error:
      raise ValueError(f'must be JSON ({error})') from error
    if value is not None and not isinstance(value, dict):
      raise ValueError('must be a JSON object, such as {"data": 1}')
    return value


class AnnotatedParser(flags.ArgumentParser):
  """Parses a value, and the word None if the type allows None.

  The word inf is a number. A number that is too large for a float is an error.
  """

  def __init__(self, annotation: Any):
    """Takes an `Annotated` type, such as `Annotated[int | None, ...]`."""
    kind = typing.get_args(annotation)[0]
    self._kinds = typing.get_args(kind) or (kind,)

  def parse(
    self, argument: Any
  ) -> bool | int | float | str | tuple[int, ...] | None:
    """Returns the value; raises ValueError if the text is not one."""
    if not isinstance(argument, str):
      return argument  # The value of the config itself.
    if argument == 'None' and types.NoneType in self._kinds:
      return None
    return _PARSERS[self._kinds[0]](argument)


def register(settings: type) -> None:
  """Registers a parser for each field of a dataclass and of its sections."""
  config_flags.register_flag_parser_for_type(dict, DictParser())
  for field in dataclasses.fields(settings):
    kind: Any = field.type
    if typing.get_origin(kind) is Annotated:
      parser = AnnotatedParser(kind)
      config_flags.register_flag_parser_for_type(kind, parser)
    for section in (kind, *typing.get_args(kind)):  # Also in `Text | None`.
      if isinstance(section, type) and dataclasses.is_dataclass(section):
        register(section)
