"""Tuning of every reuse: batch size and learning rate, on seeds 100 and 101.

Question: which batch and rate is the best for on-policy training, and for each
reuse y = B / R? The results of the study use other seeds.

The plan had the rates 3.5, 7 and 14e-4, and batches up to 256 for y = 8. The
best cells were at the lowest rate, and at the largest batch for y = 8, so the
grid has grown there. The largest batch is 480 and not 496, because groups are
whole: 480 / 4 = 15 groups of 8. The buffer holds x = N / R = 4 generations, and
8 for y = 8.

Command: python -m replay_rl.sweep --sweep=experiments/replay_study/tune.py \
    --out=runs/replay_study/tune
Cost and result: see README.md.
"""

from experiments.replay_study import study
from replay_rl.sweep import cells

QUANTUM = 4_000.0  # Cost units between evaluations.
RATES = (0.875e-4, 1.75e-4, 3.5e-4, 7e-4, 14e-4)
BATCHES = {1: (64, 128, 256, 480), 2: (64, 128, 256, 480)} | {
  4: (64, 128, 256, 480),
  8: (128, 256, 512),
}


def get_cells() -> list[cells.Cell]:
  """Returns a cell for each reuse, batch size and rate."""
  return cells.make(
    study.base(quantum=QUANTUM, seeds=range(100, 102)),
    [
      study.reuse(uses, batch, rate, num_generations=4 if uses < 8 else 8)
      for uses, batches in BATCHES.items()
      for batch in batches
      for rate in RATES
    ],
    named_by=['name', 'sampler.num_prompts', 'optimizer.learning_rate'],
  )
