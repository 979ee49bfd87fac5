"""Two controls of anchored replay, on seeds 0 to 7.

Question: is it the replayed rows, or only more rows in an update? And are the
fresh rows needed? Arms: GRPO with half as many rows again, all fresh; replayed
rows of a uniform buffer without fresh ones, as many as the anchored arm has.

Command: python -m replay_rl.sweep --out=runs/replay_study/controls \
    --sweep=experiments/replay_study/controls.py
Cost and result: see README.md.
"""

from experiments.replay_study import study
from replay_rl.configs import arms
from replay_rl.sweep import cells

QUANTUM = 1_000.0  # Cost units between evaluations.


def get_cells() -> list[cells.Cell]:
  """Returns a cell for each arm."""
  batch_size, rate = study.TUNED[1]
  more = 3 * batch_size // 2
  dropped = {'replay.drop_zero_variance': True}
  return cells.make(
    study.base(quantum=QUANTUM, seeds=range(8)),
    [
      study.tuned(1) | dropped | {'name': 'GRPO'},
      study.reuse(1, more, rate, num_generations=1)
      | dropped
      | {'name': 'GRPO, 1.5 times the rows'},
      study.tuned(1)
      | arms.PRIORITIZED
      | {'name': 'anchored', 'replay.capacity': 12 * batch_size},
      study.buffer(more, rate, capacity=12 * batch_size)
      | dropped
      | {
        'name': 'mixed pool',
        'sampler.num_prompts': batch_size // study.GROUP_SIZE,
      },
    ],
    named_by=['name'],
  )
