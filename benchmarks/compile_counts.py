"""Counts the programs that a sweep compiles: rates x half-lives x seeds.

Each cell is a run of `train.train` with its own learning rate and half-life, in
this one process. All cells share an empty cache of compiled programs. Numbers
of a config are inputs of the programs, so only the first cell compiles.

  python benchmarks/compile_counts.py
"""

import collections
import itertools
import pathlib
import tempfile

import jax

from replay_rl import train
from replay_rl.configs import quickstart

RATES = (3e-4, 7e-4, 1e-3)
HALF_LIVES = (4, 8, 16)
NUM_SEEDS = 4


def main() -> None:
  counts = collections.Counter()
  jax.monitoring.register_event_listener(
    lambda event, **_: counts.update([event.rpartition('/')[2]])
  )
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)
  with tempfile.TemporaryDirectory() as folder:
    for rate, half_life in itertools.product(RATES, HALF_LIVES):
      config = quickstart.get_config()
      config.cache_dir = folder
      config.num_iterations, config.num_seeds = 2, NUM_SEEDS
      config.optimizer.learning_rate = rate
      config.replay.weights = f'recency(half_life={half_life})'
      before = counts.copy()
      train.train(config, pathlib.Path(folder) / f'{rate}_{half_life}')
      seen = counts - before
      print(
        f'learning_rate {rate}, half_life {half_life}: '
        f'{seen["cache_misses"]} programs compiled, '
        f'{seen["cache_hits"]} read from the cache'
      )
    cycles = (pathlib.Path(folder) / 'programs').glob('jit_cycle-*-cache')
    print(f'programs of a cycle in the cache: {len(list(cycles))}')


if __name__ == '__main__':
  main()
