"""Whether optional packages are installed, without importing them."""

import importlib.util
from collections.abc import Mapping
from typing import Any


def check(
  field: str, value: Any, modules: Mapping[str, str], command: str
) -> None:
  """Raises ValueError if a setting needs a package that is missing.

  Args:
    field, value: the setting, for the message.
    modules: name of a module -> name of the package that holds it.
    command: installs them.
  """
  missing = [
    package for module, package in modules.items() if not _is_there(module)
  ]
  if missing:
    raise ValueError(
      f'{field} = {value!r}: must have the packages {", ".join(missing)}; '
      f'{command}'
    )


def _is_there(module: str) -> bool:
  try:
    return importlib.util.find_spec(module) is not None
  except ModuleNotFoundError:  # The package above it is missing.
    return False
