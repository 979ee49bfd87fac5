"""Replay against on-policy GRPO on Countdown with three numbers, on a CPU.

Question: does replay save as much as in configs/quickstart.py on a task with
many right answers, where the response is a search and not a calculation?

The arms, as `--config=configs/countdown.py:<arm>`, are on_policy, reuse_2 (the
default), reuse_4 and prioritized of configs/quickstart.py. This file changes
the task, the learning rate and the number of iterations.

Command: python -m replay_rl.train --config=configs/countdown.py:reuse_4 \
    --workdir=runs/countdown_reuse_4
Cost: 2 min per arm on 2 CPU cores. Result: the median saving in generated
tokens at a reward of .5, and of .55, is 32 and 22 % (reuse_2), 35 and 44 %
(reuse_4), 17 and 9 % (prioritized). The four seeds differ much; see
experiments/countdown.
"""

from configs import quickstart
from replay_rl.run import config as config_lib


def get_config(arm: str = 'reuse_2') -> config_lib.Config:
  config = quickstart.get_config(arm)
  config.name = f'countdown {config.name}'
  config.task = 'countdown(num_numbers=3, max_number=8, slip_probability=0.2)'
  # The best of three rates for on_policy. All arms have it.
  config.optimizer.learning_rate = 5e-4
  config.num_iterations *= 2
  return config
