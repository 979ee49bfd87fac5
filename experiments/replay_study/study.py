"""What all sweeps of the study share: the run, and its arms.

The task is 3-digit addition, the model that of configs/base_small.py. A seed
ends at the level, or when its budget is spent. The sweeps of diversity have
Countdown instead, and no level.
"""

from typing import Any

from replay_rl.configs import arms
from replay_rl.configs import base_small
from replay_rl.run import config as config_lib

GROUP_SIZE = 8
BUDGET = 100_000.0  # Cost units of a seed; the best cells need about 30,000.
LEVEL = 0.8
# The best cells of the tuning sweeps, by reuse: rollouts of an update, and
# learning rate. For reuse 4 and 8 no smaller batch has whole groups.
TUNED = {
  1: (16, 0.875e-4),
  2: (32, 0.4375e-4),
  4: (32, 0.4375e-4),
  8: (64, 0.21875e-4),
}
# The best rates at a batch of 64, next to the 60 of the paper.
BATCH = 64
RATES = {1: 1.75e-4, 2: 0.875e-4, 4: 0.4375e-4}
# The same on Countdown, from the small grid of diversity_tune.py.
TUNED_ON_COUNTDOWN = {1: (32, 0.875e-4), 2: (32, 0.875e-4)}
# The same of the queue of six workers and two trainers, from queue_tune.py.
TUNED_QUEUE = (16, 0.875e-4)
# What `plan replay` chose, from the noise that `plan fit` measured on tuning
# seeds: x* = 54, y* = 8.8, and a saving of 60 %. It was written here before the
# runs of confirm.py, see README.md.
PLANNED = {'uses': 8, 'num_generations': 54}


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
      'logging.writers': None,
      'logging.samples_every': 0,
      'checkpoint.every': 100,
      'checkpoint.keep': 1,
    },
  )


def countdown(
  *, quantum: float, seeds: range, num_samples: int
) -> config_lib.Config:
  """Returns `base` on Countdown; every seed spends its budget.

  Args:
    quantum, seeds: see `base`.
    num_samples: of each of the 128 prompts of an evaluation, for pass@k.
  """
  return config_lib.changed(
    base(quantum=quantum, seeds=seeds),
    {
      'task': 'countdown(num_numbers=3, max_number=8, slip_probability=0.2)',
      'stop': f'max_cost(cost_units={BUDGET})',
      'evaluation.num_prompts': 128,
      'evaluation.num_samples': num_samples,
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


def tuned(uses: int, num_generations: int | None = None) -> dict[str, Any]:
  """Returns `reuse` with the batch and the rate that were tuned for it.

  Args:
    uses: y.
    num_generations: x; None for that of the tuning.
  """
  if num_generations is None:
    num_generations = 4 if uses < 8 else 8
  return reuse(uses, *TUNED[uses], num_generations=num_generations)


def at_batch(uses: int) -> dict[str, Any]:
  """Returns `reuse` with a batch of 64 and the rate tuned for that."""
  changes = reuse(uses, BATCH, RATES[uses], num_generations=4)
  return changes | {'name': f'{changes["name"]}, batch {BATCH}'}


def planned() -> dict[str, Any]:
  """Returns the planner's choice, with batch and rate tuned for its reuse."""
  return tuned(**PLANNED) | {'name': 'planned'}
