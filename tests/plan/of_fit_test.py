"""Tests of `plan fit`: the real program on a real run."""

import csv
import json
import pathlib

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from replay_rl.plan import fitted
from replay_rl.plan import of_fit
from replay_rl.plan import of_replay
from replay_rl.plan import run_noise
from replay_rl.replay import gradient_noise
from tests import mains
from tests.plan import measured_run


def _main(*arguments) -> tuple[int, str, str]:
  """Returns the exit status and what was printed, without wrapped lines."""
  status, out, err = mains.ran(
    *(of_fit.main, of_fit.FLAGS, *arguments), description=of_fit.__doc__
  )
  return status, ' '.join(out.split()), err


class MainTest(absltest.TestCase):
  def test_a_fit_and_the_plan_that_it_names(self):
    folder = str(measured_run.folder())
    out = pathlib.Path(self.create_tempdir().full_path) / 'new' / 'fit'
    status, printed, err = _main(
      *(folder, f'--out={out}', '--step=2', '--num_fresh=160'),
      *('--num_directions=4', '--num_timings=3', '--num_resamples=20'),
    )
    self.assertEqual((status, err), (0, ''))
    self.assertIn('What the theory leaves free', printed)
    result = json.loads((out / 'fit.json').read_text())
    (run,) = result['runs']
    self.assertEqual((run['folder'], run['iteration']), (folder, 2))
    self.assertEqual([x['seed'] for x in run['seeds']], [0, 1])
    self.assertEqual({x['learner_step'] for x in run['seeds']}, {4})
    self.assertLen(run['seconds']['learn'], 3)
    self.assertEqual(result['settings']['num_directions'], 4)
    for name in of_fit._MEANINGS:
      self.assertEqual(set(result['values'][name]), {'value', 'low', 'high'})
    # All stored rollouts have the first weights, so there is one distance.
    self.assertIsNone(result['values']['rho_by_distance']['value'])
    with open(out / 'curve.csv', newline='') as file:
      rows = list(csv.DictReader(file))
    self.assertEqual([float(row['age']) for row in rows], [0, 4])
    self.assertEqual(float(rows[0]['variance']), 1)
    for row in rows:
      self.assertLessEqual(
        float(row['variance_low']), float(row['variance_high'])
      )
    _, _, flags = result['next'].partition('plan replay ')
    self.assertIn(f'Next: python -m replay_rl.plan replay {flags}', printed)
    *numbers, curve = flags.split()
    status, printed, err = mains.ran(
      *(of_replay.main, of_replay.FLAGS, *numbers, curve)
    )
    self.assertEqual((status, err), (0, ''))

  def test_what_cannot_be_is_one_line(self):
    folder = str(measured_run.folder())
    other = pathlib.Path(self.create_tempdir().full_path)
    made_of = json.loads((measured_run.folder() / 'config.json').read_text())
    made_of['config']['optimizer']['learning_rate'] = 0.5
    (other / 'config.json').write_text(json.dumps(made_of))
    for arguments, complaint in (
      ((), 'RUN = none: must be one folder'),
      ((folder,), '--out = None: must be given'),
      (('/nowhere', '--out=/tmp/x'), "path = '/nowhere/config.json': must be"),
      (
        (folder, '--out=/tmp/x', '--step=7'),
        'step = 7: must be one of [1, 2, 3',
      ),
      (
        (folder, '--out=/tmp/x', '--num_fresh=1'),
        'flag --num_fresh=1: 1 is not',
      ),
      ((folder, '--out=/tmp/x', '--loss=no()'), "loss.policy = 'no()'"),
      (
        (folder, str(other), '--out=/tmp/x'),
        f'optimizer.learning_rate of {str(other)!r} = 0.5: must be 0.01',
      ),
    ):
      status, out, err = _main(*arguments)
      self.assertEqual((status, out), (2, ''))
      self.assertStartsWith(err, f'error: {complaint}')
      self.assertLen(err.splitlines(), 1)


def _result(**values):
  return {'values': {name: fitted.Value(x, x, x) for name, x in values.items()}}


class NextCommandTest(absltest.TestCase):
  def test_has_the_numbers(self):
    command, notes = of_fit.next_command(
      _result(mu=0.4, rho=0.1234567, rho_fresh=1.2), 'a b/curve.csv'
    )
    self.assertEqual(
      command,
      'python -m replay_rl.plan replay --mu=0.4 --rho=0.1235 --rho_fresh=1.2 '
      "'--curve=a b/curve.csv'",
    )
    self.assertEmpty(notes)

  def test_says_what_it_changes(self):
    command, notes = of_fit.next_command(
      _result(mu=5.0, rho=-0.02, rho_fresh=-0.5), 'c'
    )
    self.assertIn('--mu=5 --rho=0 --rho_fresh=-0.5 ', command)
    self.assertLen(notes, 1)
    self.assertStartsWith(notes[0], 'rho = -0.02 was measured; the command has')


def _unit(seed, curve, *, num_groups=60, shared=0.0, fresh_per_update=8.0):
  """Returns a seed with rollouts of ages 1, 2, ... with known variances."""
  rng = np.random.default_rng(seed)
  ages = np.repeat(np.arange(1, len(curve) + 1), 2 * num_groups)
  vectors = rng.normal(size=(len(ages), 30)) / np.sqrt(30)
  vectors *= np.sqrt(np.asarray(curve)[ages - 1])[:, None]
  vectors[:, 0] += shared
  signs = rng.choice([-1.0, 1.0], size=(64, 30))
  fresh = rng.normal(size=(1200, 30)) / np.sqrt(30)
  groups = [
    gradient_noise.grouped(x @ signs.T, np.arange(len(x)) // 2, age)
    for x, age in ((fresh, np.zeros(1200, int)), (vectors, ages))
  ]
  noise = run_noise.SeedNoise(seed, 9, *groups, num_dropped=0)
  bins = groups[1].ages - 1
  counts = np.bincount(bins, weights=groups[1].sizes)
  return fitted.Unit(noise, bins, counts, fresh_per_update, group_size=2)


class FitTest(absltest.TestCase):
  def test_intervals_hold_what_was_planted(self):
    curve = 1 + (np.arange(1, 13) / 5) ** 0.8
    units = [_unit(seed, curve) for seed in range(2)]
    result = fitted.fit(units, num_resamples=100, seed=0)
    values = result['values']
    for name, planted in (
      ('alpha', 0.4),
      ('tau', 5.0),
      ('rho', 0.0),
      ('rho_fresh', 0.0),
      ('rho_stored', 0.0),
    ):
      self.assertBetween(planted, values[name].low, values[name].high, name)
    self.assertLess(values['rho'].high - values['rho'].low, 0.1)
    self.assertEqual(result['share_of_resamples_without_growth'], 0)
    for row, planted in zip(result['curve'], [1, *curve], strict=True):
      low, high = row['variance_low'] * 0.9, row['variance_high'] * 1.1
      self.assertBetween(planted, low, high)
    self.assertLen(result['by_seed'], 2)
    again = fitted.fit(units, num_resamples=100, seed=0)
    self.assertEqual(values['rho'], again['values']['rho'])

  def test_rho_is_r_times_the_mean_correlation(self):
    # All old rollouts share 0.5 in one direction: 0.25 of a variance of 1.25.
    unit = _unit(0, np.ones(4), shared=0.5, fresh_per_update=8.0)
    result = fitted.fit([unit], num_resamples=20, seed=0)
    self.assertAlmostEqual(result['values']['rho'].value, 8 * 0.2, delta=0.2)
    self.assertAlmostEqual(result['values']['bias'].value, 8 * 0.2, delta=0.25)

  def test_a_falling_curve_has_no_growth(self):
    result = fitted.fit([_unit(0, [0.9, 0.5, 0.2])], num_resamples=20, seed=0)
    self.assertEqual(result['share_of_resamples_without_growth'], 1)
    self.assertEqual(result['values']['tau'].value, np.inf)
    self.assertTrue(np.isnan(result['values']['alpha'].value))


class BinsTest(parameterized.TestCase):
  @parameterized.parameters(
    (1, 4, [0, 1, 2]), (4, 4, [0, 1, 2, 3, 4, 5]), (63, 3, [0, 1, 4, 16, 64])
  )
  def test_grow_and_hold_the_oldest(self, oldest, num_bins, expected):
    self.assertEqual(fitted.bin_edges(oldest, num_bins).tolist(), expected)


if __name__ == '__main__':
  absltest.main()
