"""The other methods on addition, tuned.

Freshness PER and its control have 28 seeds, and the others 8.

Command: python -m replay_rl.sweep --out=runs/prioritized_replay/addition_more \
    --sweep=experiments/prioritized_replay/addition_more.py
Cost and result: see README.md.
"""

from experiments.prioritized_replay import study
from replay_rl.sweep import cells

_ARMS = (
  *('freshness PER', 'two updates, uniform', 'DGG'),
  *('GRPO, 64 prompts', 'RePO, 64 prompts', 'clip, lag 8'),
)


def get_cells() -> list[cells.Cell]:
  """Returns a cell for each arm."""
  return study.compared('addition', _ARMS)
