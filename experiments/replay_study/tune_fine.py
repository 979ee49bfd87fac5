"""A finer tuning around the best cells of tune.py, on seeds 100 and 101.

The best cells of tune.py were at its smallest batches and lowest rates, so this
grid begins there and goes on below. Its evaluations are closer together, since
the best cells need few of those of tune.py.

Command: python -m replay_rl.sweep --out=runs/replay_study/tune_fine \
    --sweep=experiments/replay_study/tune_fine.py
Cost and result: see README.md.
"""

from experiments.replay_study import study
from replay_rl.sweep import cells

QUANTUM = 1_000.0  # Cost units between evaluations.
BUDGET = 60_000.0  # Cost units of a seed, three times those of the best cells.
RATES = (0.4375e-4, 0.875e-4, 1.75e-4, 3.5e-4)
BATCHES = {
  1: (16, 32, 64, 128),
  2: (16, 32, 64, 128),
  4: (32, 64, 128),
  8: (64, 128),
}


def get_cells() -> list[cells.Cell]:
  """Returns a cell for each reuse, batch size and rate."""
  base = study.base(quantum=QUANTUM, seeds=range(100, 102), budget=BUDGET)
  return cells.make(
    base,
    [
      study.reuse(uses, batch, rate, num_generations=4 if uses < 8 else 8)
      for uses, batches in BATCHES.items()
      for batch in batches
      for rate in RATES
    ],
    named_by=['name', 'sampler.num_prompts', 'optimizer.learning_rate'],
  )
