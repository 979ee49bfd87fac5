"""Kills a run at random moments, runs it again each time, and compares.

`kill -9` gives a process no chance to tidy up. After the last kill the run is
continued to its end, and has to equal a run that nobody touched: every array of
the last checkpoint, and every byte of the metrics and the samples.

Command: python experiments/kill_resume/kill_resume.py --kills=20
"""

import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import time

import jax
import numpy as np
import orbax.checkpoint as ocp

_LOGS = ('metrics.jsonl', 'samples.jsonl')
_FLAGS = (
  '--config.num_seeds=1',
  '--config.num_iterations=150',
  '--config.checkpoint.every=3',
)


def main() -> None:
  """Prints how the killed run differs, as JSON; status 1 if it does."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--config', default='configs/quickstart.py:reuse_2')
  parser.add_argument('--kills', type=int, default=20)
  parser.add_argument('--seed', type=int, default=0, help='of the moments')
  parser.add_argument('flags', nargs='*', help='more flags of the training')
  arguments = parser.parse_args()
  with tempfile.TemporaryDirectory() as folder:
    result = compare(
      pathlib.Path(folder),
      arguments.config,
      arguments.kills,
      arguments.seed,
      [*_FLAGS, *arguments.flags],
    )
  print(json.dumps(result, indent=2))
  sys.exit(0 if result['is_equal'] else 1)


def compare(
  folder: pathlib.Path, config: str, kills: int, seed: int, flags: list[str]
) -> dict:
  """Returns how the killed run differs from the untouched one.

  Args:
    folder: for both runs and their cache.
    config: the flag `--config`.
    kills: how often to kill.
    seed: of the moments.
    flags: further flags of both runs.
  """

  def command(workdir):
    return [sys.executable, '-m', 'replay_rl.train', f'--config={config}'] + [
      f'--workdir={folder / workdir}',
      f'--config.cache_dir={folder / "cache"}',
      *flags,
    ]

  # The first run fills the cache of compiled programs, the second is timed.
  for workdir in ('compiled', 'untouched'):
    started = time.monotonic()
    subprocess.run(command(workdir), check=True, stdout=subprocess.DEVNULL)
    seconds = time.monotonic() - started

  # Half of the kills fall into the start of a process, half into training;
  # together they reach about as far as the run.
  training = sum(
    json.loads(line)['seconds']
    for line in (folder / 'untouched' / 'timing.jsonl').read_text().splitlines()
  )
  longest = seconds - training + 2 * training / kills
  moments = random.Random(seed)
  done = []
  while len(done) < kills:
    process = subprocess.Popen(command('killed'), stdout=subprocess.DEVNULL)
    try:
      process.wait(timeout=moments.uniform(0, longest))
    except subprocess.TimeoutExpired:
      pass
    process.kill()
    process.wait()
    done.append(_num_lines(folder / 'killed'))
  subprocess.run(command('killed'), check=True, stdout=subprocess.DEVNULL)

  sizes = {name: (folder / 'untouched' / name).stat().st_size for name in _LOGS}
  differing = different(folder / 'untouched', folder / 'killed')
  return {
    'is_equal': not differing,
    'compared_bytes': sizes,
    'different': differing,
    'kills': kills,
    'lines_written_at_each_kill': done,
    'seconds_of_the_untouched_run': round(seconds, 1),
  }


def different(first: pathlib.Path, second: pathlib.Path) -> list[str]:
  """Returns the arrays and the logs of two runs that differ in any byte."""
  return _different_arrays(first, second) + [
    name
    for name in _LOGS
    if (first / name).read_bytes() != (second / name).read_bytes()
  ]


def _num_lines(workdir: pathlib.Path) -> int:
  path = workdir / 'metrics.jsonl'
  return path.read_bytes().count(b'\n') if path.exists() else 0


def _different_arrays(first: pathlib.Path, second: pathlib.Path) -> list[str]:
  """Returns the arrays of the last checkpoints that differ in any byte."""
  trees = []
  for workdir in (first, second):
    with ocp.CheckpointManager(workdir / 'checkpoints') as manager:
      step = manager.latest_step()
    trees.append({'step': np.asarray(step)} | _arrays(workdir, step))
  names = trees[0].keys() | trees[1].keys()
  return sorted(name for name in names if not _same(*trees, name))


def _arrays(workdir: pathlib.Path, step: int) -> dict:
  """Returns the arrays of a checkpoint, whatever devices it was saved on."""
  folder = workdir.resolve() / 'checkpoints' / str(step) / 'run'
  with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
    whole = jax.tree.map(
      lambda _: ocp.RestoreArgs(restore_type=np.ndarray),
      reader.metadata(folder).item_metadata.tree,
    )
    restored = reader.restore(
      folder, args=ocp.args.PyTreeRestore(restore_args=whole)
    )
  return _flat(restored)


def _same(first: dict, second: dict, name: str) -> bool:
  if name not in first or name not in second:
    return False
  one, other = np.asarray(first[name]), np.asarray(second[name])
  return one.dtype == other.dtype and one.tobytes() == other.tobytes()


def _flat(tree, prefix: str = '') -> dict:
  if isinstance(tree, dict):
    items = tree.items()
  elif isinstance(tree, (list, tuple)):
    items = enumerate(tree)
  else:
    return {} if tree is None else {prefix: tree}
  flat = {}
  for name, value in items:
    flat |= _flat(value, f'{prefix}/{name}')
  return flat


if __name__ == '__main__':
  main()
