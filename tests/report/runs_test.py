"""Tests of reading run folders: shapes, order, and what is wrong in a file."""

import contextlib
import io
import json
import pathlib
import tempfile

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from replay_rl.report import runs
from tests.report import synthetic


class RunsTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    self.stderr = self.enterContext(contextlib.redirect_stderr(io.StringIO()))
    self.rows = synthetic.rows_of_rewards([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]])

  def write(self, rows=None, **more):
    rows = self.rows if rows is None else rows
    more.setdefault('seconds', [3.0, 1.0, 2.0])
    return synthetic.write_run(self.root / 'a', rows, **more)

  def metrics(self, folder):
    return pathlib.Path(folder) / 'metrics.jsonl'

  def test_values_are_seeds_by_iterations_whatever_the_order_of_lines(self):
    run = runs.read(self.write(self.rows[::-1], name='arm'))
    self.assertEqual(run.name, 'arm')
    self.assertEqual(run.commit, 'abc123')
    self.assertEqual(run.hardware, 'one CPU')
    self.assertEqual(run.versions, {'jax': '0.10.2'})
    np.testing.assert_array_equal(run.seeds, [0, 1])
    np.testing.assert_array_equal(run.iterations, [0, 1, 2])
    np.testing.assert_array_equal(
      run.values['reward'], [[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]]
    )
    np.testing.assert_array_equal(
      run.values[runs.TOKENS], [[100, 200, 300], [101, 202, 303]]
    )
    self.assertEmpty(self.stderr.getvalue())

  def test_seconds_are_summed_for_all_seeds_together(self):
    run = runs.read(self.write())
    np.testing.assert_array_equal(run.seconds, [3, 1, 2])
    np.testing.assert_array_equal(
      run.values[runs.SECONDS], [[3, 4, 6], [3, 4, 6]]
    )
    np.testing.assert_array_equal(run.is_first, [True, False, False])

  def test_the_first_iteration_of_each_process_is_marked(self):
    folder = self.write()
    lines = [(0, 9.0, 0), (1, 1.0, 0), (1, 7.0, 1), (2, 2.0, 1)]
    (self.root / 'a' / 'timing.jsonl').write_text(
      ''.join(
        json.dumps({'iteration': i, 'seconds': s, 'process': p}) + '\n'
        for i, s, p in lines
      )
    )
    run = runs.read(folder)
    np.testing.assert_array_equal(run.seconds, [9, 7, 2])
    np.testing.assert_array_equal(run.is_first, [True, True, False])

  def test_seconds_after_a_gap_are_unknown(self):
    folder = self.write(seconds=[3.0])
    run = runs.read(folder)
    np.testing.assert_array_equal(
      run.values[runs.SECONDS], [[3, np.nan, np.nan]] * 2
    )
    self.assertIn('unknown from iteration 1 on', self.stderr.getvalue())

  def test_a_run_without_timing_has_unknown_seconds_and_a_warning(self):
    run = runs.read(self.write(seconds=None))
    self.assertTrue(np.isnan(run.seconds).all())
    self.assertIn('timing.jsonl is missing', self.stderr.getvalue())

  def test_null_and_absent_optional_values_are_nan(self):
    self.rows[0]['entropy'] = 0.5
    self.rows[1]['entropy'] = None
    run = runs.read(self.write())
    expected = [[0.5, np.nan, np.nan], [np.nan] * 3]
    np.testing.assert_array_equal(run.column('entropy'), expected)
    np.testing.assert_array_equal(run.column('ess'), np.full((2, 3), np.nan))

  def test_histograms_are_summed_over_iterations_and_seeds(self):
    for index, row in enumerate(self.rows[:5]):
      row['histogram/uses'] = [index, 1]
    self.rows[5]['histogram/uses'] = None
    run = runs.read(self.write())
    np.testing.assert_array_equal(run.histograms['uses'], [10, 5])

  def test_a_half_written_last_line_and_its_iteration_are_left_out(self):
    folder = self.write()
    text = self.metrics(folder).read_text()
    self.metrics(folder).write_text(text[:-20])
    run = runs.read(folder)
    np.testing.assert_array_equal(run.iterations, [0, 1])
    warnings = self.stderr.getvalue()
    self.assertIn('metrics.jsonl:6: the half-written last line', warnings)
    self.assertIn('iteration 2 lacks some seeds', warnings)

  def test_histograms_leave_out_the_iteration_without_all_seeds(self):
    for row in self.rows:
      row['histogram/uses'] = [1]
    run = runs.read(self.write(self.rows[:5]))
    np.testing.assert_array_equal(run.histograms['uses'], [4])

  def test_a_complete_last_line_needs_no_line_end(self):
    folder = self.write()
    text = self.metrics(folder).read_text()
    self.metrics(folder).write_text(text[:-1])
    self.assertLen(runs.read(folder).iterations, 3)

  @parameterized.parameters(0, 3, 5)
  def test_a_broken_line_is_an_error_with_its_number(self, index):
    folder = self.write()
    lines = self.metrics(folder).read_text().splitlines()
    lines[index] = lines[index][:-5]
    self.metrics(folder).write_text('\n'.join(lines) + '\n')
    with self.assertRaisesRegex(
      ValueError, f'metrics.jsonl:{index + 1} is not valid JSON'
    ):
      runs.read(folder)

  @parameterized.parameters(*runs.REQUIRED)
  def test_a_missing_key_is_an_error_with_file_line_and_key(self, key):
    del self.rows[2][key]
    with self.assertRaisesRegex(
      ValueError, f"metrics.jsonl:3: key '{key}' is missing"
    ):
      runs.read(self.write())

  @parameterized.parameters(None, True, 'high', float('nan'), float('inf'))
  def test_a_required_value_must_be_a_finite_number(self, value):
    self.rows[1]['reward'] = value
    with self.assertRaisesRegex(
      ValueError, "metrics.jsonl:2: key 'reward' must be a finite number"
    ):
      runs.read(self.write())

  @parameterized.parameters(
    ({'seed': 0.5}, "'seed' must be a whole number, is 0.5"),
    ({'iteration': -1}, "'iteration' must be a whole number, is -1"),
    ({'entropy': 'low'}, "'entropy' must be a number or null, is 'low'"),
    ({'histogram/uses': 3}, "'histogram/uses' must be a list, is 3"),
    ({'histogram/uses': []}, "'histogram/uses' must be a list"),
    ({'histogram/uses': [0.5]}, "'histogram/uses' must hold counts"),
    ({'histogram/uses': [-1]}, "'histogram/uses' must hold counts"),
  )
  def test_a_wrong_value_is_an_error(self, change, message):
    self.rows[1] |= change
    with self.assertRaisesRegex(ValueError, f'metrics.jsonl:2: key {message}'):
      runs.read(self.write())

  def test_a_line_that_is_no_object_is_an_error(self):
    folder = self.write()
    self.metrics(folder).write_text('[1]\n')
    with self.assertRaisesRegex(ValueError, r'jsonl:1 must be an object'):
      runs.read(folder)

  def test_bins_must_be_equally_many_in_all_lines(self):
    self.rows[0]['histogram/uses'] = [1, 2]
    self.rows[1]['histogram/uses'] = [1, 2, 3]
    with self.assertRaisesRegex(ValueError, "uses' has 2 and 3 bins"):
      runs.read(self.write())

  def test_a_missing_iteration_of_a_seed_is_an_error(self):
    with self.assertRaisesRegex(ValueError, 'iteration 1 of seed 0 is missing'):
      runs.read(self.write(self.rows[:2] + self.rows[3:]))

  def test_a_missing_iteration_of_all_seeds_is_an_error(self):
    with self.assertRaisesRegex(ValueError, 'iteration 1 of seed 0 is missing'):
      runs.read(self.write(self.rows[:2] + self.rows[4:]))

  def test_a_seed_that_stopped_early_is_an_error(self):
    with self.assertRaisesRegex(ValueError, 'iteration 1 of seed 0 is missing'):
      runs.read(self.write(self.rows[:2] + self.rows[3:4] + self.rows[5:]))

  def test_iterations_need_not_start_at_zero(self):
    # Timing of iterations that metrics.jsonl does not hold is not used.
    run = runs.read(self.write(self.rows[2:], seconds=[3.0, 1.0]))
    np.testing.assert_array_equal(run.iterations, [1, 2])
    np.testing.assert_array_equal(run.seconds, [1, np.nan])
    np.testing.assert_array_equal(run.is_first, [False, False])

  def test_a_line_repeated_by_a_resumed_run_counts_once(self):
    for row in self.rows:
      row['histogram/uses'] = [1]
    run = runs.read(self.write(self.rows[:4] + self.rows[2:]))
    np.testing.assert_array_equal(run.histograms['uses'], [6])

  def test_a_line_repeated_with_other_values_is_an_error(self):
    changed = self.rows[2] | {'reward': 0.9}
    with self.assertRaisesRegex(
      ValueError, 'jsonl:7: iteration 1 of seed 0 is there before, with other'
    ):
      runs.read(self.write([*self.rows, changed]))

  def test_a_falling_total_is_an_error(self):
    self.rows[4][runs.TOKENS] = 150
    with self.assertRaisesRegex(
      ValueError, "total 'ledger/generated_tokens' falls at iteration 2"
    ):
      runs.read(self.write())

  def test_a_file_without_an_iteration_is_an_error(self):
    with self.assertRaisesRegex(ValueError, 'holds no complete iteration'):
      runs.read(self.write([]))

  @parameterized.parameters('config.json', 'metrics.jsonl')
  def test_a_missing_file_is_an_error(self, name):
    folder = self.write()
    (self.root / 'a' / name).unlink()
    with self.assertRaisesRegex(ValueError, f'{name} is missing'):
      runs.read(folder)

  @parameterized.parameters(
    ('{', 'is not valid JSON'),
    ('[]', "'config' must be an object"),
    ('{"versions": {}}', "'config' must be an object"),
    ('{"config": {}, "versions": 3}', "'versions' must be an object"),
  )
  def test_a_wrong_config_is_an_error(self, text, message):
    folder = self.write()
    (self.root / 'a' / 'config.json').write_text(text)
    with self.assertRaisesRegex(ValueError, f'config.json.*{message}'):
      runs.read(folder)

  def test_a_sparse_header_falls_back_to_folder_name_and_unknown(self):
    folder = self.write()
    (self.root / 'a' / 'config.json').write_text('{"config": {}}')
    run = runs.read(folder)
    self.assertEqual(
      (run.name, run.commit, run.hardware, run.versions),
      ('a', 'unknown', 'unknown', {}),
    )

  def test_runs_of_one_name_are_told_apart_by_their_folders(self):
    folders = [
      synthetic.write_run(self.root / f, self.rows, name=n, seconds=[1.0] * 3)
      for f, n in (('x', 'arm'), ('y', 'arm'), ('z', 'other'))
    ]
    names = [run.name for run in runs.read_all(folders)]
    self.assertEqual(
      names, [f'arm ({folders[0]})', f'arm ({folders[1]})', 'other']
    )

  def test_no_folder_or_one_folder_twice_is_an_error(self):
    folder = self.write()
    with self.assertRaisesRegex(ValueError, 'at least one run folder'):
      runs.read_all([])
    with self.assertRaisesRegex(ValueError, 'is given twice'):
      runs.read_all([folder, f'{folder}/../a'])


if __name__ == '__main__':
  absltest.main()
