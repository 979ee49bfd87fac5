"""Kills a sweep at random moments, and compares what it becomes.

A small sweep runs untouched. The same sweep, in another folder, is ended by
`kill -9` again and again, each time followed by the same command. In the end
the table and all metrics must be equal byte for byte. A moment is a number of
lines of metrics, drawn from the whole sweep, and up to a second after the line
or after the start of the process.

Command: python experiments/replay_study/kill_sweep.py --kills=10
"""

import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

from replay_rl.configs import base_small
from replay_rl.run import config as config_lib
from replay_rl.sweep import cells
from replay_rl.sweep import results

_CACHE = 'CACHE_OF_SWEEP'
_TIMEOUT = 1800  # Seconds of a sweep.


def get_cells() -> list[cells.Cell]:
  """Returns six cells with two sets of programs, of a second or two each."""
  base = config_lib.changed(
    base_small.on_policy(
      'addition(num_digits=1, forget_probability=0.5)',
      num_iterations=40,
      learning_rate=1e-3,
    ),
    {
      'cache_dir': os.environ[_CACHE],
      'num_seeds': 2,
      'stop': 'max_cost(cost_units=6000)',
      'model.d_model': 16,
      'model.head_dim': 4,
      'model.num_layers': 1,
      'model.d_ff': 32,
      'warm_start.num_steps': 150,
      'sampler.num_prompts': 4,
      'replay.capacity': 32,
      'evaluation.every': 0,
      'evaluation.every_cost': 1000.0,
      'logging.writers': None,
      'logging.samples_every': 0,
      'checkpoint.every': 3,
    },
  )
  axes = {
    'replay.updates_per_iteration': [1],
    'sampler.num_prompts': [4, 2],
    'optimizer.learning_rate': [1e-3, 2e-3, 4e-3],
  }
  return cells.make(base, cells.product(axes))


def main() -> None:
  """Prints how the killed sweep differs, as JSON; status 1 if it does."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--kills', type=int, default=10)
  parser.add_argument('--seed', type=int, default=0, help='of the moments')
  arguments = parser.parse_args()
  with tempfile.TemporaryDirectory() as folder:
    os.environ[_CACHE] = str(pathlib.Path(folder) / 'cache')
    result = compare(pathlib.Path(folder), arguments.kills, arguments.seed)
  print(json.dumps(result, indent=1))
  sys.exit(1 if result['different'] else 0)


def compare(folder: pathlib.Path, kills: int, seed: int) -> dict:
  """Returns how the killed sweep differs from the untouched one.

  Raises:
    ValueError: a sweep that nobody kills fails.
  """
  untouched, killed = folder / 'untouched', folder / 'killed'
  _finish(_start(untouched))
  moments, done = random.Random(seed), []
  num_ended = 0
  lines = sorted(moments.sample(range(_num_lines(untouched)), kills))
  for number in lines:
    process = _start(killed)
    while _num_lines(killed) < number and process.poll() is None:
      time.sleep(0.005)
    time.sleep(moments.uniform(0, 1))
    num_ended += process.poll() is not None
    process.kill()
    process.wait()
    done.append(_num_lines(killed))
  _finish(_start(killed))
  files = [path.relative_to(untouched) for path in _metrics(untouched)]
  files.append(pathlib.Path(results.EVALUATIONS))
  return {
    'different': [
      str(name)
      for name in files
      if (untouched / name).read_bytes() != (killed / name).read_bytes()
    ],
    'compared_files': len(files),
    'compared_bytes': sum((untouched / x).stat().st_size for x in files),
    'kills': kills,
    'kills_after_the_end': num_ended,
    'lines_of_the_sweep': _num_lines(untouched),
    'lines_written_at_each_kill': done,
  }


def _metrics(out: pathlib.Path) -> list[pathlib.Path]:
  return sorted(out.glob('*/metrics.jsonl'))


def _num_lines(out: pathlib.Path) -> int:
  return sum(path.read_bytes().count(b'\n') for path in _metrics(out))


def _start(out: pathlib.Path) -> subprocess.Popen:
  return subprocess.Popen(
    [
      *(sys.executable, '-m', 'replay_rl.sweep'),
      *(f'--sweep={__file__}', f'--out={out}'),
    ],
    stdout=subprocess.DEVNULL,
  )


def _finish(process: subprocess.Popen) -> None:
  status = process.wait(_TIMEOUT)
  if status:
    raise ValueError(f'status of the sweep = {status}: must be 0')


if __name__ == '__main__':
  main()
