"""Replay against on-policy GRPO on Countdown with three numbers, on a CPU.

Question: does replay save on a task with many right answers, where the response
is a search and not a calculation?

All arms have the same batch of 62 prompts and the same rate, the best of three
for on_policy, so this is no comparison of best against best. The flag
`--config=configs/countdown.py:<arm>` names an arm: on_policy, reuse_2 (the
default), reuse_4, prioritized or per. configs/quickstart.py says what they do;
here reuse_2 and reuse_4 make two and four updates an iteration.

Command: python -m replay_rl.train --config=configs/countdown.py:reuse_4 \
    --workdir=runs/countdown_reuse_4
Cost: 2 min per arm on 2 CPU cores. Result: the median saving in generated
tokens at a reward of .5, and of .55, is 32 and 22 % (reuse_2), 35 and 44 %
(reuse_4), 17 and 9 % (prioritized). The four seeds differ much; see
experiments/countdown.
"""

from replay_rl.configs import arms
from replay_rl.configs import base_small
from replay_rl.run import config as config_lib

_NUM_FRESH = base_small.NUM_FRESH
_ARMS = {
  'on_policy': {},
  'reuse_2': arms.reuse(2, _NUM_FRESH) | {'num_iterations': 100},
  'reuse_4': arms.reuse(4, _NUM_FRESH) | {'num_iterations': 72},
  'prioritized': arms.PRIORITIZED
  | {
    # Always enough: ages are 0 to 10, and each is one iteration.
    'replay.capacity': 12 * _NUM_FRESH,
  },
  'per': arms.reuse(2, _NUM_FRESH) | arms.PER | {'num_iterations': 100},
}


def get_config(arm: str = 'reuse_2') -> config_lib.Config:
  config = base_small.on_policy(
    'countdown(num_numbers=3, max_number=8, slip_probability=0.2)',
    num_iterations=140,
    learning_rate=5e-4,
  )
  config = arms.chosen(config, arm, _ARMS)
  config.name = f'countdown {config.name}'
  return config
