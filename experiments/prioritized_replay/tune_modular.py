"""Batch and learning rate of each arm on modular arithmetic, seeds 100 and 101.

Command: python -m replay_rl.sweep --out=runs/prioritized_replay/tune_modular \
    --sweep=experiments/prioritized_replay/tune_modular.py
Cost and result: see README.md.
"""

import itertools

from experiments.prioritized_replay import study
from replay_rl.sweep import cells

PROMPTS = (2, 4)
RATES = (1.75e-4, 3.5e-4, 7e-4)
# Arms that are the best at the lowest of them have one more.
LOWER = (0.875e-4, *RATES)
_LOW_ARMS = ('DGG', 'M2PO, lag 8', 'decoupled PPO, lag 8')


def get_cells() -> list[cells.Cell]:
  """Returns a cell for each arm, batch and rate."""
  return study.tuning(
    'modular',
    {
      arm: itertools.product(PROMPTS, LOWER if arm in _LOW_ARMS else RATES)
      for arm in study.ARMS
    },
  )
