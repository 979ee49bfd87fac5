"""The command line of programs: flags, output and the last line."""

import contextlib
import dataclasses
import errno
import io
import os
import pathlib
import re
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
_LONGEST_TEXT = 2000  # Characters of a message.
_CONFIGS = pathlib.Path(__file__).parent / 'configs'  # Of this package.
# What ml_collections says of a flag for a field that is not there.
_NO_FIELD = re.compile(
  r"Field (?P<name>\w+) not found on dataclass <class '(?P<path>[\w.]+)'>"
)
_NO_PARENT = re.compile(
  r"Attribute <class '(?P<path>[\w.]+)'>\.(?P<name>\w+) does not exist"
)
_NO_SECTION = re.compile(r'Flag (\S+) can not be applied because field "(\S+)"')
_NO_VALUE = re.compile(
  r'flag --([\w.]+)=.*: Unable to parse value .* as instance'
)


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
    description: of the program, which `--help` prints before its flags; None
      for the docstring of the main module.

  Returns:
    The name of the program and the arguments that are not flags.
  """
  try:
    if own is not flags.FLAGS:
      flags.FLAGS(argv[:1])
    if not {'--help', '-h'}.isdisjoint(argv[1:]):
      is_own = own is not flags.FLAGS
      listed = own.get_help() if is_own else own.main_module_help()
      print(
        f'{description or sys.modules["__main__"].__doc__}\nflags:\n{listed}'
      )
      sys.exit(0)
    if 'config' in own:
      argv = _with_packaged_config(argv)
    rest = own(argv)
    if 'config' in own:
      # Without its file, any attribute raises what is wrong with the file.
      getattr(own['config'].value, 'name', None)
    return rest
  except Exception as error:  # The file of a config may raise anything.
    print(f'error: {_of_config(_in_one_line(error), argv)}', file=sys.stderr)
    sys.exit(2)


def _with_packaged_config(argv: list[str]) -> list[str]:
  """Returns the arguments with the path of a config that the package brings.

  In a folder without the file, `configs/quickstart.py` and `quickstart` are the
  config of this package.

  Raises:
    ValueError: there is no such file, and the package has no such config.
  """
  argv = list(argv)
  for i, argument in enumerate(argv[1:], 1):
    before, text = argument, None
    if argument.lstrip('-').startswith('config='):
      before, _, text = argument.partition('=')
    elif i > 1 and argv[i - 1] in ('--config', '-config'):
      before, text = '', argument
    if text:
      argv[i] = before + '=' * bool(before) + _config_path(text)
  return argv


def _config_path(text: str) -> str:
  """Returns `FILE:ARM` with the file that it means."""
  given, colon, arm = text.partition(':')
  path = pathlib.Path(given)
  if path.is_file():
    return text
  names = {
    file.stem
    for file in _CONFIGS.glob('*.py')
    if 'def get_config(' in file.read_text()
  }
  is_short = path.suffix == '' and path.name == given
  if path.stem in names and (is_short or path.parts[:-1] == ('configs',)):
    return f'{_CONFIGS / path.stem}.py{colon}{arm}'
  raise ValueError(
    f'--config = {text!r}: must be FILE.py or FILE.py:ARM, or of this package '
    f'{", ".join(sorted(names))}'
  )


def _of_config(text: str, argv: list[str]) -> str:
  """Returns the text of an error, in our words if a flag of a config is wrong.

  Args:
    text: of ml_collections, in one line, or of anything else.
    argv: the arguments of the process.
  """
  if 'get_config() takes 0 positional arguments' in text:
    return f'{_flag("config", argv)}: must be without :ARM, as it has no arms'
  if section := _NO_SECTION.search(text):
    flag = _flag(f'config.{section[1]}', argv)
    return (
      f'{flag}: must be absent, because {section[2]} is None in this config'
    )
  if section := _NO_VALUE.search(text):
    return f'{_flag(section[1], argv)}: must be given field by field'
  if missing := _NO_FIELD.search(text) or _NO_PARENT.search(text):
    path, name = missing['path'], missing['name']
    module, _, kind = path.rpartition('.')
    fields = dataclasses.fields(getattr(sys.modules[module], kind))
    names = ', '.join(field.name for field in fields)
    flag = _flag(rf'config\.(?:\w+\.)*{name}(?:\.\w+)*', argv)
    return f'{flag}: must have, in the place of {name}, one of {names}'
  return text


def _flag(name: str, argv: list[str]) -> str:
  """Returns the flag whose name matches a pattern, as `--name = value`."""
  for argument, after in zip(argv, [*argv[1:], ''], strict=True):
    flag, is_given, value = argument.partition('=')
    if re.fullmatch(f'--?(?:no)?{name}', flag):
      return f'{flag} = {(value if is_given else after)!r}'
  return f'--{name}'


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
