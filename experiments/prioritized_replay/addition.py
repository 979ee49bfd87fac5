"""The arms of paper B on addition, tuned, with 28 seeds or 8.

Command: python -m replay_rl.sweep --out=runs/prioritized_replay/addition \
    --sweep=experiments/prioritized_replay/addition.py
Cost and result: see README.md.
"""

from experiments.prioritized_replay import study
from replay_rl.sweep import cells

_ARMS = (
  *('GRPO', 'GRPO, 1.5 x rows', 'naive replay', 'anchored, uniform'),
  *('B', 'B, no age limit', 'B by group'),
)


def get_cells() -> list[cells.Cell]:
  """Returns a cell for each arm."""
  return study.compared('addition', _ARMS)
