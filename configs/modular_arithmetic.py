"""Replay on modular arithmetic, where longer responses reason better."""

from configs import arms
from configs import base_small
from replay_rl.run import config as config_lib

_NUM_PROMPTS = 32
_NUM_FRESH = _NUM_PROMPTS * base_small.GROUP_SIZE
_ARMS = {
  'on_policy': {},
  'reuse_2': arms.reuse(2, _NUM_FRESH),
  'reuse_4': arms.reuse(4, _NUM_FRESH),
  'prioritized': arms.PRIORITIZED
  | {
    # Always enough: ages are 0 to 10, and each is one iteration.
    'replay.capacity': 12 * _NUM_FRESH,
    'optimizer.num_microbatches': 3,
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
    {'sampler.num_prompts': _NUM_PROMPTS, 'replay.capacity': _NUM_FRESH},
  )
  config = arms.chosen(config, arm, _ARMS)
  config.name = f'modular arithmetic {config.name}'
  return config
