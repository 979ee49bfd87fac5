"""The cells beyond the edges of tune_fine.py, on seeds 100 and 101.

The best cells of tune_fine.py were at its smallest batches and lowest rates.
Here are the batches down to one prompt, with a rate below.

Command: python -m replay_rl.sweep --out=runs/replay_study/tune_edge \\
    --sweep=experiments/replay_study/tune_edge.py
Cost and result: see README.md.
"""

from experiments.replay_study import study
from experiments.replay_study import tune_fine
from replay_rl.sweep import cells

LOWEST = 0.21875e-4
CELLS = (
  *((1, 8, rate) for rate in (LOWEST, 0.4375e-4, 0.875e-4, 1.75e-4)),
  *((1, 16, LOWEST), (2, 16, LOWEST), (2, 32, LOWEST)),
  *((4, 32, LOWEST), (4, 64, LOWEST), (8, 64, LOWEST)),
)


def get_cells() -> list[cells.Cell]:
  """Returns the cells: reuse, batch size and rate."""
  base = study.base(
    quantum=tune_fine.QUANTUM, seeds=range(100, 102), budget=tune_fine.BUDGET
  )
  return cells.make(
    base,
    [
      study.reuse(uses, batch, rate, num_generations=4 if uses < 8 else 8)
      for uses, batch, rate in CELLS
    ],
    named_by=['name', 'sampler.num_prompts', 'optimizer.learning_rate'],
  )
