"""Paths of file systems, where the address of a bucket is refused.

Without this check, `gs://bucket/x` would be the folder `gs:` below the current
one. The folder of a run may be such an address, see `replay_rl.bucket`.
"""

import argparse
import pathlib
import re

_MUST = (
  'must be a path of a file system, such as a disk or NFS; only the folder of '
  'a run may be in a bucket'
)
# Also of a `pathlib.Path`, which joins slashes.
_ADDRESS = re.compile(r'[A-Za-z][A-Za-z0-9+.-]+:/')


def is_address(path: str | pathlib.Path) -> bool:
  """Returns whether a path is an address such as gs://bucket/x."""
  return bool(_ADDRESS.match(str(path)))


def check(name: str, path: str | pathlib.Path) -> None:
  """Raises ValueError if a path is an address such as gs://bucket/x.

  Args:
    name: of the setting, for the message.
    path: as a user gave it.
  """
  if is_address(path):
    raise ValueError(f'{name} = {str(path)!r}: {_MUST}')


def text(argument: str) -> str:
  """Returns a path as it is, for a flag of `argparse`.

  Raises:
    argparse.ArgumentTypeError: it is the address of a bucket.
  """
  if is_address(argument):
    raise argparse.ArgumentTypeError(f'{argument!r}: {_MUST}')
  return argument


def path(argument: str) -> pathlib.Path:
  """Returns `text` as a path."""
  return pathlib.Path(text(argument))
