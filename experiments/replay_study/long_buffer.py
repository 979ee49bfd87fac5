"""A run with a long buffer, to measure the noise of old rollouts on.

The buffer holds 64 generations, and the run ends after 75 iterations, in the
middle of its learning. Seeds 100 and 101.

Command: python -m replay_rl.sweep --out=runs/replay_study/fit \
    --sweep=experiments/replay_study/long_buffer.py
Then: python -m replay_rl.plan fit runs/replay_study/fit/long-buffer \
    --out=runs/replay_study/fit/fit75-unclipped \
    --loss='clipped_surrogate(clip_low=1.0, clip_high=inf, dual_clip=None)'
Cost and result: see README.md.
"""

from experiments.replay_study import study
from replay_rl.sweep import cells


def get_cells() -> list[cells.Cell]:
  """Returns the one cell."""
  base = study.base(quantum=4_000.0, seeds=range(100, 102))
  base.name = 'long-buffer'
  changes = study.reuse(4, 256, 3.5e-4, num_generations=64)
  del changes['name']
  changes |= {'stop': None, 'num_iterations': 75, 'checkpoint.every': 15}
  return cells.make(base, [changes])
