"""What all sweeps of the study share: the run, and its arms.

The task is 3-digit addition, the model that of configs/base_small.py. A seed
ends at the level, or when its budget is spent.
"""

from typing import Any

from configs import arms
from configs import base_small
from replay_rl.run import config as config_lib

GROUP_SIZE = 8
BUDGET = 100_000.0  # Cost units of a seed; the best cells need about 30,000.
LEVEL = 0.8
# The best cells of tune.py and tune_fine.py, by reuse: rollouts of an update,
# and learning rate.
TUNED = {1: (64, 1.75e-4), 2: (64, 1.75e-4), 4: (128, 0.875e-4)}


def base(
  *, quantum: float, seeds: range, budget: float = BUDGET
) -> config_lib.Config:
  """Returns the on-policy run that all cells of the study start from.

  Args:
    quantum: cost units between two evaluations.
    seeds: those of each cell.
    budget: cost units of a seed.
  """
  config = base_small.on_policy(
    'addition(num_digits=3, forget_probability=0.7)',
    num_iterations=10_000,  # The cost ends a run before.
    learning_rate=7e-4,
  )
  return config_lib.changed(
    config,
    {
      'seed': seeds.start,
      'num_seeds': len(seeds),
      'stop': f'max_cost(cost_units={budget}) + '
      f'level(greedy={LEVEL}, num_evaluations=2)',
      'evaluation.every': 0,
      'evaluation.every_cost': quantum,
      'evaluation.num_prompts': 256,
      'evaluation.num_samples': 1,
      'logging.tensorboard': False,
      'logging.samples_every': 0,
      'checkpoint.every': 100,
      'checkpoint.keep': 1,
    },
  )


def reuse(
  uses: int, batch_size: int, rate: float, *, num_generations: int
) -> dict[str, Any]:
  """Returns the changes for y = `uses` and x = `num_generations`.

  A generation has R = B / y rollouts and each is followed by one update, so x =
  N / R is the number of generations that the buffer holds. With y = 1 the run
  is on-policy and has no buffer.

  Args:
    uses: y = B / R.
    batch_size: B.
    rate: learning rate.
    num_generations: x = N / R.

  Raises:
    ValueError: a generation would not have whole groups.
  """
  num_fresh = batch_size // uses
  num_prompts, rest = divmod(num_fresh, GROUP_SIZE)
  if rest or num_fresh * uses != batch_size:
    raise ValueError(
      f'batch_size = {batch_size}: must be a multiple of uses x group_size = '
      f'{uses * GROUP_SIZE}'
    )
  changes = {
    'name': f'reuse {uses}',
    'sampler.num_prompts': num_prompts,
    'replay.capacity': num_generations * num_fresh,
    'optimizer.learning_rate': rate,
  }
  if uses == 1:
    return changes | {'replay.capacity': num_fresh}
  return (
    buffer(batch_size, rate, capacity=num_generations * num_fresh) | changes
  )


def buffer(batch_size: int, rate: float, *, capacity: int) -> dict[str, Any]:
  """Returns the changes for a buffer that is sampled uniformly."""
  return arms.reuse(1, batch_size) | {
    'replay.capacity': capacity,
    'optimizer.learning_rate': rate,
  }


def tuned(uses: int, *, num_generations: int = 4) -> dict[str, Any]:
  """Returns `reuse` with the batch and the rate that were tuned for it."""
  return reuse(uses, *TUNED[uses], num_generations=num_generations)
