"""Workers and trainers on a clock: queues and buffers, on seeds 0 to 7.

Question: at mu = 5.28, what do the splits 6 : 2 and 4 : 4 of eight devices cost
to the level with a buffer, and 6 : 2 with a queue that uses each rollout once?
The queue has the batch and the rate that were tuned for on-policy training. A
buffer has the batch and the rate that were tuned for the reuse nearest to its
own, mu T / W. Weights are published after each update and change in flight.

Command: python -m replay_rl.sweep --out=runs/replay_study/asynchronous \
    --sweep=experiments/replay_study/asynchronous.py
Cost and result: see README.md.
"""

import itertools
from typing import Any

from experiments.replay_study import study
from replay_rl.sweep import cells

QUANTUM = 1_000.0  # Cost units between evaluations.
MU = 5.28
SPLITS = ((6, 2), (4, 4))
GENERATION = 16  # Rollouts that a worker generates at once: two groups.
SIZES = (4, 16)  # Of a buffer, in the rollouts of an update.


def _system(kind: str, workers: int, trainers: int) -> dict[str, Any]:
  return {
    'schedule': f'{kind}(workers={workers}, trainers={trainers}, '
    'publish_every=1, in_flight=True)',
    'replay.updates_per_iteration': None,
    'sampler.num_prompts': GENERATION // study.GROUP_SIZE,
    'mu': MU,
  }


def queue(
  workers: int, trainers: int, order: str, *, batch_size: int, rate: float
) -> dict[str, Any]:
  """Returns the changes for a queue that uses each rollout once.

  Args:
    workers, trainers: devices.
    order: 'newest' or 'oldest', which rollouts an update takes first.
    batch_size: rollouts of an update.
    rate: learning rate.
  """
  return (
    study.buffer(batch_size, rate, capacity=16 * batch_size)
    | _system('queue', workers, trainers)
    | {
      'name': f'queue {order} first',
      'replay.weights': f'{order}_unused()',
      'replay.draw': 'largest()',
    }
  )


def _buffer(workers: int, trainers: int, size: int) -> dict[str, Any]:
  own = MU * trainers / workers
  uses = min(study.TUNED, key=lambda one: abs(one - own))
  batch_size, rate = study.TUNED[uses]
  return (
    study.buffer(batch_size, rate, capacity=size * batch_size)
    | _system('asynchronous', workers, trainers)
    | {'name': f'buffer of {size} updates'}
  )


def get_cells() -> list[cells.Cell]:
  """Returns a cell for each split, with queues and with buffers."""
  batch_size, rate = study.TUNED[1]
  return cells.make(
    study.base(quantum=QUANTUM, seeds=range(8)),
    [
      *(
        queue(*split, order, batch_size=batch_size, rate=rate)
        for split, order in itertools.product(SPLITS[:1], ('newest', 'oldest'))
      ),
      *(
        _buffer(*split, size)
        for split, size in itertools.product(SPLITS, SIZES)
      ),
    ],
    named_by=['name', 'schedule'],
  )
