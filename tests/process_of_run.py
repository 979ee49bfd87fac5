"""One process of a run over many: python -m tests.process_of_run FLAGS JOBS.

JOBS is a JSON list of jobs, which are trained one after the other. A job needs
the first two of these:

  module: tests.tiny or tests.tiny_text, whose `config` returns the config.
  workdir: folder of the run.
  changes: arguments of `config`.
  folder: folder for the data of tests.tiny_text.
  workdir_of_1: the folder as process 1 spells it.
  changes_of_1: further arguments of `config`, in process 1 alone.
  signal: [name, process, iteration]; that process gets it after that iteration.
  error: regular expression of the ValueError that all processes must raise.
"""

import importlib
import json
import os
import pathlib
import re
import signal
import sys
from typing import Any
from unittest import mock

from absl import flags
from absl import logging as absl_logging

from replay_rl import train
from replay_rl.parallel import processes
from replay_rl.run import logs

_SECONDS = 900  # Then the process ends, even if its parent is gone.


def main() -> None:
  signal.alarm(_SECONDS)
  absl_logging.set_verbosity(absl_logging.WARNING)
  _, jobs = flags.FLAGS(sys.argv)
  values = flags.FLAGS
  peers = processes.start(
    from_environment=False,
    coordinator_address=values.coordinator_address,
    num_processes=values.num_processes,
    process_id=values.process_id,
    initialization_timeout=60,
    heartbeat_timeout=30,
  )
  with processes.ending_all(peers):
    for job in json.loads(jobs):
      _do(job, values.process_id)


def _do(job: dict[str, Any], process_id: int) -> None:
  changes, workdir = job.get('changes', {}), job['workdir']
  if process_id == 1:
    changes |= job.get('changes_of_1', {})
    workdir = job.get('workdir_of_1', workdir)
  module = importlib.import_module(job['module'])
  folder = [pathlib.Path(job['folder'])] if 'folder' in job else []
  config = module.config(*folder, **changes)
  name, process, iteration = job.get('signal', (None, None, None))
  lines = logs.lines

  def lines_and_signal(*args):
    actual = lines(*args)
    if (process_id, actual[0]['iteration']) == (process, iteration):
      os.kill(os.getpid(), getattr(signal, name))
    return actual

  error = job.get('error')
  try:
    with mock.patch.object(logs, 'lines', lines_and_signal):
      train.train(config, workdir)
  except ValueError as raised:
    if error is None or not re.search(error, str(raised)):
      raise
  else:
    assert error is None, f'{error} was not raised'


if __name__ == '__main__':
  main()
