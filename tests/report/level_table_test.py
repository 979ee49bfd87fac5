"""Tests of the table of costs to a level, on a sweep of real runs."""

import contextlib
import io
import pathlib
import tempfile

from absl.testing import parameterized

from replay_rl.report import level_table
from replay_rl.sweep import cells as cells_lib
from replay_rl.sweep import local
from replay_rl.sweep import results
from tests import tiny

_NAMES = ('batch_size=8', 'batch_size=4')


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
    return level_table.read(self.path, **(settings | changes))

  def _main(self, *arguments):
    """Returns the exit status and what was printed, without wrapped lines."""
    out, err = io.StringIO(), io.StringIO()
    status = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
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

  def test_another_file_is_refused(self):
    for text, complaint in (
      (None, 'path = .*: must be the table of a sweep .No such file'),
      ('', r'columns of .* = \[\]: must be those of a sweep'),
      ('cell,seed\na,1\n', "it lacks .'eval/greedy', 'ledger/rollouts'"),
    ):
      path = pathlib.Path(self.create_tempdir().full_path) / 'x.csv'
      if text is not None:
        path.write_text(text)
      with self.assertRaisesRegex(ValueError, complaint):
        level_table.read(path, level=0.5, num_evaluations=1, mu=1.0)
