"""Which process owns a run, and whether it is gone for certain.

A process is known by its host, the start of the system, its name space of
processes, its number and the time of the system at which it began. So the same
machine knows without a clock whether it still runs. Another machine cannot.
"""

import os
import pathlib
import socket
from typing import Any

_PROC = pathlib.Path('/proc')
_MAX_HOST = 60  # Letters of the name of a host in a message.
# What two processes of one system, that see each other, have in common.
_SYSTEM = ('host', 'boot', 'namespace')


def identity() -> dict[str, Any]:
  """Returns what tells this process from all others, as plain JSON.

  A part that this system does not tell is None.
  """
  number = os.getpid()
  return _system() | {'process': number, 'began': _began(number)}


def is_gone(owner: dict[str, Any]) -> bool:
  """Returns whether a process has ended for certain.

  Args:
    owner: its `identity`.
  """
  here = _system()
  if None in here.values():
    return False
  if any(owner.get(name) != value for name, value in here.items()):
    return False
  number = owner.get('process')
  if not isinstance(number, int) or owner.get('began') is None:
    return False
  try:
    os.kill(number, 0)
  except ProcessLookupError:
    return True
  except OSError:
    pass  # It may belong to another user.
  try:
    return _began(number) not in (None, owner['began'])
  except ProcessLookupError:
    return True


def shown(owner: dict[str, Any]) -> str:
  """Returns a process in words, for a message."""
  host = str(owner.get('host'))[:_MAX_HOST]
  return f'process {owner.get("process")} of {host}'


def _system() -> dict[str, Any]:
  values = (
    socket.gethostname(),
    _text(_PROC / 'sys/kernel/random/boot_id'),
    _link(_PROC / 'self/ns/pid'),
  )
  return dict(zip(_SYSTEM, values, strict=True))


def _began(number: int) -> int | None:
  """Returns when a process began, in ticks of the system; None if unknown.

  Raises:
    ProcessLookupError: it is dead, and its parent has not noticed yet.
  """
  text = _text(_PROC / str(number) / 'stat')
  if text is None:
    return None
  # The name of the program stands in brackets and may hold any sign.
  fields = text.rpartition(')')[2].split()
  if fields[0] in ('Z', 'X'):
    raise ProcessLookupError(number)
  return int(fields[19])


def _text(path: pathlib.Path) -> str | None:
  try:
    return path.read_text().strip()
  except OSError:
    return None


def _link(path: pathlib.Path) -> str | None:
  try:
    return os.readlink(path)
  except OSError:
    return None
