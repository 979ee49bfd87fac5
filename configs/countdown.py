"""Replay against on-policy GRPO on Countdown with three numbers, on a CPU.

Question: does the saving of configs/quickstart.py carry over to a task with
many right answers, where the response is a search and not a calculation?

The arms, the model and the settings are those of configs/quickstart.py, but for
the task and the learning rate; `--config=configs/countdown.py:<arm>`.

Command: python -m replay_rl.train --config=configs/countdown.py:reuse_4 \
    --workdir=runs/countdown_reuse_4
Takes 2 min per arm on 2 CPU cores. Median saving in generated tokens at a
reward of .5, and of .55: 32 and 22 % (reuse_2), 35 and 44 % (reuse_4), 17 and
9 % (prioritized), from four seeds that differ much; see experiments/countdown.
"""

import importlib.util
import pathlib

from replay_rl.run import config as config_lib


def get_config(arm: str = 'reuse_2') -> config_lib.Config:
  config = _quickstart().get_config(arm)
  config.name = f'countdown {config.name}'
  config.task = 'countdown(num_numbers=3, max_number=8, slip_probability=0.2)'
  config.optimizer.learning_rate = 5e-4  # Of three the best for on_policy.
  config.num_iterations *= 2
  return config


def _quickstart():
  # The folder of configs is no package: a config is found by its path.
  path = pathlib.Path(__file__).with_name('quickstart.py')
  spec = importlib.util.spec_from_file_location('quickstart', path)
  assert spec is not None and spec.loader is not None
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module
