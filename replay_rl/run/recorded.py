"""Reads the config of a run from its folder."""

import dataclasses
import pathlib
import typing
from typing import Any

from replay_rl import json_files
from replay_rl.run import config as config_lib
from replay_rl.run import workdir as workdir_lib


def read_config(folder: pathlib.Path) -> tuple[config_lib.Config, str]:
  """Returns the config of a run, and the commit of the code that trained it.

  Raises:
    ValueError: there is none, or it is of another version of the code.
  """
  made_of = json_files.read_object(
    folder / workdir_lib.CONFIG,
    advice='name a folder that replay_rl.train wrote',
  )
  try:
    config = _of_json(config_lib.Config, made_of['config'], '')
    return config, str(made_of['commit'])
  except (KeyError, TypeError, AttributeError) as error:
    raise ValueError(
      f'RUN = {str(folder)!r}: must hold the config of a run ({error!r})'
    ) from error


def seeds(config: config_lib.Config) -> tuple[int, ...]:
  """Returns the seeds of a run, in the order of its arrays."""
  return tuple(config.seed + i for i in range(config.num_seeds))


def _of_json(kind: type, values: dict[str, Any], prefix: str) -> Any:
  """Returns a dataclass of a config, and those in it."""
  made = {}
  fields = {field.name: field.type for field in dataclasses.fields(kind)}
  if differing := sorted(fields.keys() ^ values.keys()):
    raise ValueError(
      f'fields of the config = {[prefix + x for x in differing]}: must be in '
      'this code and in config.json; use the commit that trained the run'
    )
  for name, annotation in fields.items():
    kinds = _kinds(annotation)
    sections = [
      x for x in kinds if isinstance(x, type) and dataclasses.is_dataclass(x)
    ]
    value = values[name]
    if sections and value is not None:
      value = _of_json(sections[0], value, f'{prefix}{name}.')
    elif value is not None and any(
      typing.get_origin(x) is tuple for x in kinds
    ):
      value = tuple(value)  # JSON has lists alone.
    made[name] = value
  return kind(**made)


def _kinds(annotation: Any) -> list[Any]:
  """Returns an annotation, and all that stand in it."""
  inner = [kind for x in typing.get_args(annotation) for kind in _kinds(x)]
  return [annotation, *inner]
