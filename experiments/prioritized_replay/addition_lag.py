"""Losses for weights that are eight learner steps old, on addition, tuned.

GRPO without a lag, the baseline, has 28 seeds, and the others 8.

Command: python -m replay_rl.sweep --out=runs/prioritized_replay/addition_lag \
    --sweep=experiments/prioritized_replay/addition_lag.py
Cost and result: see README.md.
"""

from experiments.prioritized_replay import study
from replay_rl.sweep import cells

_ARMS = ('GRPO', 'clip, lag 8', 'M2PO, lag 8', 'decoupled PPO, lag 8')


def get_cells() -> list[cells.Cell]:
  """Returns a cell for each arm."""
  return study.compared('addition', _ARMS)
