"""The run that the tests of `plan fit` measure."""

import functools
import pathlib

from replay_rl import train
from tests import tiny

CONFIG = tiny.config(
  num_seeds=2,
  num_iterations=3,
  sampler__weight_lag=2,
)


@functools.cache
def folder() -> pathlib.Path:
  """Returns the folder of the run, trained once in a process."""
  path = pathlib.Path(tiny.FOLDER) / 'a run [to] measure'
  train.train(CONFIG, path)
  return path
