"""The tuned queue, on seeds 0 to 27.

Question: what does the best queue without a buffer cost to the level, beside
the arms of headline.py?

Command: python -m replay_rl.sweep --out=runs/replay_study/queue_confirm \
    --sweep=experiments/replay_study/queue_confirm.py
Cost and result: see README.md.
"""

from experiments.replay_study import asynchronous
from experiments.replay_study import confirm
from experiments.replay_study import study
from replay_rl.sweep import cells


def get_cells() -> list[cells.Cell]:
  """Returns the queue, and on-policy training as in headline.py."""
  batch_size, rate = study.TUNED_QUEUE
  return cells.make(
    study.base(quantum=confirm.QUANTUM, seeds=range(28)),
    [
      study.tuned(1),
      asynchronous.queue(6, 2, 'oldest', batch_size=batch_size, rate=rate)
      | {'name': 'queue'},
    ],
    named_by=['name'],
  )
