"""How many generations the buffer should hold, on seeds 0 to 7.

Question: for each rollout used four times, what do x = N / R = 4, 16 and 64
generations in the buffer cost to the level?

Command: python -m replay_rl.sweep --out=runs/replay_study/sizes \
    --sweep=experiments/replay_study/sizes.py
Cost and result: see README.md.
"""

from experiments.replay_study import study
from replay_rl.sweep import cells

QUANTUM = 1_000.0  # Cost units between evaluations.


def get_cells() -> list[cells.Cell]:
  """Returns a cell for each x."""
  return cells.make(
    study.base(quantum=QUANTUM, seeds=range(8)),
    [study.tuned(4, x) | {'name': f'x={x}'} for x in (4, 16, 64)],
    named_by=['replay.capacity'],
  )
