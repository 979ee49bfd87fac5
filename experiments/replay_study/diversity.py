"""What a buffer does to diversity, on Countdown, on seeds 0 to 7.

Question: at equal cost, how do buffers of 4, 16 and 64 generations change
accuracy, pass@k and entropy, on a task with many right answers?

Command: python -m replay_rl.sweep --out=runs/replay_study/diversity \
    --sweep=experiments/replay_study/diversity.py
Cost and result: see README.md.
"""

from experiments.replay_study import study
from replay_rl.sweep import cells


def get_cells() -> list[cells.Cell]:
  """Returns on-policy training, and reuse 2 with each buffer."""
  tuned = study.TUNED_ON_COUNTDOWN
  return cells.make(
    study.countdown(quantum=20_000.0, seeds=range(8), num_samples=64),
    [study.reuse(1, *tuned[1], num_generations=1)]
    + [
      study.reuse(2, *tuned[2], num_generations=x) | {'name': f'reuse 2, x={x}'}
      for x in (4, 16, 64)
    ],
    named_by=['name'],
  )
