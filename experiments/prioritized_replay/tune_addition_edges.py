"""More batches and rates for the arms whose best cell was at an edge.

Command: python -m replay_rl.sweep \
    --out=runs/prioritized_replay/tune_addition_edges \
    --sweep=experiments/prioritized_replay/tune_addition_edges.py
Cost and result: see README.md.
"""

from experiments.prioritized_replay import study
from replay_rl.sweep import cells

_LOWEST, _LOW, _MIDDLE, _HIGH = 0.21875e-4, 0.4375e-4, 0.875e-4, 1.75e-4
_LARGER = ((8, _MIDDLE), (8, _HIGH))
_GRIDS = {
  'DGG': ((2, _LOWEST), (4, _LOWEST), (8, _LOW), (8, _MIDDLE)),
  'two updates, uniform': ((2, _LOWEST), (4, _LOWEST)),
  'GRPO, 64 prompts': _LARGER,
  'RePO, 64 prompts': ((2, _LOWEST), (4, _LOWEST)),
  'clip, lag 8': _LARGER,
  'M2PO, lag 8': _LARGER,
  'decoupled PPO, lag 8': (*_LARGER, (2, _LOWEST)),
}


def get_cells() -> list[cells.Cell]:
  """Returns a cell for each arm, batch and rate."""
  return study.tuning('addition', _GRIDS)
