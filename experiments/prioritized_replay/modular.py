"""All arms on modular arithmetic, whose responses differ in length, tuned.

Command: python -m replay_rl.sweep --out=runs/prioritized_replay/modular \
    --sweep=experiments/prioritized_replay/modular.py
Cost and result: see README.md.
"""

from experiments.prioritized_replay import study
from replay_rl.sweep import cells


def get_cells() -> list[cells.Cell]:
  """Returns a cell for each arm."""
  return study.compared('modular', study.ARMS)
