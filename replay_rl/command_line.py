"""The command line of programs that read a config."""

import sys

from absl import flags


def parse(argv: list[str], own: flags.FlagValues = flags.FLAGS) -> list[str]:
  """Parses flags; for a wrong flag, prints one line and exits with status 2.

  Args:
    argv: the arguments of the process.
    own: the flags of the program, if they are not the global flags; then other
      programs can import its module.

  Returns:
    The name of the program and the arguments that are not flags.
  """
  try:
    if own is not flags.FLAGS:
      flags.FLAGS(argv[:1])
    return own(argv)
  except (
    flags.Error,
    KeyError,
    AttributeError,
    TypeError,
    ValueError,
  ) as error:
    print(f'error: {error}', file=sys.stderr)
    sys.exit(2)
