"""The other arms on addition, tuned, with 8 seeds each.

Command: python -m replay_rl.sweep \
    --out=runs/prioritized_replay/addition_others \
    --sweep=experiments/prioritized_replay/addition_others.py
Cost and result: see README.md.
"""

from experiments.prioritized_replay import study
from replay_rl.sweep import cells

_ARMS = (
  *('GRPO, 1.5 x rows', 'naive replay', 'B, no age limit', 'B by group', 'DGG'),
  *('GRPO, 64 prompts', 'RePO, 64 prompts'),
  *('clip, lag 8', 'M2PO, lag 8', 'decoupled PPO, lag 8'),
)


def get_cells() -> list[cells.Cell]:
  """Returns a cell for each arm."""
  return study.compared('addition', _ARMS, num_seeds=8)
