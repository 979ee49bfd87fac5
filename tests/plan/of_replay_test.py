"""Tests of the plan of replay: the real program, and what it prints."""

import contextlib
import io
import json
import pathlib
import subprocess
import sys

from absl.testing import absltest
from absl.testing import parameterized

from replay_rl.plan import __main__ as plan
from replay_rl.plan import of_replay
from replay_rl.plan import saving
from replay_rl.replay import noise
from replay_rl.replay import planner
from tests import mains

ROOT = pathlib.Path(__file__).parents[2]
_PAPER = ('--mu=5.28', '--rho=0.1', '--alpha=0.2')


def _main(*arguments) -> tuple[int, str, str]:
  """Returns the exit status and what was printed, without wrapped lines."""
  status, out, err = mains.ran(
    *(of_replay.main, of_replay.FLAGS, *arguments),
    description=of_replay.__doc__,
  )
  return status, ' '.join(out.split()), err


class ProgramTest(absltest.TestCase):
  def test_the_command_prints_the_optimum_to_three_decimals(self):
    done = subprocess.run(
      [sys.executable, '-m', 'replay_rl.plan', 'replay', *_PAPER],
      cwd=ROOT,
      capture_output=True,
      text=True,
      check=True,
    )
    self.assertIn('4.265', done.stdout)
    self.assertIn('3.973', done.stdout)

  def test_help_says_what_it_does_and_lists_its_flags(self):
    status, out, _ = _main('--help')
    self.assertEqual(status, 0)
    self.assertStartsWith(out, 'Says how large a buffer and how much reuse')
    self.assertIn('--rho: Correlation of the gradient noise of stored', out)

  def test_an_unknown_plan_is_refused(self):
    for argv in (['plan'], ['plan', 'nothing']):
      with (
        contextlib.redirect_stderr(io.StringIO()) as printed,
        self.assertRaises(SystemExit) as raised,
      ):
        plan.main(argv)
      self.assertEqual(raised.exception.code, 2)
      self.assertRegex(
        printed.getvalue(), '^error: plan = .*: must be followed by one of mem'
      )


class MainTest(parameterized.TestCase):
  def test_without_the_noise_of_fresh_rollouts_no_saving_is_claimed(self):
    status, out, _ = _main(*_PAPER)
    self.assertEqual(status, 0)
    self.assertIn('x* = 4.265 (N / R', out)
    self.assertIn('What it saves is not defined', out)
    self.assertNotIn('%', out)

  def test_a_whole_plan(self):
    status, out, _ = _main(
      *_PAPER,
      *('--tau=200', '--batch_size=64', '--group_size=8', '--num_devices=8'),
    )
    self.assertEqual(status, 0)
    for words in (
      'It saves ',
      "The paper's own comparison would say",
      'An asynchronous run does best with 4 samplers and 4 learners',
      'The saving if one input were another',
      'Settings for this batch',
    ):
      self.assertIn(words, out)

  def test_where_replay_costs_more_it_says_so(self):
    _, out, _ = _main('--mu=1', '--rho=0.5', '--alpha=0.4', '--tau=1')
    self.assertIn('Train without a buffer: with the best one a run would', out)

  def test_json_has_the_same(self):
    _, out, _ = _main(*_PAPER, '--tau=200', '--json', '--batch_size=64')
    self.assertEqual(out, '')
    _, out, _ = _main(
      *_PAPER, *('--tau=200', '--json', '--batch_size=64', '--group_size=8')
    )
    result = json.loads(out)
    mean = noise.mean_variance(noise.growing(alpha=0.2, tau=200.0))
    best = result['optimum']
    cost = planner.cost(
      planner.Ratios(best['x'], best['y']), mean, mu=5.28, rho=0.1
    )
    self.assertAlmostEqual(best['saving'], 1 - cost / 6.28)
    self.assertLen(result['settings'], 4)
    for row in result['settings']:
      fresh = row['num_prompts'] * row['group_size']
      updates = row['updates_per_iteration']
      self.assertAlmostEqual(row['x'], row['capacity'] / fresh * updates)
      self.assertAlmostEqual(row['y'], 64 * updates / fresh)
      self.assertBetween(row['saving'], 0, best['saving'])
    self.assertIsNone(result['split'])

  @parameterized.parameters(
    ((), '--mu = None: must be given'),
    (('--mu=5.28',), '--rho = None: must be given'),
    (('--mu=5.28', '--rho=0.1'), '--alpha = None, --tau = None: must both'),
    (('--mu=5.28', '--rho=0.1', '--alpha=0.6'), '--alpha = 0.6, --tau = None'),
    (('--mu=-1', '--rho=0.1', '--alpha=0.2'), 'mu = -1.0: must be in'),
    ((*_PAPER, '--tau=0'), 'tau = 0.0: must be in'),
    ((*_PAPER, '--tau=9', '--max_x=0.5'), 'max_x = 0.5: must be at least 1'),
    ((*_PAPER, '--tau=9', '--rho_fresh=-2'), 'rho = -2.0: must be in'),
    ((*_PAPER, '--tau=9', '--batch_size=8'), '--group_size = None: must be gi'),
    ((*_PAPER, '--tau=9', '--num_devices=1'), 'num_devices = 1: must be in'),
    ((*_PAPER, '--curve=c.csv'), "--curve = 'c.csv': must not be given with"),
    (
      ('--mu=5.28', '--rho=0.1', '--curve=/nowhere'),
      "path = '/nowhere': must be usable",
    ),
    ((*_PAPER, 'more'), "arguments = ['more']: must be flags"),
    (('--mu=x',), "flag --mu=x: could not convert string to float: 'x'"),
  )
  def test_what_cannot_be_is_one_line(self, arguments, complaint):
    status, out, err = _main(*arguments)
    self.assertEqual((status, out), (2, ''))
    self.assertStartsWith(err, f'error: {complaint}')
    self.assertLen(err.splitlines(), 1)


class CurveTest(parameterized.TestCase):
  def _file(self, text):
    return self.create_tempfile(content=text).full_path

  def test_a_measured_line_is_planned_with(self):
    rows = ''.join(f'{age},{1 + 0.02 * age}\n' for age in range(0, 101, 10))
    path = self._file(f'age,variance\n{rows}')
    _, out, _ = _main('--mu=5.28', '--rho=0.1', f'--curve={path}', '--json')
    best = json.loads(out)['optimum']
    # v(x) = 1 + 0.01 (x - 1): 32 % in the protocol of our studies.
    self.assertAlmostEqual(best['saving'], 0.3233, places=3)
    self.assertEqual(
      {row['name'] for row in json.loads(out)['sensitivity']}, {'mu', 'rho'}
    )

  def test_no_older_age_than_measured_is_planned_with(self):
    path = self._file('age,variance\n0,1\n4,1.001\n')
    _, out, _ = _main('--mu=5.28', '--rho=0.1', f'--curve={path}', '--json')
    self.assertAlmostEqual(json.loads(out)['optimum']['x'], 5, places=4)
    status, _, err = _main(
      '--mu=5.28', '--rho=0.1', f'--curve={path}', '--max_x=6'
    )
    self.assertEqual(status, 2)
    self.assertIn('must be at most 4, the oldest that was measured', err)

  @parameterized.parameters('', 'a,b\n1,2\n', 'age,variance\n0,x\n', 'age\n0\n')
  def test_another_file_is_refused(self, text):
    status, _, err = _main(
      '--mu=5.28', '--rho=0.1', f'--curve={self._file(text)}'
    )
    self.assertEqual(status, 2)
    self.assertRegex(err, r'^error: (--curve|variances) = .*must be ')


class SensitivityTest(absltest.TestCase):
  def test_the_choice_is_never_better_than_the_best(self):
    given = {
      'mu': 5.28,
      'rho': 0.6,
      'rho_fresh': 0.0,
      'alpha': 0.3,
      'tau': 30.0,
      'curve': None,
      'max_x': None,
      'without_replacement': False,
    }
    chosen = saving.inputs(**given).optimum().ratios
    rows = saving.sensitivity(given, chosen)
    # Twice this rho is no correlation.
    self.assertEqual(
      [(row.name, row.value) for row in rows],
      [
        *(('mu', 2.64), ('mu', 10.56), ('rho', 0.3)),
        *(('alpha', 0.15), ('alpha', 0.6), ('tau', 15.0), ('tau', 60.0)),
      ],
    )
    for row in rows:
      self.assertLess(row.chosen, row.best)
      changed = saving.inputs(**{**given, row.name: row.value})
      self.assertAlmostEqual(row.chosen, changed.saving(chosen))


if __name__ == '__main__':
  absltest.main()
