"""Batch and learning rate of each arm on addition, on seeds 100 and 101.

Command: python -m replay_rl.sweep --out=runs/prioritized_replay/tune_addition \
    --sweep=experiments/prioritized_replay/tune_addition.py
Cost and result: see README.md.
"""

from experiments.prioritized_replay import study
from replay_rl.sweep import cells

PROMPTS = (2, 4)
RATES = (0.4375e-4, 0.875e-4, 1.75e-4)


def tuning(
  task: str, arms: tuple[str, ...], rates: tuple[float, ...] = RATES
) -> list[cells.Cell]:
  """Returns a cell for each arm, batch and rate."""
  return cells.make(
    study.base(task, seeds=study.TUNING_SEEDS),
    [
      study.make(name, num_prompts, rate)
      for name in arms
      for num_prompts in PROMPTS
      for rate in rates
    ],
    named_by=[
      *(['name'] if len(arms) > 1 else []),
      'sampler.num_prompts',
      'optimizer.learning_rate',
    ],
  )


def get_cells() -> list[cells.Cell]:
  """Returns the cells on addition."""
  return tuning('addition', tuple(study.ARMS))
