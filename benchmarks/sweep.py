"""Counts what a sweep compiles, and compares it with a process for each cell.

The cells have one shape and differ in the learning rate. First one process runs
all cells, one after the other. Then another process runs them in lockstep. Then
a few of the cells run again, and each has a process of its own. The later
processes read programs that took more than a second to compile from the cache
of the first one. CPU seconds depend less than seconds on what else the machine
does.

  python benchmarks/sweep.py --cells=96 --lockstep=8 --separate=4
"""

import argparse
import json
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import jax

from replay_rl.configs import quickstart
from replay_rl.run import config as config_lib
from replay_rl.sweep import cells as cells_lib
from replay_rl.sweep import local
from replay_rl.sweep import planning

_COMPILATION = '/jax/core/compile/backend_compile_duration'
_FIRST, _LAST = 1e-4, 1e-3  # Learning rates.


def make_cells(
  number: int, iterations: int, cache_dir: str
) -> list[cells_lib.Cell]:
  base = config_lib.changed(
    quickstart.get_config('reuse_2'),
    {
      'cache_dir': cache_dir,
      'num_seeds': 1,
      'vmap_seeds': True,  # Which needs several cells to mean anything.
      'num_iterations': iterations,
      'warm_start.num_steps': 0,
      'sampler.num_prompts': 16,
      'replay.capacity': 512,
      'replay.batch_size': 128,
      'checkpoint.every': iterations,
      'evaluation.every': iterations,
      'evaluation.every_cost': None,
      'stop': None,
      'logging.samples_every': 0,
      'logging.writers': None,
    },
  )
  step = (_LAST - _FIRST) / max(number - 1, 1)
  rates = [_FIRST + i * step for i in range(number)]
  return cells_lib.make(base, [{'optimizer.learning_rate': x} for x in rates])


def run_cells(
  number: int,
  iterations: int,
  *,
  only: int | None,
  lockstep: int | None,
  folder: pathlib.Path,
) -> None:
  """Runs all cells, or one; prints the compilations before each end as JSON."""
  counts = [0]
  jax.monitoring.register_event_duration_secs_listener(
    lambda event, *_, **__: counts.append(
      counts.pop() + (event == _COMPILATION)
    )
  )
  compiled = []

  def say(text):
    print(text, file=sys.stderr)
    compiled.append(counts[0] - sum(compiled))

  cells = make_cells(number, iterations, str(folder / 'cache'))
  if only is not None:
    cells = cells[only : only + 1]
  out = folder / f'only_{only}_lockstep_{lockstep}'
  ended = local.execute(
    planning.Work(
      file=pathlib.Path(__file__),
      out=out,
      planned=planning.plan(cells, out),
      chosen=(),
      settings=[] if lockstep is None else [f'--lockstep={lockstep}'],
      say=say,
      allow_code_change=False,
    )
  )
  errors = [one.error for one in ended if one.error is not None]
  if errors:
    raise ValueError(f'errors of cells = {errors}: must be none')
  print(json.dumps(compiled))


def timed(*arguments: str) -> tuple[float, float, list[int]]:
  """Returns seconds, CPU seconds and compilations of a process."""

  def cpu():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime

  before, started = cpu(), time.monotonic()
  done = subprocess.run(
    [sys.executable, __file__, *arguments], check=True, stdout=subprocess.PIPE
  )
  seconds = time.monotonic() - started
  return seconds, cpu() - before, json.loads(done.stdout.splitlines()[-1])


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--cells', type=int, default=96)
  parser.add_argument('--lockstep', type=int, default=8)
  parser.add_argument('--separate', type=int, default=4)
  parser.add_argument('--iterations', type=int, default=10)
  parser.add_argument('--folder', type=pathlib.Path, help=argparse.SUPPRESS)
  parser.add_argument('--only', type=int, help=argparse.SUPPRESS)
  parser.add_argument('--at_once', type=int, help=argparse.SUPPRESS)
  arguments = parser.parse_args()
  number = arguments.cells
  if arguments.folder is not None:
    run_cells(
      number,
      arguments.iterations,
      only=arguments.only,
      lockstep=arguments.at_once,
      folder=arguments.folder,
    )
    return
  with tempfile.TemporaryDirectory() as folder:
    given = (
      *(f'--cells={number}', f'--iterations={arguments.iterations}'),
      f'--folder={folder}',
    )
    seconds, cpu, compiled = timed(*given)
    in_lockstep = timed(*given, f'--at_once={arguments.lockstep}')
    alone = [
      timed(*given, f'--only={i * number // arguments.separate}')
      for i in range(arguments.separate)
    ]
  wall, used = (statistics.median(x[i] for x in alone) for i in range(2))
  print(
    json.dumps(
      {
        'cells': number,
        'iterations': arguments.iterations,
        'compilations_of_first_cell': compiled[0],
        'compilations_of_all_others': sum(compiled[1:]),
        'seconds_a_cell': round(seconds / number, 2),
        'cpu_seconds_a_cell': round(cpu / number, 2),
        'lockstep': arguments.lockstep,
        'compilations_in_lockstep': sum(in_lockstep[2]),
        'seconds_a_cell_in_lockstep': round(in_lockstep[0] / number, 2),
        'cpu_seconds_a_cell_in_lockstep': round(in_lockstep[1] / number, 2),
        'seconds_of_a_process': round(wall, 2),
        'cpu_seconds_of_a_process': round(used, 2),
        'ratio_of_seconds': round(wall * number / seconds, 1),
        'ratio_of_cpu_seconds': round(used * number / cpu, 1),
      },
      indent=1,
    )
  )


if __name__ == '__main__':
  main()
