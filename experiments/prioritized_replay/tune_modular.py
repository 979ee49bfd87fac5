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


def get_cells() -> list[cells.Cell]:
  """Returns a cell for each arm, batch and rate."""
  grid = tuple(itertools.product(PROMPTS, RATES))
  return study.tuning('modular', dict.fromkeys(study.ARMS, grid))
