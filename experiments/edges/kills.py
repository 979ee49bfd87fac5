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
from collections.abc import Sequence
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / 'experiments' / 'kill_resume'))

import kill_resume  # noqa: E402


class Case(NamedTuple):
  """A kind of moment.

  kills: how often.
  wait: (random, run, lines before, seconds of a start) -> blocks until the
    moment to kill, or until the run has ended.
  flags: of the run.
  processes: the run has this number of processes, and a kill ends one.
  prepare: (cache) -> None, before each start.
  is_fresh: whether each kill has a run of its own, which is then continued and
    compared.
  """

  kills: int
  wait: Callable[[random.Random, 'Run', int, float], None]
  flags: tuple[str, ...]
  config: str = 'configs/quickstart.py:reuse_2'
  processes: int = 1
  prepare: Callable[[pathlib.Path], None] = lambda cache: None
  is_fresh: bool = False


class Run(NamedTuple):
  """The folder of a run, and its processes."""

  workdir: pathlib.Path
  processes: list[subprocess.Popen]


def num_lines(workdir: pathlib.Path) -> int:
  """Returns how many lines of metrics a folder has."""
  path = workdir / 'metrics.jsonl'
  return path.read_bytes().count(b'\n') if path.exists() else 0


def _at_start(moments: random.Random, run: Run, before: int, seconds: float):
  time.sleep(moments.uniform(0, seconds))


def _while_writing(
  moments: random.Random, run: Run, before: int, seconds: float
):
  """Waits for new lines, and then for a part of the time of a checkpoint."""
  for_lines(run, before + moments.randint(1, 2))
  time.sleep(moments.uniform(0, 0.2))


def _at_the_end(moments: random.Random, run: Run, before: int, seconds: float):
  for_lines(run, _NUM_LAST - 1)
  time.sleep(moments.uniform(0, 0.5))


def for_lines(run: Run, number: int) -> None:
  """Waits until a run has so many lines of metrics, or has ended."""
  while num_lines(run.workdir) < number and not has_ended(run):
    time.sleep(0.005)


def has_ended(run: Run) -> bool:
  """Returns whether all processes of a run have ended."""
  return all(process.poll() is not None for process in run.processes)


def _forget_warm_start(cache: pathlib.Path) -> None:
  shutil.rmtree(cache / 'warm_starts', ignore_errors=True)


_NUM_ITERATIONS = 50
_NUM_LAST = 4  # Iterations of the runs that are killed at their end.
SMALL = (
  '--config.num_seeds=1',
  f'--config.num_iterations={_NUM_ITERATIONS}',
  '--config.checkpoint.every=1',
  '--config.sampler.num_prompts=16',
  '--config.replay.capacity=512',
  '--config.replay.batch_size=128',
)
_LAST = (*SMALL, f'--config.num_iterations={_NUM_LAST}')
_TEXT = ('--config.num_iterations=30', '--config.checkpoint.every=1')
CASES = {
  'start-up': Case(20, _at_start, SMALL),
  'warm start': Case(
    15,
    _at_start,
    _LAST,
    prepare=_forget_warm_start,
    is_fresh=True,
  ),
  'writing': Case(25, _while_writing, SMALL),
  'last iteration': Case(
    10,
    _at_the_end,
    _LAST,
    is_fresh=True,
  ),
  'rollouts in text': Case(
    15, _while_writing, _TEXT, config='configs/gsm8k_tiny.py'
  ),
  'two processes': Case(
    15,
    _while_writing,
    (*SMALL, '--config.mesh.shape={"data": 2, "fsdp": 1, "tensor": 1}'),
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
  untouched = folder / 'untouched'
  # The first run fills the cache of programs; the second one is compared.
  for workdir in (folder / 'compiled', untouched):
    finish(start(workdir, case, cache))
  started = time.monotonic()
  case.prepare(cache)
  timed = start(folder / 'timed', case, cache)
  for_lines(timed, 1)
  seconds = time.monotonic() - started
  kill(timed)

  moments, done, num_ended = random.Random(seed), [], 0
  differing = set()
  while len(done) < case.kills:
    before = num_lines(killed)
    case.prepare(cache)
    run = start(killed, case, cache)
    case.wait(moments, run, before, seconds)
    num_ended += has_ended(run)
    moments.choice(run.processes).kill()
    for process in run.processes:
      process.wait(timeout=60)  # The others have to end by themselves.
    done.append(num_lines(killed))
    if case.is_fresh or len(done) == case.kills:
      finish(start(killed, case, cache))
      differing |= set(kill_resume.different(untouched, killed))
      shutil.rmtree(killed)
  return {
    'different': sorted(differing),
    'kills': case.kills,
    'kills_after_the_end': num_ended,
    'lines_written_at_each_kill': done,
    'compared_bytes': sum(
      (untouched / name).stat().st_size
      for name in ('metrics.jsonl', 'samples.jsonl')
    ),
  }


def start(
  workdir: pathlib.Path,
  case: Case,
  cache: pathlib.Path,
  place: Sequence[str] = (),
) -> Run:
  """Starts the processes of a run.

  Args:
    workdir: where its lines of metrics will be.
    case: the run.
    cache: of its programs.
    place: flags that name its folder; none for `workdir`.
  """
  command = [sys.executable, '-m', 'replay_rl.train', f'--config={case.config}']
  command += place or [f'--workdir={workdir}']
  command += [f'--config.cache_dir={cache}', *case.flags]
  if case.processes > 1:
    with socket.socket() as free:
      free.bind(('127.0.0.1', 0))
      port = free.getsockname()[1]
    command += [
      f'--coordinator_address=127.0.0.1:{port}',
      f'--num_processes={case.processes}',
    ]
  processes = [
    subprocess.Popen(
      command + [f'--process_id={number}'] * (case.processes > 1),
      cwd=ROOT,
      stdout=subprocess.DEVNULL,
      stderr=subprocess.DEVNULL,
    )
    for number in range(case.processes)
  ]
  return Run(workdir, processes)


def finish(run: Run) -> None:
  """Waits for the end of a run; ValueError if a process failed."""
  statuses = [process.wait() for process in run.processes]
  if any(statuses):
    raise ValueError(f'statuses of the processes = {statuses}: must be 0')


def kill(run: Run) -> None:
  """Kills all processes of a run."""
  for process in run.processes:
    process.kill()
    process.wait()


if __name__ == '__main__':
  main()
