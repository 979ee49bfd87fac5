"""Replay against on-policy GRPO where longer responses reason better, on a CPU.

Question: what does replay save where a response may be short and a guess, or
long and right? RL has to lengthen the responses to long prompts. On this task a
length penalty, a normalizer of the loss and AES have something to trade.

The model is that of configs/base_small.py. The teacher answers eight of ten
prompts at once, and otherwise writes the values on the way, so a policy that
imitates it mostly guesses. All arms have the same batch of 32 prompts and the
same rate, which was not tuned. The flag
`--config=configs/modular_arithmetic.py:<arm>` names an arm: on_policy, reuse_2
(the default), reuse_4 or prioritized. configs/quickstart.py says what they do;
here reuse_2 and reuse_4 make two and four updates an iteration. Overlong
shaping is one more term of the reward:
--config.reward='correctness() + soft_overlong(max_length=15, cache_length=4)'

Command: python -m replay_rl.train \
    --config=configs/modular_arithmetic.py:on_policy --workdir=runs/modular
Cost: one of the four seeds of on_policy takes 54 s of CPU time, and the warm
start 58 s once, on 2 cores of an AMD EPYC VM that did other work too.
Result: one seed of on_policy is in experiments/modular_arithmetic/README.md:
the responses get longer, and more of them are right.
"""

from replay_rl.configs import arms
from replay_rl.configs import base_small
from replay_rl.run import config as config_lib

# 256 rollouts of 12 prompt tokens, and microbatches of 128 rows of 26 tokens,
# stay below the 4096 tokens of configs/base_small.py.
_NUM_PROMPTS = 32
_NUM_FRESH = _NUM_PROMPTS * base_small.GROUP_SIZE
_ARMS = {
  'on_policy': {},
  'reuse_2': arms.reuse(2, _NUM_FRESH) | {'num_iterations': 75},
  'reuse_4': arms.reuse(4, _NUM_FRESH) | {'num_iterations': 50},
  'prioritized': arms.PRIORITIZED
  | {
    # Always enough: ages are 0 to 10, and each is one iteration.
    'replay.capacity': 12 * _NUM_FRESH,
  },
}


def get_config(arm: str = 'reuse_2') -> config_lib.Config:
  config = base_small.on_policy(
    'modular_arithmetic(max_operations=10, modulus=7, direct_probability=0.8, '
    'stop_probability=0.1, slip_probability=0.05)',
    num_iterations=100,
    learning_rate=2e-4,
  )
  config = config_lib.changed(
    config,
    {
      'sampler.num_prompts': _NUM_PROMPTS,
      'optimizer.microbatch_rows': _NUM_FRESH // 2,
      'replay.capacity': _NUM_FRESH,
      'evaluation.every': 10,
    },
  )
  config = arms.chosen(config, arm, _ARMS)
  config.name = f'modular arithmetic {config.name}'
  return config
