"""All arms on addition, tuned: 28 seeds of the main ones, 8 of the others.

Command: python -m replay_rl.sweep --out=runs/prioritized_replay/addition \
    --sweep=experiments/prioritized_replay/addition.py
Cost and result: see README.md.
"""

from experiments.prioritized_replay import study
from replay_rl.sweep import cells


def get_cells() -> list[cells.Cell]:
  """Returns a cell for each arm."""
  return study.compared('addition')
