"""Hashes of source code: of this package, and of a user's functions."""

import functools
import hashlib
import inspect
import pathlib
import sysconfig
import types
from collections.abc import Iterable
from typing import Any

_PACKAGE = pathlib.Path(__file__).parents[1]
# Parts that only plan runs or read what they wrote.
_NOT_OF_RESULTS = (
  *('evaluate/', 'fit/', 'plan/', 'report/', 'compile_check.py'),
  *('__main__.py', 'inspect.py', 'export.py'),
  'configs/',  # The record of a run has the values that they give.
  *('replay/gradient_noise.py', 'replay/noise.py'),
  *('replay/noise_growth.py', 'replay/planner.py'),
  *('sweep/__main__.py', 'sweep/cells.py', 'sweep/results.py'),
)
_INSTALLED = tuple(
  sysconfig.get_path(name) for name in ('stdlib', 'purelib', 'platlib')
)


@functools.cache
def of_package() -> dict[str, str]:
  """Returns the SHA-256 of each module that a run may use, as it is on disk.

  The keys are paths below the package, such as 'rl/losses.py'.
  """
  names = {path.relative_to(_PACKAGE): path for path in _PACKAGE.rglob('*.py')}
  return {
    name.as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
    for name, path in sorted(names.items())
    if not name.as_posix().startswith(_NOT_OF_RESULTS)
  }


def of_users(functions: Iterable[Any]) -> dict[str, str]:
  """Returns the SHA-256 of the modules that hold a user's functions.

  Also of the modules that these import, but for installed packages and for this
  one, see `of_package`. A function without a file, such as one of a notebook,
  has only the hash that `choices.Choice` records.

  Args:
    functions: of any modules.

  Returns:
    Hashes by the names of the modules.
  """
  roots = [inspect.getmodule(function) for function in functions]
  return {
    module.__name__: hashlib.sha256(_file(module).read_bytes()).hexdigest()
    for module in imported(roots)
    if not _file(module).is_relative_to(_PACKAGE)
  }


def imported(
  roots: Iterable[types.ModuleType | None],
) -> list[types.ModuleType]:
  """Returns these modules and those that they import, sorted by name.

  Leaves out installed packages other than this one, and what has no file. A
  function that a module took from another counts as an import of its module.
  """
  modules, waiting = {}, list(roots)
  while waiting:
    module = waiting.pop()
    if module is None or module.__name__ in modules or not _is_own(module):
      continue
    modules[module.__name__] = module
    for value in list(vars(module).values()):
      if isinstance(value, types.ModuleType):
        waiting.append(value)
      elif isinstance(value, (types.FunctionType, type)):
        waiting.append(inspect.getmodule(value))
  return [modules[name] for name in sorted(modules)]


def _file(module: types.ModuleType) -> pathlib.Path:
  assert module.__file__ is not None
  return pathlib.Path(module.__file__)


def _is_own(module: types.ModuleType) -> bool:
  name = getattr(module, '__file__', None)
  if name is None or not name.endswith('.py'):
    return False
  path = pathlib.Path(name)
  is_installed = any(path.is_relative_to(folder) for folder in _INSTALLED)
  return path.is_relative_to(_PACKAGE) or not is_installed
