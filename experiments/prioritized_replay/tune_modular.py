"""Batch and learning rate of the arms on modular arithmetic, seeds 100 and 101.

Command: python -m replay_rl.sweep --out=runs/prioritized_replay/tune_modular \
    --sweep=experiments/prioritized_replay/tune_modular.py
Cost and result: see README.md.
"""

import itertools

from experiments.prioritized_replay import study
from replay_rl.sweep import cells

PROMPTS = (4, 8)
RATES = (0.875e-4, 1.75e-4)


def get_cells() -> list[cells.Cell]:
  """Returns a cell for each arm, batch and rate."""
  # The best cells of all arms were at the edge, so two cells came later.
  grid = (*itertools.product(PROMPTS, RATES), (2, 1.75e-4), (4, 3.5e-4))
  return study.tuning('modular', dict.fromkeys(study.ON_MODULAR, grid))
