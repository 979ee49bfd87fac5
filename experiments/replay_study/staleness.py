"""Old rollouts without reuse, on seeds 0 to 3.

Question: what does the age of rollouts cost, if each is used once? The sampler
has the weights of 1, 4, 16 or 64 updates before.

Command: python -m replay_rl.sweep --out=runs/replay_study/staleness \
    --sweep=experiments/replay_study/staleness.py
Cost and result: see README.md.
"""

from experiments.replay_study import study
from replay_rl.sweep import cells

QUANTUM = 1_000.0  # Cost units between evaluations.


def get_cells() -> list[cells.Cell]:
  """Returns a cell for each lag, with the tuned rate and half of it."""
  _, rate = study.TUNED[1]
  return cells.make(
    study.base(quantum=QUANTUM, seeds=range(4)),
    [
      study.tuned(1)
      | {'sampler.weight_lag': lag, 'optimizer.learning_rate': one}
      for lag in (1, 4, 16, 64)
      for one in (rate, rate / 2)
    ],
    named_by=['sampler.weight_lag', 'optimizer.learning_rate'],
  )
