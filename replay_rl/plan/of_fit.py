"""Measures what the theory of replay leaves free, from runs.

    python -m replay_rl.plan fit RUN... --out=FOLDER

Restores each run from its checkpoint, lets it generate fresh rollouts, and
projects on random directions the gradient of its own loss for each of them and
for each rollout of its buffer. It prints, and writes to FOLDER, by age the
variance of these gradients and how much of the fresh gradient is left in them;
the growth sigma0^2 (1 + (s / tau)^(2 alpha)) fitted to that; the correlation
rho; and mu from the times of the run's programs on this machine. The last line
is the command of `plan replay` for these numbers. Ages reach as far as the
buffers do. The runs stay as they are.
"""

import csv
import io
import json
import math
import pathlib
import shlex
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import rich.box
import rich.console
import rich.table
from absl import flags
from absl import logging as absl_logging

from replay_rl import command_line
from replay_rl.disk import durable
from replay_rl.disk import paths
from replay_rl.plan import fitted
from replay_rl.plan import run_noise
from replay_rl.provenance import environment
from replay_rl.run import recorded

CURVE, FIT = 'curve.csv', 'fit.json'

# Its own flags, so that other programs can be imported beside this one.
FLAGS = flags.FlagValues()
_OUT = flags.DEFINE_string(
  'out', None, f'Folder of {CURVE} and {FIT}.', flag_values=FLAGS
)
_STEP = flags.DEFINE_integer(
  'step',
  None,
  'Iterations done at the checkpoint to measure; else the newest.',
  flag_values=FLAGS,
)
_LOSS = flags.DEFINE_string(
  'loss',
  None,
  "Loss to take the gradients of, as loss.policy of a config; else the run's. "
  'That of the theory clips nothing: '
  'clipped_surrogate(clip_low=1.0, clip_high=inf, dual_clip=None).',
  flag_values=FLAGS,
)
_NUM_FRESH = flags.DEFINE_integer(
  'num_fresh',
  2048,
  'Fresh rollouts of each seed, at least. Their mean is the gradient from '
  'which noise is counted.',
  lower_bound=2,
  flag_values=FLAGS,
)
_NUM_DIRECTIONS = flags.DEFINE_integer(
  'num_directions',
  64,
  'Random directions; they are kept in memory, each as large as the weights.',
  lower_bound=2,
  flag_values=FLAGS,
)
_ROWS_AT_ONCE = flags.DEFINE_integer(
  'rows_at_once',
  64,
  'Gradients in memory at a time, each as large as the weights.',
  lower_bound=1,
  flag_values=FLAGS,
)
_NUM_BINS = flags.DEFINE_integer(
  'num_bins', 10, 'Bins of ages, at most.', lower_bound=1, flag_values=FLAGS
)
_NUM_TIMINGS = flags.DEFINE_integer(
  'num_timings',
  20,
  'Repetitions of each event for mu.',
  lower_bound=2,
  flag_values=FLAGS,
)
_NUM_RESAMPLES = flags.DEFINE_integer(
  'num_resamples', 1000, 'Of the bootstrap.', lower_bound=2, flag_values=FLAGS
)
_SEED = flags.DEFINE_integer(
  'seed',
  0,
  'Of the directions and the bootstrap.',
  lower_bound=0,
  upper_bound=2**32 - 1,
  flag_values=FLAGS,
)

_MEANINGS = {
  'alpha': 'growth of the variance',
  'tau': 'age, in updates, of twice the variance at age 0',
  'sigma0_squared': 'variance at age 0 of the fit, of the measured one',
  'rho': 'R x mean correlation between groups, with bias',
  'rho_by_distance': 'N x its slope over the distance of ages',
  'bias': 'R x its intercept',
  'rho_fresh': '(G - 1) x correlation within a fresh group',
  'rho_stored': 'the same of stored groups',
  'signal_to_noise': '|g|^2 over the variance of a fresh rollout',
  'fresh_variance': 'that variance, in units of a squared gradient',
  'mu': 'seconds to generate a rollout over seconds to train on one',
}


_FLAT = (
  'The variance does not grow with age, so alpha has no value. Where the loss '
  'clips, an old rollout loses noise and signal together (see its share). The '
  'theory counts the noise alone: from such a curve it chooses the oldest age, '
  'and what that saves is not to be believed.'
)


def fit(folders: Sequence[pathlib.Path]) -> dict[str, Any]:
  """Returns all results as a JSON object.

  Raises:
    ValueError: a run cannot be read or measured, or runs differ too much.
  """
  settings = run_noise.FitSettings(
    step=_STEP.value,
    loss=_LOSS.value,
    num_fresh=_NUM_FRESH.value,
    num_directions=_NUM_DIRECTIONS.value,
    rows_at_once=_ROWS_AT_ONCE.value,
    num_timings=_NUM_TIMINGS.value,
    seed=_SEED.value,
  )
  fitted.check_alike([recorded.read_config(x)[0] for x in folders], folders)
  runs = [run_noise.measure(folder, settings) for folder in folders]
  bootstrap = {'num_resamples': _NUM_RESAMPLES.value, 'seed': _SEED.value}
  result = fitted.fit(fitted.units(runs, _NUM_BINS.value), **bootstrap)
  result['values']['mu'] = fitted.mu(runs, **bootstrap)
  return result | {
    'interval': f'{fitted.CONFIDENCE:.0%} percentile bootstrap over groups, '
    'directions and repetitions, seeds and checkpoints as they are',
    'settings': settings._asdict() | bootstrap | {'num_bins': _NUM_BINS.value},
    'runs': [_of_run(run) for run in runs],
    'commit': environment.commit(),
    'hardware': environment.hardware(),
    'versions': environment.versions(is_in_text=False),
    'command': sys.argv,
  }


def _of_run(run: run_noise.RunNoise) -> dict[str, Any]:
  return {
    'folder': str(run.folder),
    'name': run.config.name,
    'iteration': run.iteration,
    'commit': run.commit,
    'fresh_per_update': run.fresh_per_update,
    'seeds': [
      {
        'seed': x.seed,
        'learner_step': x.learner_step,
        'fresh_rollouts': int(x.fresh.sizes.sum()),
        'dropped_fresh_rollouts': x.num_dropped,
        'stored_rollouts': int(x.stored.sizes.sum()),
      }
      for x in run.seeds
    ],
    'seconds': {
      name: np.asarray(getattr(run.times, name)).tolist()
      for name in ('generate', 'remember', 'learn')
    },
    'rollouts_per_generation': run.times.num_generated,
    'rollouts_per_update': run.times.num_trained,
  }


def next_command(result: dict[str, Any], curve: str) -> tuple[str, list[str]]:
  """Returns the command of `plan replay`, and what it does not take as it is.

  Args:
    result: of `fit`.
    curve: path of the file.
  """
  notes, given = [], {}
  for name, low, high in (
    ('mu', 0.0, math.inf),
    ('rho', 0.0, 1.0),
    ('rho_fresh', -1.0, math.inf),
  ):
    value = result['values'][name].value
    given[name] = min(max(value, low), high)
    if given[name] != value:
      notes.append(
        f'{name} = {value:.3g} was measured; the command has {given[name]:g}, '
        f'because the theory takes [{low:g}, {high:g}].'
      )
  words = [f'--{name}={value:.4g}' for name, value in given.items()]
  command = shlex.join([*words, f'--curve={curve}'])
  return f'python -m replay_rl.plan replay {command}', notes


def _tables(result: dict[str, Any]) -> list[rich.table.Table]:
  curve = rich.table.Table(
    title="Variance of a rollout's gradient by age, and share of the fresh "
    'gradient in it',
    box=rich.box.SIMPLE_HEAD,
  )
  for name in ('age', 'rollouts', 'variance', '95 %', 'share', '95 %'):
    curve.add_column(name, justify='right')
  for row in result['curve']:
    cells = [f'{row["age"]:.1f}', str(row['num_rollouts'])]
    for name in ('variance', 'alignment'):
      cells += [
        f'{row[name]:.3f}',
        f'{row[f"{name}_low"]:.3f} to {row[f"{name}_high"]:.3f}',
      ]
    curve.add_row(*cells)
  values = rich.table.Table(
    title='What the theory leaves free', box=rich.box.SIMPLE_HEAD
  )
  for name in ('name', 'value', '95 %', 'seeds', 'meaning'):
    justify = 'left' if name in ('name', 'meaning') else 'right'
    values.add_column(name, justify=justify)
  for name, meaning in _MEANINGS.items():
    one = result['values'][name]
    of_seeds = [x[name] for x in result['by_seed'] if name in x]
    values.add_row(
      name,
      f'{one.value:.4g}',
      f'{one.low:.3g} to {one.high:.3g}',
      ', '.join(f'{x:.3g}' for x in of_seeds),
      meaning,
    )
  return [curve, values]


def _plain(value: Any) -> Any:
  """Returns plain JSON, in which a number that is not finite is None."""
  if isinstance(value, fitted.Value):
    return _plain(value._asdict())
  if isinstance(value, dict):
    return {key: _plain(one) for key, one in value.items()}
  if isinstance(value, (list, tuple)):
    return [_plain(one) for one in value]
  if isinstance(value, (float, np.floating)):
    return float(value) if math.isfinite(value) else None
  return value


def _write(result: dict[str, Any], out: pathlib.Path) -> None:
  text = io.StringIO()
  writer = csv.DictWriter(text, list(result['curve'][0]), lineterminator='\n')
  writer.writeheader()
  writer.writerows(result['curve'])
  content = json.dumps(_plain(result), indent=2) + '\n'
  with durable.refusing(out, num_bytes=None):
    out.mkdir(parents=True, exist_ok=True)
  durable.write(out / CURVE, text.getvalue().encode())
  durable.write(out / FIT, content.encode())


def main(argv: list[str]) -> None:
  """Fits the runs that the arguments name."""
  # Orbax prints a traceback before it raises the error.
  absl_logging.set_verbosity(absl_logging.FATAL)
  try:
    if len(argv) < 2:
      raise ValueError('RUN = none: must be one folder of a run or more')
    if _OUT.value is None:
      raise ValueError('--out = None: must be given')
    for name, path in [('--out', _OUT.value), *(('RUN', x) for x in argv[1:])]:
      paths.check(name, path)
    out = pathlib.Path(_OUT.value).expanduser()
    result = fit([pathlib.Path(x).expanduser() for x in argv[1:]])
    command, notes = next_command(result, str(out / CURVE))
    _write(result | {'next': command, 'notes': notes}, out)
  except (ValueError, OSError) as error:
    print(command_line.last_line(error), file=sys.stderr)
    sys.exit(2)
  console = rich.console.Console()
  for table in _tables(result):
    console.print(table)
  share = result['share_of_resamples_without_growth']
  if math.isinf(result['values']['tau'].value):
    notes.append(_FLAT)
  for line in (
    *notes,
    f'The variance does not grow in {share:.0%} of the resamples.',
    f'Intervals: {result["interval"]}. Hardware: {result["hardware"]}.',
    f'Next: {command}',
  ):
    console.print(line, highlight=False, markup=False, soft_wrap=True)
