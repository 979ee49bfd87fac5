"""The arms of the headline, on seeds 0 to 27.

Question: as in confirm.py, of on-policy training, reuse 2 and the planner's
choice.

Command: python -m replay_rl.sweep --out=runs/replay_study/headline \
    --sweep=experiments/replay_study/headline.py
Cost and result: see README.md.
"""

from experiments.replay_study import confirm
from experiments.replay_study import study
from replay_rl.sweep import cells


def get_cells() -> list[cells.Cell]:
  """Returns a cell for each arm."""
  return cells.make(
    study.base(quantum=confirm.QUANTUM, seeds=range(28)),
    [
      study.tuned(1),
      study.tuned(2),
      study.at_batch(1),
      study.at_batch(2),
      study.planned(),
    ],
    named_by=['name'],
  )
