"""Starts runs over many processes on the loopback, each with one device."""

import importlib.util
import json
import pathlib
import subprocess
from concurrent import futures
from typing import Any
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parents[1]
_SECONDS = 900


def _experiment():
  path = ROOT / 'experiments/many_processes/many_processes.py'
  spec = importlib.util.spec_from_file_location('many_processes', path)
  assert spec is not None and spec.loader is not None
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


many_processes = _experiment()


class Ended(NamedTuple):
  """A process that has ended; if signal s ended it, the status is -s."""

  status: int
  output: str


def run_jobs(num_processes: int, *jobs: dict[str, Any]) -> list[Ended]:
  """Runs `tests.process_of_run` in `num_processes` processes to their end."""
  commands = [
    ['-m', 'tests.process_of_run', *flags, json.dumps(jobs)]
    for flags in many_processes.process_flags(num_processes)
  ]
  with many_processes.launched(
    commands,
    1,
    cwd=ROOT,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
  ) as started:
    # A process whose output nobody reads stops when its pipe is full.
    with futures.ThreadPoolExecutor(num_processes) as pool:
      outputs = list(
        pool.map(
          lambda process: process.communicate(timeout=_SECONDS)[0], started
        )
      )
    return [
      Ended(process.returncode, output)
      for process, output in zip(started, outputs, strict=True)
    ]
