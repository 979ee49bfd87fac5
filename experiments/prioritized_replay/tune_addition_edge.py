"""Lower rates for dynamic gradient gating, whose best cell was at the edge.

Command: python -m replay_rl.sweep \
    --out=runs/prioritized_replay/tune_addition_edge \
    --sweep=experiments/prioritized_replay/tune_addition_edge.py
Cost and result: see README.md.
"""

from experiments.prioritized_replay import tune_addition
from replay_rl.sweep import cells


def get_cells() -> list[cells.Cell]:
  """Returns a cell for each batch and rate."""
  return tune_addition.tuning(
    'addition', ('DGG',), rates=(0.21875e-4, *tune_addition.RATES[:2])
  )
