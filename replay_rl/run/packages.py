"""Packages that only some configs need, checked before anything is computed."""

import importlib.util
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

from replay_rl.run import config as config_lib
from replay_rl.run import rules
from replay_rl.run import writers


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
# Of the extra [math]: for problems in text, and for published models.
_TEXT = {
  'array_record': 'array_record',
  'grain': 'grain',
  'jinja2': 'jinja2',
  'math_verify': 'math-verify',
  'tensorflow_datasets': 'tensorflow-datasets',
  'tokenizers': 'tokenizers',
}
_CHECKPOINT = {'safetensors': 'safetensors'}
NEEDS = (
  Need(
    'logging.writers',
    writers.is_tensorboard,
    {'tensorboardX': 'tensorboardX'},
    'pip install tensorboardX',
  ),
  Need(
    'logging.writers',
    writers.is_wandb,
    {'wandb': 'wandb'},
    "pip install -e '.[wandb]'",
  ),
  Need('task', lambda config: config.text is not None, _TEXT, _MATH),
  Need(
    'model.checkpoint',
    lambda config: config.model.checkpoint is not None,
    _CHECKPOINT,
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
    _check(need.field, fields[need.field], need.modules, need.command)


def check_text(field: str, value: str) -> None:
  """Raises ValueError if text or published models lack a package.

  Args:
    field, value: what needs them, for the message.
  """
  _check(field, value, _TEXT | _CHECKPOINT, _MATH)


def _check(
  field: str, value: Any, modules: Mapping[str, str], command: str
) -> None:
  missing = [
    package
    for module, package in modules.items()
    if importlib.util.find_spec(module) is None
  ]
  if missing:
    raise ValueError(
      f'{field} = {value!r}: must have the packages {", ".join(missing)}; '
      f'{command}'
    )
