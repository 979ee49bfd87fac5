"""Imports the modules of a package where they are first used."""

import importlib
import pkgutil
import sys
from collections.abc import Callable
from collections.abc import Iterable
from types import ModuleType


def modules(
  package: str, path: Iterable[str]
) -> tuple[Callable[[str], ModuleType], Callable[[], list[str]]]:
  """Returns `__getattr__` and `__dir__` of a package.

  With them, `replay_rl.replay.buffer` works after `import replay_rl`, which
  alone imports no other module.

  Args:
    package: its `__name__`.
    path: its `__path__`.
  """

  def names() -> list[str]:
    modules_there = (module.name for module in pkgutil.iter_modules(path))
    return [name for name in modules_there if name != '__main__']

  def listed() -> list[str]:
    return [*vars(sys.modules[package]), *names()]

  def load(name: str) -> ModuleType:
    if name not in names():
      raise AttributeError(f'module {package!r} has no attribute {name!r}')
    return importlib.import_module(f'{package}.{name}')

  return load, listed
