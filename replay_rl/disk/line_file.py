"""Files of JSON lines that a resumed run continues, checked byte by byte."""

import hashlib
import json
import math
import pathlib
from typing import Any
from typing import NamedTuple

from replay_rl import json_files
from replay_rl.disk import durable

_BLOCK = 2**20  # Bytes to read at once.


class Mark(NamedTuple):
  """A place in a file: the bytes before it, and their SHA-256 as hex digits."""

  num_bytes: int
  sha256: str


START = Mark(0, hashlib.sha256().hexdigest())


class LineFile:
  """Appends JSON lines after a mark.

  A run resumes from a checkpoint and repeats the iterations since then. The
  checkpoint holds the mark. What follows the mark is cut off and written again,
  so that the file of a resumed run equals that of an uninterrupted one.
  """

  def __init__(self, path: pathlib.Path, mark: Mark):
    """Opens a file, and creates it if the mark is at its start.

    Raises:
      ValueError: see `check`.
      durable.WriteError: the file cannot be written.
    """
    self._hash = check(path, mark)
    self._path = path
    with durable.refusing(path, num_bytes=None):
      self._file = open(path, 'r+b' if path.exists() else 'w+b')
      self._file.truncate(mark.num_bytes)
      self._file.seek(0, 2)

  def write(self, **values: Any) -> None:
    """Appends a line; null stands for NaN and infinity.

    Raises:
      durable.WriteError: the line cannot be written.
    """
    finite = {
      name: value
      if not isinstance(value, float) or math.isfinite(value)
      else None
      for name, value in values.items()
    }
    line = json.dumps(finite, allow_nan=False).encode() + b'\n'
    with durable.refusing(self._path, num_bytes=len(line)):
      self._file.write(line)
      self._file.flush()
    self._hash.update(line)

  def mark(self) -> Mark:
    """Returns the present place, once the disk has everything before it.

    Raises:
      durable.WriteError: the disk does not take it.
    """
    with durable.refusing(self._path, num_bytes=None):
      durable.sync(self._file)
    return Mark(self._file.tell(), self._hash.hexdigest())

  def close(self) -> None:
    """Closes the file; may be called again."""
    try:
      self._file.close()
    except OSError:
      # The rest of a line that did not fit; `write` has said so.
      pass


def check(path: pathlib.Path, mark: Mark) -> Any:
  """Returns the running hash of the bytes before a mark, of `hashlib`.

  Raises:
    ValueError: the file does not begin with what was marked.
  """
  if not path.exists() and mark == START:
    return hashlib.sha256()
  try:
    with open(path, 'rb') as file:
      size = path.stat().st_size
      running = _hash(file, mark.num_bytes)
  except OSError as error:
    raise ValueError(
      f'path = {str(path)!r}: must be a file of JSON lines that can be read '
      f'({durable.reason(error)})'
    ) from error
  if size < mark.num_bytes:
    raise ValueError(
      f'bytes of {path} = {size}: must be at least the {mark.num_bytes} that '
      'were there at the checkpoint'
    )
  if running.hexdigest() != mark.sha256:
    raise ValueError(
      f'lines of {path} = {_damage(path, mark.num_bytes)}: must be as they '
      'were at the checkpoint'
    )
  return running


def _hash(file: Any, num_bytes: int) -> Any:
  """Returns the running hash of the first bytes of an open file."""
  sha256 = hashlib.sha256()
  while num_bytes > 0 and (block := file.read(min(num_bytes, _BLOCK))):
    sha256.update(block)
    num_bytes -= len(block)
  return sha256


def _damage(path: pathlib.Path, num_bytes: int) -> str:
  """Returns what is wrong with the first bytes of a file, if that shows."""
  last, start = -1, 0
  with open(path, 'rb') as file:
    for number, line in enumerate(file, start=1):
      if start >= num_bytes:
        break
      start += len(line)
      try:
        iteration = json_files.parse(line)['iteration']
      except (ValueError, KeyError, TypeError):
        return f'line {number} unreadable'
      if not isinstance(iteration, int) or iteration < last:
        return f'line {number} of iteration {iteration!r} after {last}'
      last = iteration
  return 'changed, missing or repeated ones'
