"""Kills runs at random moments of each kind, and compares what they become.

Each case trains a run that nobody touches, and another one that `kill -9` ends
again and again, each time followed by the same command. In the end every array
of the last checkpoint and every byte of the metrics and samples must be equal.

Command: python experiments/edges/kills.py [--cases=NAME,NAME]
"""

import argparse
import json
import pathlib
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / 'experiments' / 'kill_resume'))

import kill_resume  # noqa: E402


class Case(NamedTuple):
  """A kind of moment.

  kills: how often.
  wait: (random, folder of the run, lines before, seconds of a start) -> blocks
    until the moment to kill.
  flags: of the run.
  processes: of the run; one of them is killed.
  prepare: (cache) -> None, before each start.
  """

  kills: int
  wait: Callable[[random.Random, pathlib.Path, int, float], None]
  flags: tuple[str, ...]
  config: str = 'configs/quickstart.py:reuse_2'
  processes: int = 1
  prepare: Callable[[pathlib.Path], None] = lambda cache: None


def _num_lines(workdir: pathlib.Path) -> int:
  path = workdir / 'metrics.jsonl'
  return path.read_bytes().count(b'\n') if path.exists() else 0


def _at_start(moments, workdir, before, seconds):
  time.sleep(moments.uniform(0, seconds))


def _while_writing(moments, workdir, before, seconds):
  """Waits for new lines, and then for a part of the time of a checkpoint."""
  _for_lines(workdir, before + moments.randint(1, 3))
  time.sleep(moments.uniform(0, 0.2))


def _at_the_end(moments, workdir, before, seconds):
  _for_lines(workdir, _NUM_ITERATIONS - 1)
  time.sleep(moments.uniform(0, 0.3))


def _for_lines(workdir, number):
  deadline = time.monotonic() + 120
  while _num_lines(workdir) < number and time.monotonic() < deadline:
    time.sleep(0.005)


def _forget_warm_start(cache: pathlib.Path) -> None:
  shutil.rmtree(cache / 'warm_starts', ignore_errors=True)


_NUM_ITERATIONS = 40
_SMALL = (
  '--config.num_seeds=1',
  f'--config.num_iterations={_NUM_ITERATIONS}',
  '--config.checkpoint.every=1',
  '--config.sampler.num_prompts=16',
  '--config.replay.capacity=512',
  '--config.replay.batch_size=128',
)
_TEXT = ('--config.num_iterations=12', '--config.checkpoint.every=1')
CASES = {
  'start-up': Case(20, _at_start, _SMALL),
  'warm start': Case(15, _at_start, _SMALL, prepare=_forget_warm_start),
  'writing': Case(25, _while_writing, _SMALL),
  'last iteration': Case(10, _at_the_end, _SMALL),
  'rollouts in text': Case(
    15, _while_writing, _TEXT, config='configs/gsm8k_tiny.py'
  ),
  'two processes': Case(
    15,
    _while_writing,
    (*_SMALL, '--config.mesh.shape={"data": 2, "fsdp": 1, "tensor": 1}'),
    processes=2,
  ),
}


def main() -> None:
  """Prints a line of JSON per case; status 1 if one differs."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--cases', default=','.join(CASES))
  parser.add_argument('--seed', type=int, default=0, help='of the moments')
  arguments = parser.parse_args()
  is_equal = True
  for name in arguments.cases.split(','):
    with tempfile.TemporaryDirectory() as folder:
      result = compare(pathlib.Path(folder), CASES[name], arguments.seed)
    is_equal &= not result['different']
    print(json.dumps({'case': name} | result), flush=True)
  sys.exit(0 if is_equal else 1)


def compare(folder: pathlib.Path, case: Case, seed: int) -> dict:
  """Returns how the killed run differs from the untouched one."""
  cache, killed = folder / 'cache', folder / 'killed'
  # The first run fills the cache of programs; the second one is compared.
  for workdir in ('compiled', 'untouched'):
    _finish(_start(folder / workdir, case, cache))
  timed = folder / 'timed'
  started = time.monotonic()
  case.prepare(cache)
  processes = _start(timed, case, cache)
  _for_lines(timed, 1)
  seconds = time.monotonic() - started
  _kill(processes)

  moments, done, num_ended = random.Random(seed), [], 0
  while len(done) < case.kills:
    before = _num_lines(killed)
    case.prepare(cache)
    processes = _start(killed, case, cache)
    case.wait(moments, killed, before, seconds)
    num_ended += all(process.poll() is not None for process in processes)
    victim = moments.choice(processes)
    victim.kill()
    # The others have to end by themselves.
    for process in processes:
      process.wait(timeout=60)
    _kill(processes)
    done.append(_num_lines(killed))
  _finish(_start(killed, case, cache))
  return {
    'different': kill_resume.different(folder / 'untouched', killed),
    'kills': case.kills,
    'of_processes_that_had_ended': num_ended,
    'lines_written_at_each_kill': done,
    'compared_bytes': sum(
      (folder / 'untouched' / name).stat().st_size
      for name in ('metrics.jsonl', 'samples.jsonl')
    ),
  }


def _start(
  workdir: pathlib.Path, case: Case, cache: pathlib.Path
) -> list[subprocess.Popen]:
  command = [sys.executable, '-m', 'replay_rl.train', f'--config={case.config}']
  command += [f'--workdir={workdir}', f'--config.cache_dir={cache}']
  command += [*case.flags]
  if case.processes > 1:
    with socket.socket() as free:
      free.bind(('127.0.0.1', 0))
      port = free.getsockname()[1]
    command += [
      f'--coordinator_address=127.0.0.1:{port}',
      f'--num_processes={case.processes}',
    ]
  return [
    subprocess.Popen(
      command + [f'--process_id={number}'] * (case.processes > 1),
      cwd=ROOT,
      stdout=subprocess.DEVNULL,
      stderr=subprocess.DEVNULL,
    )
    for number in range(case.processes)
  ]


def _finish(processes: list[subprocess.Popen]) -> None:
  statuses = [process.wait() for process in processes]
  if any(statuses):
    raise ValueError(f'statuses of the processes = {statuses}: must be 0')


def _kill(processes: list[subprocess.Popen]) -> None:
  for process in processes:
    process.kill()
    process.wait()


if __name__ == '__main__':
  main()
