"""What the programs that read a config have in common on the command line."""

import sys

from absl import flags


def parse(argv: list[str], own: flags.FlagValues = flags.FLAGS) -> list[str]:
  """Parses flags; if one is wrong, names it in one line and exits with 2.

  Args:
    argv: of the process.
    own: the flags of the program, if they are not the global ones, so that it
      can be imported beside others.

  Returns:
    The name of the program and the arguments that are no flags.
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
