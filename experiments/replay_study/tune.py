"""Tuning of every reuse: batch size and learning rate, on seeds 100 and 101.

Question: which batch and rate is the best for on-policy training, and for each
reuse y = B / R? The results of the study use other seeds.

A generation has R = B / y rollouts and each is followed by one update, so x =
N / R is the number of generations that the buffer holds: 4, and 8 for y = 8.
The largest batch is 480 and not 496, because groups are whole: 480 / 4 = 15
groups of 8.

Command: python -m replay_rl.sweep --sweep=experiments/replay_study/tune.py \
    --out=runs/replay_study/tune
Cost: about 35 min on 2 CPU cores that others use too. Result: not yet kept.
"""

from configs import arms
from configs import base_small
from replay_rl.run import config as config_lib
from replay_rl.sweep import cells

GROUP_SIZE = 8
BUDGET = 100_000.0  # Cost units of a seed; the best cells need about 30,000.
QUANTUM = 4_000.0  # Cost units between evaluations.
LEVEL = 0.8
RATES = (0.875e-4, 1.75e-4, 3.5e-4, 7e-4, 14e-4)
BATCHES = {1: (64, 128, 256, 480), 2: (64, 128, 256, 480)} | {
  4: (64, 128, 256, 480),
  8: (128, 256, 512),
}


def base() -> config_lib.Config:
  """Returns the on-policy run that all cells of the study start from."""
  config = base_small.on_policy(
    'addition(num_digits=3, forget_probability=0.7)',
    num_iterations=10_000,  # The cost ends a run before.
    learning_rate=7e-4,
  )
  return config_lib.changed(
    config,
    {
      'stop': f'max_cost(cost_units={BUDGET}) + '
      f'level(greedy={LEVEL}, num_evaluations=2)',
      'evaluation.every': 0,
      'evaluation.every_cost': QUANTUM,
      'evaluation.num_prompts': 256,
      'evaluation.num_samples': 1,
      'logging.tensorboard': False,
      'logging.samples_every': 0,
      'checkpoint.every': 100,
      'checkpoint.keep': 1,
    },
  )


def reuse(uses: int, batch_size: int, num_generations: int) -> dict:
  """Returns the changes for y = `uses` and x = `num_generations`."""
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
  }
  if uses == 1:
    return changes | {'replay.capacity': num_fresh}
  return arms.reuse(1, num_fresh) | changes | {'replay.batch_size': batch_size}


def get_cells() -> list[cells.Cell]:
  """Returns a cell for each reuse, batch size and rate."""
  changes = [
    reuse(uses, batch_size, num_generations=4 if uses < 8 else 8)
    | {'optimizer.learning_rate': rate}
    for uses, batches in BATCHES.items()
    for batch_size in batches
    for rate in RATES
  ]
  return cells.make(
    config_lib.changed(base(), {'seed': 100, 'num_seeds': 2}),
    changes,
    named_by=['name', 'sampler.num_prompts', 'optimizer.learning_rate'],
  )
