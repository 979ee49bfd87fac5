"""Writes whole files: all or nothing, with one line for a failure."""

import contextlib
import errno
import os
import pathlib
import resource
import shutil
from collections.abc import Iterator
from typing import Any

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_FILE = (errno.EMFILE, errno.ENFILE)
# TensorStore gives the number of an error of the system in the text of its own.
_NUMBERED = "os_error_code='"


class WriteError(OSError):
  """A file could not be written; files that were there before are as before."""


def write(path: pathlib.Path, content: bytes) -> None:
  """Writes a file; a reader, also after a power cut, sees all of it or none.

  Raises:
    WriteError: the file cannot be written.
  """
  partial = path.with_name(f'.{path.name}.{os.getpid()}.partial')
  with refusing(path, num_bytes=len(content)):
    try:
      with open(partial, 'wb') as file:
        file.write(content)
        sync(file)
      partial.replace(path)
      sync_folder(path.parent)
    finally:
      partial.unlink(missing_ok=True)


def sync(file: Any) -> None:
  """Returns once the disk has what was written to an open file."""
  file.flush()
  os.fsync(file.fileno())


def sync_folder(folder: pathlib.Path) -> None:
  """Returns once the disk has the names of the files in a folder."""
  descriptor = os.open(folder, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)


@contextlib.contextmanager
def refusing(path: pathlib.Path, *, num_bytes: int | None) -> Iterator[None]:
  """Turns a failure of the body to write into one line.

  Args:
    path: what the body writes.
    num_bytes: size of it, at most; None if unknown.

  Raises:
    WriteError: the body raised an OSError, or an error of TensorStore that the
      system caused.
  """
  try:
    yield
  except WriteError:
    raise
  except Exception as error:
    cause = _system_error(error)
    if cause is None:
      raise
    raise WriteError(
      f'path = {str(path)!r}: must be writable ({os.strerror(cause)}); '
      f'{_advice(path, cause, num_bytes)}'
    ) from error


def reason(error: BaseException) -> str:
  """Returns why something failed, in one line and without a path."""
  if isinstance(error, OSError) and error.strerror:
    return error.strerror
  lines = str(error).splitlines()
  return lines[0] if lines else type(error).__name__


def _system_error(error: BaseException) -> int | None:
  """Returns the number of the system's error behind an error, if any."""
  seen = []
  cause: BaseException | None = error
  while cause is not None and cause not in seen:
    if isinstance(cause, OSError) and cause.errno is not None:
      return cause.errno
    number = str(cause).partition(_NUMBERED)[2].partition("'")[0]
    if number:
      return int(number)
    seen.append(cause)
    cause = cause.__cause__ or cause.__context__
  return None


def _advice(path: pathlib.Path, cause: int, num_bytes: int | None) -> str:
  again = 'then the same command continues'
  if cause in _NO_FILE:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return f'raise the limit of {limit} open files (ulimit -n), {again}'
  if cause not in _FULL:
    return f'make it writable, {again}'
  needed = '' if num_bytes is None else f'it needs up to {num_bytes} bytes, '
  folder = path
  while not folder.exists():
    folder = folder.parent
  free, num_files = shutil.disk_usage(folder).free, os.statvfs(folder).f_favail
  return (
    f'{needed}{free} bytes and {num_files} files are free; free some, {again}'
  )
