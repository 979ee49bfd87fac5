"""Packages that only some configs need, checked before anything is computed."""

from collections.abc import Callable
from typing import NamedTuple

from replay_rl import installed
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
    installed.check(need.field, fields[need.field], need.modules, need.command)


def check_text(field: str, value: str) -> None:
  """Raises ValueError if text or published models lack a package.

  Args:
    field, value: what needs them, for the message.
  """
  installed.check(field, value, _TEXT | _CHECKPOINT, _MATH)
