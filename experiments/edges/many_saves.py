"""Saves a small run many times, and prints memory and time as they go.

Command: python experiments/edges/many_saves.py --saves=5000
"""

import argparse
import gc
import json
import pathlib
import sys
import tempfile
import time

import jax
import jax.numpy as jnp
from absl import logging

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from replay_rl.configs import quickstart  # noqa: E402
from replay_rl.run import build  # noqa: E402
from replay_rl.run import checkpoint  # noqa: E402
from replay_rl.run import state  # noqa: E402

_NUM_LINES = 10


def main() -> None:
  """Prints a line of JSON for each tenth of the saves."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--saves', type=int, default=5000)
  arguments = parser.parse_args()
  logging.set_verbosity(logging.FATAL)
  run = _small_run()
  each = arguments.saves // _NUM_LINES
  with tempfile.TemporaryDirectory() as folder:
    checkpoints = checkpoint.Checkpoints(pathlib.Path(folder) / 'x', keep=2)
    started = time.perf_counter()
    for step in range(1, arguments.saves + 1):
      iteration = jnp.full_like(run.clock.iteration, step)
      run = run._replace(clock=run.clock._replace(iteration=iteration))
      checkpoints.save(run, {})
      if step % each == 0:
        checkpoints.wait()
        gc.collect()
        line = {
          'saves': step,
          'resident_megabytes': round(_resident_bytes() / 1e6, 1),
          'python_blocks': sys.getallocatedblocks(),
          'milliseconds_per_save': round(
            1000 * (time.perf_counter() - started) / each, 1
          ),
        }
        print(json.dumps(line), flush=True)
        started = time.perf_counter()
    checkpoints.close()


def _small_run() -> state.RunState:
  """Returns a run of the quickstart's arm with a smaller buffer."""
  config = quickstart.get_config('reuse_2')
  config.num_seeds, config.sampler.num_prompts = 1, 4
  config.replay.capacity, config.replay.batch_size = 64, 32
  task = build.task(config)
  parts = build.experiment(config, task.shape).parts
  params = parts.init_params_fn(jax.random.key(0))
  seeds = jnp.zeros((1,), jnp.uint32)
  return jax.vmap(lambda seed, hyper: state.init(parts, params, seed, hyper))(
    seeds, state.of_seeds(parts.hyper, 1)
  )


def _resident_bytes() -> int:
  with open('/proc/self/statm') as statm:
    return int(statm.read().split()[1]) * 4096


if __name__ == '__main__':
  main()
