"""A run of the train program, for the tests of the report."""

import atexit
import functools
import json
import pathlib
import shutil
import tempfile
from typing import Any

from replay_rl import train
from tests import tiny


@functools.cache
def folder() -> pathlib.Path:
  """Trains two seeds, once for all tests of a process."""
  path = pathlib.Path(tempfile.mkdtemp()) / 'run'
  atexit.register(shutil.rmtree, path.parent, ignore_errors=True)
  config = tiny.config(
    # 48 units an iteration: evaluated after the second, third and fourth.
    num_seeds=2,
    evaluation__every_cost=50.0,
    logging__samples_every=2,
    logging__time_events=True,
  )
  train.train(config, path)
  return path


def lines(name: str) -> list[dict[str, Any]]:
  """Returns the lines of a file of the run."""
  text = (folder() / name).read_text()
  return [json.loads(line) for line in text.splitlines()]
