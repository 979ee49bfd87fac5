"""All arms on Countdown, tuned, with 8 seeds.

Command: python -m replay_rl.sweep \
    --out=runs/prioritized_replay/countdown \
    --sweep=experiments/prioritized_replay/countdown.py
Cost and result: see README.md.
"""

from experiments.prioritized_replay import study
from replay_rl.sweep import cells


def get_cells() -> list[cells.Cell]:
  """Returns a cell for each arm."""
  return study.compared('countdown', study.ARMS)
