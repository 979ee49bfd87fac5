"""Prioritized, fresh-anchored replay, on seeds 0 to 23.

Question: with the filter of groups without variance in all arms, does half a
batch of replayed rows help, and does it matter that they are drawn by
|advantage|? The filter drops what it generates, so each arm has a rate of its
own: the one tuned for on-policy training, and half of it.

Command: python -m replay_rl.sweep --out=runs/replay_study/prioritized \
    --sweep=experiments/replay_study/prioritized.py
Cost and result: see README.md.
"""

from experiments.replay_study import study
from replay_rl.configs import arms
from replay_rl.sweep import cells

QUANTUM = 1_000.0  # Cost units between evaluations.


def get_cells() -> list[cells.Cell]:
  """Returns a cell for each arm and rate."""
  batch_size, rate = study.TUNED[1]
  anchored = study.tuned(1) | arms.PRIORITIZED
  # Always enough: ages are 0 to 10, and each is one iteration.
  anchored |= {'replay.capacity': 12 * batch_size}
  compared = [
    study.tuned(1) | {'name': 'GRPO', 'replay.drop_zero_variance': True},
    anchored | {'name': 'uniform', 'replay.weights': 'max_age(limit=10)'},
    anchored | {'name': 'by advantage'},
  ]
  return cells.make(
    study.base(quantum=QUANTUM, seeds=range(24)),
    [
      arm | {'optimizer.learning_rate': one}
      for arm in compared
      for one in (rate, rate / 2)
    ],
    named_by=['name', 'optimizer.learning_rate'],
  )
