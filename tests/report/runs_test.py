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
from tests.report import trained


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

  def test_uses_in_the_buffer_are_those_of_the_last_whole_iteration(self):
    for index, row in enumerate(self.rows):
      row['histogram/uses'] = [1, 0]
      row['buffer_histogram/uses'] = [10**index, 2]
    # The last iteration of both seeds: of the other ones, these rollouts are
    # counted there or were overwritten since.
    run = runs.read(self.write())
    np.testing.assert_array_equal(
      run.histograms['uses'], [6 + 10**4 + 10**5, 4]
    )
    self.assertNotIn('uses', self.stderr.getvalue())
    run = runs.read(synthetic.write_run(self.root / 'b', self.rows[:5]))
    np.testing.assert_array_equal(
      run.histograms['uses'], [4 + 10**2 + 10**3, 4]
    )

  def test_a_run_that_wrote_no_uses_in_the_buffer_has_a_warning(self):
    for row in self.rows:
      row['histogram/uses'] = [1]
    runs.read(self.write())
    self.assertIn(
      'the uses of rollouts still in the buffer are unknown',
      self.stderr.getvalue(),
    )

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

  @parameterized.parameters(*runs.REQUIRED)
  def test_a_missing_key_is_an_error_with_file_line_and_key(self, key):
    del self.rows[2][key]
    with self.assertRaisesRegex(
      ValueError,
      f'{key} of .*metrics.jsonl:3 = missing: must be a finite number',
    ):
      runs.read(self.write())

  @parameterized.parameters(
    ('reward', None, 'None: must be a finite number'),
    ('reward', True, 'True: must be a finite number'),
    ('reward', 'high', "'high': must be a finite number"),
    ('reward', np.nan, 'nan: must be a finite number'),
    ('reward', np.inf, 'inf: must be a finite number'),
    ('seed', 0.5, '0.5: must be a whole number >= 0'),
    ('iteration', -1, '-1: must be a whole number >= 0'),
    ('entropy', 'low', "'low': must be a number or null"),
    ('histogram/uses', 3, '3: must be a list of whole numbers >= 0'),
    ('histogram/uses', [], r'\[\]: must be a list of whole numbers >= 0'),
    ('histogram/uses', [0.5], r'\[0.5\]: must be a list of whole numbers'),
    ('histogram/uses', [-1], r'\[-1\]: must be a list of whole numbers'),
  )
  def test_a_wrong_value_is_an_error(self, key, value, message):
    self.rows[1][key] = value
    with self.assertRaisesRegex(
      ValueError, f'^{key} of .*metrics.jsonl:2 = {message}'
    ):
      runs.read(self.write())

  # Rows 2 and 3 are iteration 1 of seeds 0 and 1.
  @parameterized.parameters(
    ([0, 1, 3, 4, 5], {}, 'iteration 1 of seed 0 = None: must be in .*me'),
    ([0, 1, 4, 5], {}, 'iteration 1 of seed 0 = None: must be in .*me'),
    ([0, 1, 3, 5], {}, 'iteration 1 of seed 0 = None: must be in .*me'),
    ([], {}, "metrics.jsonl': must hold a whole iteration"),
    (
      [0, 1, 2, 3, 4, 5, 2],
      {'reward': 0.9},
      'iteration 1 of seed 0 = .*jsonl:7: must equal the line before',
    ),
    (
      [0, 1, 2, 3, 4, 5],
      {runs.TOKENS: 150},
      f'falls of {runs.TOKENS} in .* = 1: must be none .*at iteration 2',
    ),
    (
      [0, 1, 2, 3, 4, 5],
      {'histogram/uses': [1, 2, 3]},
      'bins of histogram/uses in .* = 2, 3: must be equally many',
    ),
  )
  def test_lines_that_do_not_fit_are_an_error(self, order, change, message):
    rows = [self.rows[i] | {'histogram/uses': [1, 2]} for i in order]
    if rows:
      rows[-1] |= change
    with self.assertRaisesRegex(ValueError, message):
      runs.read(self.write(rows))

  @parameterized.parameters(
    ('metrics.jsonl', '[1]\n', r':1 = \[1\]: must be an object'),
    ('metrics.jsonl', '{}{\n{}\n', r":1 = b'{.*: must be JSON \("),
    ('metrics.jsonl', '{}{\n', r":1 = b'{.*: must be JSON \("),
    ('metrics.jsonl', None, ': must be a file'),
    ('config.json', None, 'must be a JSON object .No such file'),
    ('config.json', '{', r"': must be a JSON object \("),
    ('config.json', '[]', r'must be a JSON object \(it holds \[\]\); name'),
    ('config.json', '[' * 100_000, 'nested too deeply'),
    ('metrics.jsonl', '[' * 100_000 + '\n', 'nested too deeply'),
    ('config.json', '{"versions": {}}', ' = missing: must be an object'),
    ('config.json', '{"config": {}, "versions": 3}', ' = 3: must be'),
  )
  def test_a_wrong_file_is_an_error(self, name, text, message):
    folder = self.write()
    path = self.root / 'a' / name
    path.unlink() if text is None else path.write_text(text)
    with self.assertRaisesRegex(ValueError, f'{name}.*{message}'):
      runs.read(folder)

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

  def test_runs_of_addresses_are_told_apart_by_these(self):
    folders = [
      synthetic.write_run(self.root / name, self.rows, name='arm')
      for name in 'xy'
    ]
    given = [folders[0], 's3://bucket/y']
    self.assertEqual(
      [run.name for run in runs.read_all(folders, given)],
      [f'arm ({folders[0]})', 'arm (s3://bucket/y)'],
    )
    with self.assertRaisesRegex(ValueError, 'must be one or more distinct'):
      runs.read_all(folders, [given[1], given[1]])

  def test_no_folder_or_one_folder_twice_is_an_error(self):
    folder = self.write()
    for folders in ([], [folder, f'{folder}/../a']):
      with self.assertRaisesRegex(
        ValueError, r'runs = \[.*\]: must be one or more distinct folders'
      ):
        runs.read_all(folders)


class TrainedTest(absltest.TestCase):
  def test_a_run_of_the_train_program_is_read(self):
    run = runs.read(str(trained.folder()))
    self.assertEqual((run.name, run.config['mu']), ('tiny', 2.0))
    np.testing.assert_array_equal(run.seeds, [0, 1])
    np.testing.assert_array_equal(run.iterations, range(4))
    rewards = [line['reward'] for line in trained.lines('metrics.jsonl')]
    np.testing.assert_array_equal(run.values['reward'].T.ravel(), rewards)
    self.assertTrue(np.all(np.diff(run.values[runs.SECONDS]) > 0))
    self.assertEqual(list(run.is_first), [True, False, False, False])
    self.assertEqual(run.versions['numpy'], np.__version__)

  def test_uses_of_the_train_program_are_those_of_all_inserted_rollouts(self):
    run = runs.read(str(trained.folder()))
    self.assertEqual(
      run.histograms['uses'].sum(),
      run.column('ledger/inserted_rollouts')[:, -1].sum(),
    )
    self.assertEqual(run.histograms['uses'].sum(), 2 * 4 * 16)

  def test_the_train_program_writes_each_field_of_a_synthetic_run(self):
    root = pathlib.Path(self.create_tempdir().full_path)
    rows = synthetic.rows_of_rewards([[0.1, 0.2]])
    synthetic.write_run(root / 'a', rows, seconds=[1.0, 2.0])
    for name in ('config.json', 'metrics.jsonl', 'timing.jsonl'):
      ours = json.loads((root / 'a' / name).read_text().splitlines()[0])
      theirs = (
        json.loads((trained.folder() / name).read_text())
        if name == 'config.json'
        else trained.lines(name)[0]
      )
      self.assertEqual(_types(ours, like=ours), _types(theirs, like=ours))


def _types(record, like):
  """Returns the types of the fields that `like` has."""
  return {
    key: _types(record[key], value)
    if isinstance(value, dict)
    else type(record[key])
    for key, value in like.items()
  }
