"""Runs the main function of a program as its command line would."""

import contextlib
import io
import sys
from collections.abc import Callable
from unittest import mock

from absl import flags

from replay_rl import command_line


def ran(
  main: Callable[[list[str]], None],
  own: flags.FlagValues,
  *arguments: str,
  description: str | None = None,
) -> tuple[int, str, str]:
  """Returns the exit status and what was printed; its flags are then unset."""
  argv = ['program', *arguments]
  out, err = io.StringIO(), io.StringIO()
  status = 0
  with (
    mock.patch.object(sys, 'argv', argv),
    contextlib.redirect_stdout(out),
    contextlib.redirect_stderr(err),
  ):
    try:
      main(command_line.parse(argv, own, description))
    except SystemExit as ended:
      assert isinstance(ended.code, int)
      status = ended.code
    finally:
      for name in list(own):
        own[name].unparse()
      own.unparse_flags()
  return status, out.getvalue(), err.getvalue()
