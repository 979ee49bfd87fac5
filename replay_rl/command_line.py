"""The command line of programs: flags, output and the last line."""

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator
from typing import Any

from absl import flags

# Errors of a flag or its file, with a text that says enough.
_PLAIN = (
  flags.Error,
  KeyError,
  AttributeError,
  TypeError,
  ValueError,
  OSError,
)
_LONGEST_TEXT = 1000  # Characters of a message.


def parse(
  argv: list[str],
  own: flags.FlagValues = flags.FLAGS,
  description: str | None = None,
) -> list[str]:
  """Parses flags; for a wrong flag, prints one line and exits with status 2.

  Args:
    argv: the arguments of the process.
    own: the flags of the program, if they are not the global flags; then other
      programs can import its module.
    description: of the program, which `--help` prints before its own flags.

  Returns:
    The name of the program and the arguments that are not flags.
  """
  try:
    if own is not flags.FLAGS:
      flags.FLAGS(argv[:1])
      if '--help' in argv:
        print(f'{description}\nflags:\n{own.get_help()}')
        sys.exit(0)
    rest = own(argv)
    if 'config' in own:
      # Without its file, any attribute raises what is wrong with the file.
      getattr(own['config'].value, 'name', None)
    return rest
  except Exception as error:  # The file of a config may raise anything.
    print(f'error: {_in_one_line(error)}', file=sys.stderr)
    sys.exit(2)


def _in_one_line(error: BaseException) -> str:
  if 'Traceback (most recent call last)' in str(error):
    # ml_collections puts the traceback of a config's error into the text.
    while error.__cause__ or error.__context__:
      error = error.__cause__ or error.__context__  # pyright: ignore
  # The text of a KeyError is a repr.
  text = str(error.args[0] if isinstance(error, KeyError) else error)
  text = ' '.join(text.split())
  if len(text) > _LONGEST_TEXT:
    text = f'{text[: _LONGEST_TEXT // 2]} ... {text[-_LONGEST_TEXT // 2 :]}'
  kind = '' if isinstance(error, _PLAIN) else f'{type(error).__name__}: '
  return kind + text


class _Lasting:
  """A stream that goes nowhere once its reader or its disk is gone."""

  def __init__(self, stream: Any):
    self._stream = stream

  def write(self, text: str) -> int:
    """Writes a text, or drops it."""
    self._do(self._stream.write, text)
    return len(text)

  def flush(self) -> None:
    """Writes what is buffered, or drops it."""
    self._do(self._stream.flush)

  def __getattr__(self, name: str) -> Any:
    return getattr(self._stream, name)

  def _do(self, action: Any, *args: Any) -> None:
    try:
      action(*args)
    except OSError as error:
      # The buffer of the stream is written once more at the end.
      null = os.open(os.devnull, os.O_WRONLY)
      os.dup2(null, self._stream.fileno())
      os.close(null)
      if self._stream is not sys.__stderr__:
        print(
          f'warning: standard output is lost ({error.strerror}); the program '
          'goes on',
          file=sys.stderr,
        )


@contextlib.contextmanager
def lasting_output() -> Iterator[None]:
  """Lets the body go on if standard output or standard error break.

  The reader of a pipe may end, and the disk of a log may be full. Characters
  that the terminal cannot show are written as escapes.
  """
  for descriptor in range(3):
    try:
      os.fstat(descriptor)
    except OSError as error:
      if error.errno != errno.EBADF:
        raise
      # Otherwise the next file that opens would get the number.
      os.open(os.devnull, os.O_RDWR)
  before = sys.stdout, sys.stderr
  for stream in before:
    if isinstance(stream, io.TextIOWrapper):
      stream.reconfigure(errors='backslashreplace')
  with open(os.devnull, 'w') as null:
    # Python has None for a stream that was closed at the start.
    sys.stdout, sys.stderr = (_Lasting(stream or null) for stream in before)
    try:
      yield
    finally:
      sys.stdout.flush()
      sys.stderr.flush()
      sys.stdout, sys.stderr = before


def last_line(error: ValueError | OSError) -> str:
  """Returns what a program says of an error that a user can mend."""
  text = str(error)
  if isinstance(error, OSError) and error.errno is not None:
    name = error.filename and f' = {os.fsdecode(error.filename)!r}'
    text = f'path{name or ""}: must be usable ({error.strerror})'
  return f'error: {text}'


@contextlib.contextmanager
def one_line() -> Iterator[None]:
  """Ends the program with one line if its input or its machine is at fault.

  The body raises ValueError for bad input. An OSError is a file, a limit or a
  network of the machine. It ends the program at once: threads may wait for
  hours for what has failed, and would tell it again in many lines.
  """
  try:
    yield
  except ValueError as error:
    sys.exit(last_line(error))
  except OSError as error:
    print(last_line(error), file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
  except MemoryError:
    sys.exit('error: memory of the host = exhausted: must be more')
  except KeyboardInterrupt:
    print(
      'error: stopped by Ctrl-C before the first iteration', file=sys.stderr
    )
    sys.exit(130)
