"""Plans a run.

    python -m replay_rl.plan memory --config=configs/quickstart.py --device=h200
    python -m replay_rl.plan replay --mu=5.28 --rho=0.1 --alpha=0.3
    python -m replay_rl.plan fit runs/a --out=runs/a/fit

memory: what a run needs of each device, and the least time that it takes.
replay: how large a buffer and how much reuse would cost the least.
fit: measures from runs the numbers that `replay` asks for.

`--help` after the word lists the flags.
"""

import functools
import sys

from absl import app

from replay_rl import command_line
from replay_rl.plan import of_fit
from replay_rl.plan import of_memory
from replay_rl.plan import of_replay

_PROGRAMS = {'memory': of_memory, 'replay': of_replay, 'fit': of_fit}


def main(argv: list[str]) -> None:
  """Runs the program that the first argument names."""
  name = argv[1] if len(argv) > 1 else None
  if name in ('--help', '-h'):
    print(__doc__)
    return
  if name not in _PROGRAMS:
    print(
      f'error: plan = {name!r}: must be followed by one of '
      f'{", ".join(_PROGRAMS)}, and then by its flags',
      file=sys.stderr,
    )
    sys.exit(2)
  program = _PROGRAMS[name]
  app.run(
    program.main,
    argv=[f'{argv[0]} {name}', *argv[2:]],
    flags_parser=functools.partial(
      command_line.parse, own=program.FLAGS, description=program.__doc__
    ),
  )


if __name__ == '__main__':
  main(sys.argv)
