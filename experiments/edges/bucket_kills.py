"""Kills a run in a bucket at random moments, and compares what it becomes.

The bucket is a server of moto on this machine. After each `kill -9` the same
command continues with another, empty staging folder, as on a new machine. In
the end every array of the last checkpoint and every byte of the metrics and
samples must be those of a run in a local folder that nobody touched. Then it
times iterations with a local folder and with the bucket.

Command: PYTHONPATH=. python experiments/edges/bucket_kills.py
"""

import argparse
import concurrent.futures
import json
import pathlib
import random
import shutil
import statistics
import sys
import tempfile
import time

import kills

from replay_rl.bucket import reading
from tests import fake_bucket

_CASE = kills.Case(0, lambda *_: None, kills.SMALL)
_NUM_TIMED = 20  # Iterations of a run that is timed.
_SAVED_EVERY = (1, 10)  # Iterations from one checkpoint to the next.


def main() -> None:
  """Prints a line of JSON for each part; status 1 if a run differs."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--parts', default='kills,times')
  parser.add_argument('--kills', type=int, default=10)
  parser.add_argument('--repeats', type=int, default=3, help='of a timed pair')
  parser.add_argument('--seed', type=int, default=0, help='of the moments')
  options = parser.parse_args()
  parts = {
    'kills': lambda folder: compare(folder, options.kills, options.seed),
    'times': lambda folder: timed(folder, options.repeats),
  }
  status = 0
  for name in options.parts.split(','):
    with tempfile.TemporaryDirectory() as folder, fake_bucket.amazon():
      result = parts[name](pathlib.Path(folder))
    print(json.dumps(result), flush=True)
    status |= bool(result.get('different'))
  sys.exit(status)


def compare(folder: pathlib.Path, num_kills: int, seed: int) -> dict:
  """Returns how the killed run differs from the untouched one."""
  cache, untouched = folder / 'cache', folder / 'untouched'
  # The first run fills the cache of programs; the second one is compared.
  for workdir in (folder / 'compiled', untouched):
    kills.finish(kills.start(workdir, _CASE, cache))
  address = f's3://{fake_bucket.BUCKET}/killed'
  began = time.monotonic()
  run = _started(folder / 'first', address, cache)
  kills.for_lines(run, 1)
  seconds = time.monotonic() - began
  kills.kill(run)
  moments, done, num_ended = random.Random(seed), [], 0
  for number in range(num_kills):
    run = _started(folder / str(number), address, cache)
    if moments.random() < 0.3:
      time.sleep(moments.uniform(0, seconds))
    else:
      lines = _wait_for_staging(run)
      kills.for_lines(run, lines + moments.randint(1, 3))
      time.sleep(moments.uniform(0, 1))
    num_ended += kills.has_ended(run)
    kills.kill(run)
    done.append(kills.num_lines(run.workdir))
    shutil.rmtree(folder / str(number), ignore_errors=True)
  kills.finish(_started(folder / 'last', address, cache))
  with reading.readable('run', address) as copy:
    different = kills.kill_resume.different(untouched, copy)
  return {
    'different': different,
    'kills': num_kills,
    'kills_after_the_end': num_ended,
    'lines_in_the_staging_folder_at_each_kill': done,
    'compared_bytes': sum(
      (untouched / name).stat().st_size
      for name in ('metrics.jsonl', 'samples.jsonl')
    ),
  }


def timed(folder: pathlib.Path, repeats: int) -> dict:
  """Returns seconds of an iteration by checkpoint.every and by folder.

  A run with a local folder and one with the bucket go at the same time, so that
  both have the same share of the machine.
  """
  result = {}
  for every in _SAVED_EVERY:
    flags = (
      *kills.SMALL,
      f'--config.num_iterations={_NUM_TIMED}',
      f'--config.checkpoint.every={every}',
    )
    pairs = [
      _pair(folder, _CASE._replace(flags=flags), f'{every}-{repeat}')
      for repeat in range(repeats)
    ]
    ratios = [bucket / local for local, bucket in pairs]
    result[f'checkpoint.every={every}'] = {
      'seconds_local_and_bucket': [
        [round(seconds, 3) for seconds in pair] for pair in pairs
      ],
      'median_ratio': round(statistics.median(ratios), 2),
    }
  return result


def _pair(
  folder: pathlib.Path, case: kills.Case, name: str
) -> tuple[float, float]:
  """Returns seconds of an iteration with a local folder, and with a bucket."""
  address = f's3://{fake_bucket.BUCKET}/{name}'
  local, staging = folder / 'local' / name, folder / 'bucket' / name
  runs = (
    kills.start(local, case, folder / 'cache'),
    kills.start(
      staging / 'run', case, folder / 'cache', _place(staging, address)
    ),
  )

  def seconds(run: kills.Run) -> float:
    kills.for_lines(run, 1)
    began = time.monotonic()
    kills.finish(run)
    return (time.monotonic() - began) / (_NUM_TIMED - 1)

  with concurrent.futures.ThreadPoolExecutor(2) as threads:
    first, second = threads.map(seconds, runs)
  return first, second


def _started(
  staging: pathlib.Path, address: str, cache: pathlib.Path
) -> kills.Run:
  return kills.start(staging / 'run', _CASE, cache, _place(staging, address))


def _place(staging: pathlib.Path, address: str) -> list[str]:
  return [f'--workdir={address}', f'--staging={staging}']


def _wait_for_staging(run: kills.Run) -> int:
  """Returns the lines with which a run continues, once they are there."""
  path = run.workdir / 'config.json'
  while not path.exists() and not kills.has_ended(run):
    time.sleep(0.005)
  time.sleep(0.2)  # For the rest of the download.
  return kills.num_lines(run.workdir)


if __name__ == '__main__':
  main()
