"""What a run in a bucket consists of: a small object, written last.

Manifests have numbers, and the one with the highest number counts. A process
writes the next one only if no object has that name yet. So of two processes
that go on from the same manifest, one succeeds and the other one is told.
"""

import json
import pathlib
import re
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

from replay_rl import json_files
from replay_rl.bucket import objects

_FORMAT = 1
_FOLDER, _DATA = 'manifests', 'data'
_NAME = re.compile(rf'{_FOLDER}/(\d{{12}})\.json')
_OF_DATA = re.compile(rf'{_DATA}/(\d+)/')
_SHA256 = re.compile(r'[0-9a-f]{64}')


class ManifestError(ValueError):
  """A manifest, or what it names, is damaged or missing."""


class Part(NamedTuple):
  """Bytes of a file: their object, their number, and SHA-256 as hex digits."""

  name: str
  num_bytes: int
  sha256: str


class Manifest(NamedTuple):
  """The run at a moment.

  number: from 1, one more with each manifest.
  iteration: iterations done at its newest checkpoint; None without one.
  owner: `owner.identity` of the process that may write the next one; None if
    any may.
  files: path below the folder of the run -> its parts, in order.
  """

  number: int
  iteration: int | None
  owner: dict[str, Any] | None
  files: Mapping[str, Sequence[Part]]


def place(number: int, path: str, first: int) -> str:
  """Returns the name of the object of a part.

  No two processes use the same number for parts, and a process uses a name
  once for what a manifest names.

  Args:
    number: of the manifest that will name it.
    path: of the file.
    first: place of its first byte in the file.
  """
  return f'{_DATA}/{number}/{path}/{first}'


def newest(store: objects.Store) -> Manifest | None:
  """Returns the manifest that counts; None if there is none.

  Raises:
    objects.BucketError: the bucket cannot be read.
    ManifestError: the manifest is damaged.
  """
  last = 0
  while number := max(_numbers(store.names()), default=0):
    try:
      return _parsed(store, number)
    except FileNotFoundError as error:
      # A process has written the next one meanwhile, and removed this one.
      if number == last:
        raise ManifestError(_damage(store, number, 'missing')) from error
      last = number
  return None


def write(store: objects.Store, manifest: Manifest) -> bool:
  """Writes a manifest, and then removes what it does not name.

  Returns:
    Whether it counts; False if another process was faster.

  Raises:
    objects.BucketError: the bucket cannot be written.
  """
  name, content = _name(manifest.number), _text(manifest)
  if not store.create(name, content) and not _is_there(store, name, content):
    return False
  names = store.names()
  if max(_numbers(names)) > manifest.number:
    # The manifest of another process, with the same number, is gone already.
    return False
  kept = {part.name for parts in manifest.files.values() for part in parts}
  store.remove(
    [
      name
      for name in names
      if name not in kept and _is_before(name, manifest.number)
    ]
  )
  return True


def _is_there(store: objects.Store, name: str, content: bytes) -> bool:
  """Returns whether a request that was sent twice succeeded the first time."""
  try:
    return store.read(name) == content
  except FileNotFoundError:
    return False


def _is_before(name: str, number: int) -> bool:
  """Returns whether an object is of a manifest before, or a part up to it.

  Parts with a higher number are of a process that has taken the run over.
  """
  if found := _NAME.fullmatch(name):
    return int(found[1]) < number
  found = _OF_DATA.match(name)
  return bool(found) and int(found[1]) <= number


def _numbers(names: Sequence[str]) -> list[int]:
  return [int(found[1]) for name in names if (found := _NAME.fullmatch(name))]


def _name(number: int) -> str:
  return f'{_FOLDER}/{number:012d}.json'


def _text(manifest: Manifest) -> bytes:
  values = manifest._asdict() | {'format': _FORMAT}
  values['files'] = {
    path: [part._asdict() for part in parts]
    for path, parts in manifest.files.items()
  }
  return (json.dumps(values, indent=1) + '\n').encode()


def _parsed(store: objects.Store, number: int) -> Manifest:
  content = store.read(_name(number))
  try:
    values = json_files.parse(content)
    if values['format'] != _FORMAT or values['number'] != number:
      raise ValueError('of another version of the code')
    files = {
      _checked(path): tuple(_part(part) for part in parts)
      for path, parts in values['files'].items()
    }
    iteration, owner = values['iteration'], values['owner']
    if not isinstance(iteration, int | None):
      raise ValueError(f'iteration = {iteration!r}')
    if not isinstance(owner, dict | None):
      raise ValueError(f'owner = {owner!r}')
  except (ValueError, KeyError, TypeError, AttributeError) as error:
    raise ManifestError(_damage(store, number, repr(error))) from error
  return Manifest(number, iteration, owner, files)


def _part(values: Mapping[str, Any]) -> Part:
  part = Part(values['name'], values['num_bytes'], values['sha256'])
  if not isinstance(part.num_bytes, int) or not _SHA256.fullmatch(part.sha256):
    raise ValueError(f'part = {values!r}')
  return part._replace(name=_checked(part.name))


def _checked(path: str) -> str:
  """Returns a path; ValueError if it leads out of the folder."""
  parts = pathlib.PurePosixPath(path).parts
  if not parts or '..' in parts or path != '/'.join(parts) or path[0] == '/':
    raise ValueError(f'path = {path!r}')
  return path


def _damage(store: objects.Store, number: int, reason: str) -> str:
  return (
    f'manifest {number} of {store.address} = {reason:.200}: must be a manifest '
    'of replay_rl.train; restore it, or train at another address'
  )
