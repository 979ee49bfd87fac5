"""Tests of the tables of an evaluation."""

import io

import rich.console
from absl.testing import absltest

from replay_rl.evaluate import scores_table

_PASSES = {
  '1': {'mean': 0.4125, 'interval': [0.3, 0.5]},
  '2': {'mean': 1.0, 'interval': None},
}
_ONE = {
  'num_problems': 30,
  'num_samples': 2,
  'pass_at_k': _PASSES,
  'response_length': 12.25,
  'truncated_fraction': 0.125,
  'statuses': {'correct': 20, 'timeout': 0, 'wrong': 40},
}


def _results(names, **changes):
  return {
    'settings': {'n': 2, 'temperature': 1.0},
    'intervals': {'confidence': 0.95},
    'benchmarks': dict.fromkeys(names, _ONE),
    'average': {
      'pass_at_k': _PASSES,
      'response_length': 9.0,
      'truncated_fraction': 0.5,
    },
    **changes,
  }


def _rows(results):
  """Returns the words of each line that is shown."""
  console = rich.console.Console(file=io.StringIO(), width=80)
  for table in scores_table.tables(results):
    console.print(table)
  lines = console.file.getvalue().splitlines()
  return [line.split() for line in lines if line.strip()]


class TablesTest(absltest.TestCase):
  def test_shows_scores_lengths_and_statuses(self):
    rows = _rows(_results(['a[b]', 'c']))
    self.assertIn(['benchmark', 'pass@1', 'pass@2'], rows)
    self.assertIn(['a[b]', '41.2', '100.0'], rows)
    self.assertIn(['30.0–50.0'], rows)
    title = '%, n = 2, temperature 1; 95 % interval over problems (Wilson)'
    self.assertIn(title, ' '.join(sum(rows, [])))
    self.assertIn(
      ['benchmark', 'problems', 'tokens', 'cut', 'off', 'correct', 'wrong'],
      rows,
    )
    # 12.25 rounds to even; a status that nothing has is left out.
    self.assertIn(['c', '30', '12.2', '12.5', '%', '20', '40'], rows)
    self.assertIn(['average', '9.0', '50.0', '%'], rows)

  def test_one_benchmark_has_no_average(self):
    rows = _rows(_results(['a']))
    self.assertNotIn('average', sum(rows, []))

  def test_shows_changes_beside_the_score(self):
    changes = {'length_reduction': 0.25, 'accuracy_gain': -0.5, 'aes': -2.25}
    unknown = {'length_reduction': -0.5, 'accuracy_gain': None, 'aes': None}
    comparison = {
      'baseline': 'base',
      'constants': {'omega': 1.0, 'beta': 3.0, 'gamma': 5.0},
      'differing_settings': {'n': [2, 4], 'template': ['a', 'b']},
      'benchmarks': {'a': changes, 'c': unknown},
      'average': changes,
    }
    rows = _rows(_results(['a', 'c'], comparison=comparison))
    self.assertIn('against base (omega 1, beta 3, gamma 5)'.split(), rows)
    self.assertIn(['a', '−50.0', '%', '−25.0', '%', '-2.250'], rows)
    self.assertIn(['c', '–', '+50.0', '%', '–'], rows)
    self.assertIn(['average', '−50.0', '%', '−25.0', '%', '-2.250'], rows)
    shown = ' '.join(sum(rows, []))
    self.assertIn('baseline has other settings: n, template', shown)
