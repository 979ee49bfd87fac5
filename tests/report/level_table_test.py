"""Tests of the table of costs to a level, on a sweep of real runs."""

import collections
import contextlib
import csv
import io
import os
import pathlib
import tempfile
from unittest import mock

from absl.testing import parameterized

from replay_rl.report import level_table
from replay_rl.report import sweep_data
from replay_rl.sweep import cells as cells_lib
from replay_rl.sweep import local
from replay_rl.sweep import results
from tests import tiny

_NAMES = ('batch_size=8', 'batch_size=4')


def _costs(path, **settings):
  return level_table.costs_of(sweep_data.read_table(path), **settings)


class LevelTableTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    folder = tempfile.TemporaryDirectory()
    cls.addClassCleanup(folder.cleanup)
    cls.out = pathlib.Path(folder.name) / 'sweep'
    base = tiny.config(
      num_seeds=6, num_iterations=6, evaluation__every_cost=100.0
    )
    cells = cells_lib.make(
      base, [{'replay.batch_size': 8}, {'replay.batch_size': 4}]
    )
    local.run(cells, cls.out, say=print, allow_code_change=False)
    results.write(cells, cls.out)
    cls.path = cls.out / results.EVALUATIONS

  def _read(self, **changes):
    settings = {'level': 0.0, 'num_evaluations': 2, 'mu': 2.0}
    sweep = sweep_data.read(self.out)
    return level_table.costs_of(sweep, **(settings | changes)).cells

  def _main(self, *arguments):
    """Returns the exit status and what was printed, without wrapped lines."""
    out, err = io.StringIO(), io.StringIO()
    status = 0
    with (
      mock.patch.dict(os.environ, {'COLUMNS': '200'}),
      contextlib.redirect_stdout(out),
      contextlib.redirect_stderr(err),
    ):
      try:
        level_table.main([str(self.out), *arguments])
      except SystemExit as ended:
        status = ended.code
    return status, ' '.join(out.getvalue().split()), err.getvalue()

  def test_costs_are_those_of_the_first_evaluation_at_the_level(self):
    # Two updates of 8 or 4 rows and 2 x 16 for the rollouts: 48 or 40 units an
    # iteration, so 100 are spent after the third.
    first, second = self._read()
    self.assertEqual((first.cell, second.cell), _NAMES)
    self.assertEqual(first.costs.tolist(), [144.0] * 6)
    self.assertEqual(second.costs.tolist(), [120.0] * 6)

  def test_another_mu_prices_the_same_runs(self):
    first, second = self._read(mu=10.0)
    self.assertEqual(first.costs.tolist(), [3 * (16 + 160.0)] * 6)
    self.assertEqual(second.costs.tolist(), [3 * (8 + 160.0)] * 6)

  def test_a_level_that_none_reaches_is_more_than_the_budget(self):
    self.assertEqual(self._read(level=2.0)[0].median, float('inf'))
    _, out, _ = self._main('--level=2', '--mu=2')
    self.assertIn('8 6 6 never baseline', out)
    self.assertIn('unknown', out)
    self.assertIn('all within 200 cost units', out)

  def test_no_seed_is_given_more_than_one_that_did_not_get_there_had(self):
    with open(self.path) as file:
      rows = list(csv.DictReader(file))
    # Evaluations are at 144 and 240, and in the second cell at 120 and 200.
    first = [row for row in rows if row['cell'] == _NAMES[0]]
    path = pathlib.Path(self.create_tempdir().full_path) / 'x.csv'
    for scores, expected in (
      ({_NAMES[0]: [0.1, 0.9], _NAMES[1]: [0.1, 0.1]}, (float('inf'), 200.0)),
      ({_NAMES[0]: [0.9, 0.9], _NAMES[1]: [0.1, 0.1]}, (144.0, 200.0)),
      ({_NAMES[0]: [0.1, 0.9], _NAMES[1]: [0.1, 0.9]}, (240.0, float('inf'))),
    ):
      of_seed = collections.Counter()
      for row in rows:
        i = of_seed[row['cell'], row['seed']]
        of_seed[row['cell'], row['seed']] += 1
        row['eval/greedy'] = scores[row['cell']][i]
      with open(path, 'w') as file:
        writer = csv.DictWriter(file, list(first[0]))
        writer.writeheader()
        writer.writerows(rows)
      actual = _costs(path, level=0.5, num_evaluations=1, mu=2.0)
      self.assertEqual(
        (actual.cells[0].median, actual.budget), expected, scores
      )

  def test_a_cell_that_was_never_evaluated_stays_in_the_table(self):
    base = tiny.config(num_iterations=1, evaluation__every_cost=1000.0)
    out = self.create_tempdir().full_path
    cells = cells_lib.make(
      base, [{'replay.batch_size': 8}, {'replay.batch_size': 4}]
    )
    local.run(cells, pathlib.Path(out), say=print, allow_code_change=False)
    results.write(cells, pathlib.Path(out))
    path = pathlib.Path(out) / results.EVALUATIONS
    with self.assertRaisesRegex(ValueError, "it lacks .'eval/greedy'"):
      _costs(path, level=0.5, num_evaluations=1, mu=2.0)
    header, *rows = path.read_text().splitlines()
    self.assertLen(rows, 2)
    path.write_text(
      '\n'.join([f'{header},eval/greedy', *(f'{x},' for x in rows)])
    )
    actual = _costs(path, level=0.5, num_evaluations=1, mu=2.0)
    self.assertEqual([cell.median for cell in actual.cells], [float('inf')] * 2)
    self.assertEqual(actual.budget, 40.0)

  def test_the_table_has_the_saving_and_its_interval(self):
    status, out, _ = self._main(
      '--level=0', '--mu=2', '--baseline=batch_size=8'
    )
    self.assertEqual(status, 0)
    self.assertIn('4 6 0 120 17% 17% to 17% 0.0001', out)
    self.assertIn('8 6 0 144 baseline', out)

  def test_the_best_of_the_baselines_is_taken(self):
    _, out, _ = self._main('--level=0', '--mu=2', '--baselines=batch_size')
    self.assertIn('Against batch_size=4', out)
    self.assertIn('-20%', out)

  @parameterized.parameters(
    (('--baseline=no',), "--baseline = 'no': must be one of"),
    (('--baselines=no',), "--baselines = 'no': must be the beginning of"),
  )
  def test_what_cannot_be_is_one_line(self, arguments, complaint):
    status, out, err = self._main('--level=0', '--mu=2', *arguments)
    self.assertEqual((status, out), (2, ''))
    self.assertStartsWith(err, f'error: {complaint}')
