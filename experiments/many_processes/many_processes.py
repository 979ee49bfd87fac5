"""Trains one run by one, two and four processes, and compares.

The processes talk over the loopback, with Gloo. All runs are of the same config
on a mesh of four virtual devices of the CPU. For each number of processes:

  whole: nobody touches it.
  killed: one process gets `kill -9`, the others have to end too, and the same
    command is run again.
  ended: one process gets SIGTERM, and all have to end with status 143. Then one
    process goes on, on a mesh of one device.

Command: python experiments/many_processes/many_processes.py
"""

import argparse
import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

HERE = pathlib.Path(__file__).parent
_NUM_DEVICES = 4
_TIMEOUT = 600  # Seconds, for a run.


def main() -> None:
  """Prints and writes how the runs differ; status 1 if they do."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--config', default='configs/quickstart.py:reuse_2')
  parser.add_argument('--processes', type=int, nargs='+', default=[2, 4])
  parser.add_argument('--iterations', type=int, default=6)
  parser.add_argument('--out', default=HERE / 'results.json')
  arguments = parser.parse_args()
  with tempfile.TemporaryDirectory() as folder:
    comparisons = compare(
      pathlib.Path(folder),
      arguments.config,
      arguments.processes,
      arguments.iterations,
    )
  text = json.dumps(comparisons, indent=2)
  pathlib.Path(arguments.out).write_text(text + '\n')
  print(text)
  sys.exit(
    0 if all(case['is_as_it_must'] for case in comparisons.values()) else 1
  )


def compare(
  folder: pathlib.Path, config: str, processes: Sequence[int], iterations: int
) -> dict[str, Any]:
  """Returns how runs of these numbers of processes differ from one of one.

  Args:
    folder: for all runs and their cache.
    config: the flag `--config`.
    processes: numbers of them, divisors of 4.
    iterations: of each run, at least 5.
  """
  one = folder / 'one'
  _finish(folder, config, one, 1, iterations)
  return {
    f'{number} processes': _compare(folder, config, one, number, iterations)
    for number in processes
  }


def _compare(
  folder: pathlib.Path,
  config: str,
  one: pathlib.Path,
  number: int,
  iterations: int,
) -> dict[str, Any]:
  whole, killed, ended = (
    folder / f'{name}_{number}' for name in ('whole', 'killed', 'ended')
  )
  _finish(folder, config, whole, number, iterations)
  commands = _commands(folder, config, killed, number, iterations)
  with launched(commands, _NUM_DEVICES // number) as started:
    _wait_for_lines(started, killed, iterations // 2)
    started[-1].kill()
    moment = time.monotonic()
    after_kill = [process.wait(_TIMEOUT) for process in started]
    seconds = time.monotonic() - moment
  _finish(folder, config, killed, number, iterations)
  commands = _commands(folder, config, ended, number, iterations)
  with launched(commands, _NUM_DEVICES // number) as started:
    _wait_for_lines(started, ended, iterations // 2)
    started[-1].terminate()
    after_sigterm = [process.wait(_TIMEOUT) for process in started]
  saved, lines = steps(ended), _num_lines(ended)
  _finish(folder, config, ended, 1, iterations, '--config.mesh.shape.data=1')
  comparisons = {
    'whole against one process': differences(one, whole),
    'statuses after kill -9 of the last': after_kill,
    'seconds until all had ended': round(seconds, 1),
    'killed and run again against whole': differences(whole, killed),
    'statuses after SIGTERM to the last': after_sigterm,
    'last step saved': saved[-1],
    'lines of metrics then': lines,
    'ended by one process against one process': differences(one, ended),
  }
  again = comparisons['killed and run again against whole']
  comparisons['is_as_it_must'] = (
    all(status != 0 for status in after_kill)
    and again['arrays_that_differ'] == 0
    and again['metrics_are_equal']
    and saved[-1] == lines
    and after_sigterm == [128 + signal.SIGTERM] * number
    and all(
      comparisons[f'{name} against one process']['largest_difference'] < 1e-4
      and comparisons[f'{name} against one process']['integers_that_differ']
      == 0
      for name in ('whole', 'ended by one process')
    )
  )
  return comparisons


def _commands(
  folder: pathlib.Path,
  config: str,
  workdir: pathlib.Path,
  number: int,
  iterations: int,
  *changes: str,
) -> list[list[str]]:
  return [
    [
      '-m',
      'replay_rl.train',
      f'--config={config}',
      f'--workdir={workdir}',
      f'--config.cache_dir={folder / "cache"}',
      '--config.num_seeds=1',
      f'--config.num_iterations={iterations}',
      '--config.checkpoint.every=2',
      f'--config.mesh.shape.data={_NUM_DEVICES}',
      *changes,
      *own,
    ]
    for own in process_flags(number)
  ]


def _finish(folder, config, workdir, number, iterations, *changes) -> None:
  commands = _commands(folder, config, workdir, number, iterations, *changes)
  with launched(commands, _NUM_DEVICES // number) as started:
    statuses = [process.wait(_TIMEOUT) for process in started]
  if any(statuses):
    raise RuntimeError(f'statuses of {commands[0]} = {statuses}: must be 0')


def _wait_for_lines(
  started: Sequence[subprocess.Popen], workdir: pathlib.Path, number: int
) -> None:
  while _num_lines(workdir) < number:
    if any(process.poll() is not None for process in started):
      raise RuntimeError(f'lines = {_num_lines(workdir)}: must reach {number}')
    time.sleep(0.02)


def _num_lines(workdir: pathlib.Path) -> int:
  path = workdir / 'metrics.jsonl'
  return path.read_bytes().count(b'\n') if path.exists() else 0


def process_flags(number: int) -> list[list[str]]:
  """Returns the flags of each of so many processes; none of a single one."""
  if number == 1:
    return [[]]
  address = f'127.0.0.1:{free_port()}'
  return [
    [
      f'--coordinator_address={address}',
      f'--num_processes={number}',
      f'--process_id={index}',
    ]
    for index in range(number)
  ]


def free_port() -> int:
  """Returns a port of the loopback that nobody uses now."""
  with contextlib.closing(socket.socket()) as probe:
    probe.bind(('127.0.0.1', 0))
    return probe.getsockname()[1]


@contextlib.contextmanager
def launched(
  commands: Sequence[Sequence[str]], num_devices: int, **popen: Any
) -> Iterator[list[subprocess.Popen]]:
  """Starts Python with each of the commands; kills what is left at the end.

  Args:
    commands: arguments of Python.
    num_devices: of each process.
    **popen: see `subprocess.Popen`.
  """
  environment = os.environ | {
    'JAX_PLATFORMS': 'cpu',
    'JAX_NUM_CPU_DEVICES': str(num_devices),
    # Processes that start later find the programs of these.
    'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
    'JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES': '-1',
  }
  started = []
  try:
    for command in commands:
      started.append(
        subprocess.Popen([sys.executable, *command], env=environment, **popen)
      )
    yield started
  finally:
    for process in started:
      process.kill()
      process.wait()
      if process.stdout is not None:
        process.stdout.close()


def differences(one: pathlib.Path, other: pathlib.Path) -> dict[str, Any]:
  """Returns how the last checkpoints and the metrics of two runs differ.

  Returns:
    'arrays_that_differ' in any bit; 'integers_that_differ', arrays of integers
    or bools among them; 'largest_difference' of floats, absolute;
    'metrics_are_equal', byte for byte.
  """
  first, second = arrays(one), arrays(other)
  assert first.keys() == second.keys(), first.keys() ^ second.keys()
  differing = [
    name for name in first if first[name].tobytes() != second[name].tobytes()
  ]
  floats = [name for name in differing if first[name].dtype.kind == 'f']
  return {
    'arrays_that_differ': len(differing),
    'of_arrays': len(first),
    'integers_that_differ': len(differing) - len(floats),
    'largest_difference': max(
      (float(np.abs(first[name] - second[name]).max()) for name in floats),
      default=0.0,
    ),
    'metrics_are_equal': (one / 'metrics.jsonl').read_bytes()
    == (other / 'metrics.jsonl').read_bytes(),
  }


def steps(workdir: pathlib.Path) -> list[int]:
  """Returns the steps of the checkpoints of a run."""
  comparisons = (workdir / 'checkpoints').iterdir()
  return sorted(int(path.name) for path in comparisons if path.name.isdecimal())


def arrays(workdir: pathlib.Path) -> dict[str, np.ndarray]:
  """Returns the arrays of the last checkpoint of a run, by name."""
  path = workdir / 'checkpoints' / str(steps(workdir)[-1]) / 'run'
  with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
    shapes = reader.metadata(path).item_metadata.tree
    as_numpy = jax.tree.map(
      lambda _: ocp.RestoreArgs(restore_type=np.ndarray), shapes
    )
    tree = reader.restore(
      path, args=ocp.args.PyTreeRestore(restore_args=as_numpy)
    )
  leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
  return {jax.tree_util.keystr(path): leaf for path, leaf in leaves}


if __name__ == '__main__':
  main()
