"""Stops runs between two checkpoints and continues them, and compares.

Each case trains six iterations at once, and again as three iterations, a new
process and three more. Every array of the last checkpoint, and every byte of
the metrics and the samples, has to be the same. The cases are the schedules,
the meshes (of eight virtual devices), the places of the buffer, the gates and
the tasks that need no data set.

Command: python experiments/kill_resume/stop_resume.py
"""

import pathlib
import subprocess
import sys
import tempfile

import jax
import kill_resume

_SMALL = {
  'num_iterations': 6,
  'num_seeds': 1,
  'sampler.num_prompts': 16,
  'checkpoint.every': 2,
  'evaluation.every': 2,
  'evaluation.every_cost': None,
  'stop': None,
  'logging.samples_every': 2,
  'logging.writers': None,
}
_REUSE = {'replay.capacity': 512, 'replay.batch_size': 128}
_SHARDED = {'data': 2, 'fsdp': 4, 'tensor': 1}
_GRADIENT_GATE = 'gradient_gate(threshold=0.5, window=4, squared=False)'
# Name -> (file of configs/, its arm, changes).
CASES = {
  'on-policy': ('quickstart', 'on_policy', {'replay.capacity': 128}),
  'reuse': ('quickstart', 'reuse_2', _REUSE),
  'prioritized, fresh-anchored': (
    'quickstart',
    'prioritized',
    {'replay.capacity': 1536},
  ),
  'feedback, row weights, rate by ESS': ('quickstart', 'per', _REUSE),
  'gradient gate': (
    'quickstart',
    'reuse_4',
    _REUSE | {'optimizer.gate': _GRADIENT_GATE},
  ),
  '2.5 updates, a lag of 5 steps': (
    'quickstart',
    'reuse_2',
    _REUSE | {'replay.updates_per_iteration': 2.5, 'sampler.weight_lag': 5},
  ),
  'half an update': (
    'quickstart',
    'reuse_2',
    _REUSE | {'replay.updates_per_iteration': 0.5},
  ),
  'three seeds at once': (
    'quickstart',
    'reuse_2',
    _REUSE | {'num_seeds': 3, 'vmap_seeds': True},
  ),
  'mesh 2 x 2 x 2': (
    'quickstart',
    'reuse_2',
    _REUSE | {'mesh.shape': {'data': 2, 'fsdp': 2, 'tensor': 2}},
  ),
  'mesh 1 x 2 x 1, sampler 2 x 1 x 1': (
    'quickstart',
    'reuse_2',
    _REUSE
    | {
      'mesh.shape': {'data': 1, 'fsdp': 2, 'tensor': 1},
      'mesh.sampler_shape': {'data': 2, 'fsdp': 1, 'tensor': 1},
    },
  ),
  'mesh 2 x 4 x 1, buffer on the host': (
    'quickstart',
    'reuse_2',
    _REUSE | {'mesh.shape': _SHARDED, 'mesh.buffer_memory': 'pinned_host'},
  ),
  'Countdown': ('countdown', 'reuse_2', _REUSE),
}


def main() -> None:
  """Prints a line per case; status 1 if a case differs."""
  jax.config.update('jax_platforms', 'cpu')
  jax.config.update('jax_num_cpu_devices', 8)
  if len(sys.argv) == 4:
    _train(CASES[sys.argv[1]], sys.argv[2], int(sys.argv[3]))
    return
  is_equal = True
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    for number, case in enumerate(CASES):
      whole, parted = folder / f'{number}_whole', folder / f'{number}_parted'
      for workdir, stop_after in ((whole, 6), (parted, 3), (parted, 6)):
        command = [sys.executable, __file__, case, workdir, str(stop_after)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
      different = kill_resume.different(whole, parted)
      is_equal &= not different
      size = (whole / 'metrics.jsonl').stat().st_size
      print(f'{case}: {different or "equal"}, {size} bytes of metrics')
  sys.exit(0 if is_equal else 1)


def _train(case: tuple[str, str, dict], workdir: str, stop_after: int) -> None:
  """Trains in this process, up to an iteration."""
  import importlib

  from replay_rl import train
  from replay_rl.configs import arms

  file, arm, changes = case
  config = importlib.import_module(f'replay_rl.configs.{file}').get_config(arm)
  changes = {**_SMALL, 'cache_dir': f'{workdir}/../cache', **changes}
  config = arms.chosen(config, 'case', {'case': changes})
  train.train(config, workdir, stop_after=stop_after)


if __name__ == '__main__':
  main()
