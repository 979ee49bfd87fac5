"""Batch and learning rate of each arm on Countdown, seeds 100 and 101.

Command: python -m replay_rl.sweep \
    --out=runs/prioritized_replay/tune_countdown \
    --sweep=experiments/prioritized_replay/tune_countdown.py
Cost and result: see README.md.
"""

import itertools

from experiments.prioritized_replay import study
from replay_rl.sweep import cells

PROMPTS = (2, 4)
RATES = (0.21875e-4, 0.4375e-4, 0.875e-4, 1.75e-4, 3.5e-4)


def get_cells() -> list[cells.Cell]:
  """Returns a cell for each arm, batch and rate."""
  grid = tuple(itertools.product(PROMPTS, RATES))
  return study.tuning('countdown', dict.fromkeys(study.ARMS, grid))
