"""Packages that only some configs need, checked before anything is computed."""

import importlib.util
from collections.abc import Callable
from typing import NamedTuple

from replay_rl.run import config as config_lib
from replay_rl.run import rules


class Need(NamedTuple):
  """What the value of a field asks for.

  field: of the config.
  is_used: config -> whether its value of the field asks for the packages.
  modules: name of a module -> name of the package that holds it.
  command: installs them.
  """

  field: str
  is_used: Callable[[config_lib.Config], bool]
  modules: dict[str, str]
  command: str


_MATH = "pip install -e '.[math]'"
NEEDS = (
  Need(
    'logging.tensorboard',
    lambda config: config.logging.tensorboard,
    {'tensorboardX': 'tensorboardX'},
    'pip install tensorboardX',
  ),
  Need(
    'task',
    lambda config: config.text is not None,
    {
      'array_record': 'array_record',
      'grain': 'grain',
      'jinja2': 'jinja2',
      'math_verify': 'math-verify',
      'tensorflow_datasets': 'tensorflow-datasets',
      'tokenizers': 'tokenizers',
    },
    _MATH,
  ),
  Need(
    'model.checkpoint',
    lambda config: config.model.checkpoint is not None,
    {'safetensors': 'safetensors'},
    _MATH,
  ),
)


def check(config: config_lib.Config) -> None:
  """Raises ValueError if a field is wrong, or needs a package that is missing.

  It imports none of them.
  """
  rules.validate(config)
  fields = config_lib.flatten(config)
  for need in NEEDS:
    if not need.is_used(config):
      continue
    missing = [
      package
      for module, package in need.modules.items()
      if importlib.util.find_spec(module) is None
    ]
    if missing:
      raise ValueError(
        f'{need.field} = {fields[need.field]!r}: must have the packages '
        f'{", ".join(missing)}; {need.command}'
      )
