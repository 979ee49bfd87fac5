"""Batch and learning rate of the queue, on seeds 100 and 101.

Question: which batch and rate suit six workers and two trainers that use each
rollout once, at mu = 5.28?

Command: python -m replay_rl.sweep --out=runs/replay_study/queue_tune \
    --sweep=experiments/replay_study/queue_tune.py
Cost and result: see README.md.
"""

from experiments.replay_study import asynchronous
from experiments.replay_study import study
from replay_rl.sweep import cells


def get_cells() -> list[cells.Cell]:
  """Returns a cell for each batch and rate."""
  return cells.make(
    study.base(quantum=1_000.0, seeds=range(100, 102)),
    [
      asynchronous.queue(6, 2, 'oldest', batch_size=batch_size, rate=rate)
      for batch_size in (8, 16, 32, 64)
      for rate in (0.4375e-4, 0.875e-4, 1.75e-4, 3.5e-4)
    ],
    named_by=['replay.batch_size', 'optimizer.learning_rate'],
  )
