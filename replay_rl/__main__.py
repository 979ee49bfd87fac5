"""Runs a program of the package: `replay-rl PROGRAM [FLAG ...]`.

    replay-rl train --config=configs/quickstart.py:reuse_4 --workdir=runs/x
    replay-rl report runs/x --out=report
    replay-rl PROGRAM --help

`python -m replay_rl PROGRAM` and `python -m replay_rl.PROGRAM` are the same.
"""

import os
import runpy
import sys

import replay_rl

PROGRAMS = {
  'train': 'trains a run, or continues it',
  'sweep': 'trains many runs, here or on a cluster',
  'report': 'compares runs or sweeps: tables, figures, pages',
  'evaluate': 'samples a model on benchmarks, and judges its answers',
  'inspect': 'prints what the replay buffer of a checkpoint holds',
  'export': 'writes the model of a checkpoint for transformers',
  'plan': 'memory and time of a run; how much replay pays',
  'compile_check': 'compiles a run for chips that are elsewhere',
}


def main() -> None:
  """Runs the program that the first argument names, as `python -m` does."""
  name, *arguments = sys.argv[1:] or ['--help']
  if name in ('--help', '-h', 'help'):
    lines = (f'  {program:15}{text}' for program, text in PROGRAMS.items())
    print(__doc__, 'programs:', *lines, sep='\n')
    return
  if name == '--version':
    print(replay_rl.__version__)
    return
  if name not in PROGRAMS:
    print(
      f'error: program = {name!r}: must be one of {", ".join(PROGRAMS)}',
      file=sys.stderr,
    )
    sys.exit(2)
  # An installed script has the folder of the script here instead.
  if os.getcwd() not in sys.path:
    sys.path.insert(0, os.getcwd())
  sys.argv[1:] = arguments
  runpy.run_module(f'replay_rl.{name}', run_name='__main__', alter_sys=True)


if __name__ == '__main__':
  main()
