"""A sweep of the sweep program, for the tests of its report."""

import atexit
import functools
import pathlib
import shutil
import tempfile

import numpy as np

from replay_rl.report import sweep_data
from replay_rl.sweep import cells as cells_lib
from replay_rl.sweep import local
from replay_rl.sweep import results
from tests import tiny

# Two batch sizes, at each of which the cells share their programs.
AXES = {'replay.batch_size': [8, 4], 'optimizer.learning_rate': [1e-2, 5e-3]}
NAMES = tuple(
  f'batch_size={batch_size},learning_rate={rate}'
  for batch_size in AXES['replay.batch_size']
  for rate in AXES['optimizer.learning_rate']
)


@functools.cache
def folder() -> pathlib.Path:
  """Trains six seeds of four cells, once for all tests of a process.

  Two updates of 8 or 4 rows and 2 x 16 for the rollouts are 48 or 40 units an
  iteration, so each 100 of six iterations are spent after the third and the
  fifth, at 144 and 240, or 120 and 200.
  """
  path = pathlib.Path(tempfile.mkdtemp()) / 'sweep'
  atexit.register(shutil.rmtree, path.parent, ignore_errors=True)
  base = tiny.config(
    num_seeds=6, num_iterations=6, evaluation__every_cost=100.0
  )
  cells = cells_lib.make(base, cells_lib.product(AXES))
  ended = local.run(cells, path, say=lambda _: None, allow_code_change=False)
  assert not any(one.error for one in ended), ended
  results.write(cells, path)
  return path


def with_scores(
  sweep: sweep_data.Sweep, scores: dict[str, list[list[float]]]
) -> sweep_data.Sweep:
  """Returns the sweep with other greedy scores, `[S, E]` by name of the arm.

  An arm keeps as many seeds as it has scores.
  """
  arms = []
  for arm in sweep.arms:
    if arm.name in scores:
      seeds = tuple(
        seed._replace(
          scores=seed.scores | {sweep_data.GREEDY: np.array(of_seed, float)}
        )
        for seed, of_seed in zip(arm.seeds, scores[arm.name], strict=False)
      )
      arm = arm._replace(seeds=seeds)
    arms.append(arm)
  return sweep._replace(arms=tuple(arms))
