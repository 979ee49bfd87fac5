"""The best cell of each reuse, and the planner's choice, on seeds 0 to 7.

Question: what does replay save to the level of 80 %, best against best; and at
the batch of 64, next to that of the paper?

Command: python -m replay_rl.sweep --out=runs/replay_study/confirm \
    --sweep=experiments/replay_study/confirm.py
Cost and result: see README.md.
"""

from experiments.replay_study import study
from replay_rl.sweep import cells

QUANTUM = 1_000.0  # Cost units between evaluations.


def get_cells() -> list[cells.Cell]:
  """Returns a cell for each arm."""
  return cells.make(
    study.base(quantum=QUANTUM, seeds=range(8)),
    [
      *(study.tuned(uses) for uses in study.TUNED),
      *(study.at_batch(uses) for uses in study.RATES),
      study.planned(),
    ],
    named_by=['name'],
  )
