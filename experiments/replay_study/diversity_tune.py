"""Batch and learning rate on Countdown, on seeds 100 and 101.

Question: which batch and rate suit on-policy training and reuse 2 on Countdown?
The grid is small: its edges were not grown.

Command: python -m replay_rl.sweep --out=runs/replay_study/diversity_tune \
    --sweep=experiments/replay_study/diversity_tune.py
Cost and result: see README.md.
"""

from experiments.replay_study import study
from replay_rl.sweep import cells


def get_cells() -> list[cells.Cell]:
  """Returns a cell for each reuse, batch and rate."""
  return cells.make(
    study.countdown(quantum=20_000.0, seeds=range(100, 102), num_samples=1),
    [
      study.reuse(uses, batch_size, rate, num_generations=4)
      for uses in (1, 2)
      for batch_size in (32, 128)
      for rate in (0.875e-4, 1.75e-4, 3.5e-4)
    ],
    named_by=['name', 'sampler.num_prompts', 'optimizer.learning_rate'],
  )
