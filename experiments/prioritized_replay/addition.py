"""The main arms on addition, tuned, with 28 seeds each.

Command: python -m replay_rl.sweep --out=runs/prioritized_replay/addition \
    --sweep=experiments/prioritized_replay/addition.py
Cost and result: see README.md.
"""

from experiments.prioritized_replay import study
from replay_rl.sweep import cells

_ARMS = (
  *('GRPO', 'anchored, uniform', 'B'),
  *('freshness PER', 'two updates, uniform'),
)


def get_cells() -> list[cells.Cell]:
  """Returns a cell for each arm."""
  return study.compared('addition', _ARMS, num_seeds=28)
