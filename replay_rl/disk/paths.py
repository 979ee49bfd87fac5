"""Paths of file systems: the addresses of buckets are refused.

A bucket such as gs:// or s3:// has no locks, no appends and no renames of
folders, with which a run is safe against crashes and other processes. Without
this check, `gs://bucket/x` would be the folder `gs:` below the current one.
"""

import argparse
import pathlib
import re

_MUST = (
  'must be a path of a file system, such as a disk or NFS; a bucket has no '
  'locks and no appends, so copy to and from it while no run is in progress'
)
# Also of a `pathlib.Path`, which joins slashes.
_ADDRESS = re.compile(r'[A-Za-z][A-Za-z0-9+.-]+:/')


def check(name: str, path: str | pathlib.Path) -> None:
  """Raises ValueError if a path is an address such as gs://bucket/x.

  Args:
    name: of the setting, for the message.
    path: as a user gave it.
  """
  if _ADDRESS.match(str(path)):
    raise ValueError(f'{name} = {str(path)!r}: {_MUST}')


def text(argument: str) -> str:
  """Returns a path as it is, for a flag of `argparse`.

  Raises:
    argparse.ArgumentTypeError: it is the address of a bucket.
  """
  if _ADDRESS.match(argument):
    raise argparse.ArgumentTypeError(f'{argument!r}: {_MUST}')
  return argument


def path(argument: str) -> pathlib.Path:
  """Returns `text` as a path."""
  return pathlib.Path(text(argument))
