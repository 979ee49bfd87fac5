"""Tests of reading the table of a sweep, on one that the sweep wrote."""

import csv
import io
import json
import pathlib

import numpy as np
from absl.testing import parameterized

from replay_rl.report import sweep_data
from replay_rl.sweep import results
from tests.report import swept


class SweepDataTest(parameterized.TestCase):
  def _write(self, text):
    path = pathlib.Path(self.create_tempdir().full_path) / sweep_data.FILE
    path.write_text(text)
    return path

  def _rewrite(self, change):
    """Returns the table of the sweep after `change(row)` of each line."""
    with open(swept.folder() / sweep_data.FILE, newline='') as file:
      rows = list(csv.DictReader(file))
    rows = [row for row in rows if change(row) is not False]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator='\n')
    writer.writeheader()
    writer.writerows(rows)
    return sweep_data.read_table(self._write(text.getvalue()))

  def test_it_reads_what_the_sweep_wrote(self):
    sweep = sweep_data.read(swept.folder())
    self.assertEqual(results.EVALUATIONS, sweep_data.FILE)
    self.assertEqual(tuple(arm.name for arm in sweep.arms), swept.NAMES)
    self.assertEqual(sweep.fields, tuple(swept.AXES))
    self.assertContainsSubset(('eval/greedy', 'eval/pass_at_2'), sweep.scores)
    self.assertEqual(sweep.values('replay.batch_size'), ['4', '8'])
    self.assertEqual(
      sweep.arms[1].parts(), {'batch_size': '8', 'learning_rate': '0.005'}
    )
    for arm in sweep.arms:
      self.assertEqual([one.seed for one in arm.seeds], list(range(6)))
    seed = sweep.arms[2].seeds[3]
    path = swept.folder() / seed.cell / 'metrics.jsonl'
    lines = map(json.loads, path.read_text().splitlines())
    lines = [x for x in lines if x['seed'] == 3 and 'eval/greedy' in x]
    for actual, key in (
      (seed.iterations, 'iteration'),
      (seed.learner_steps, 'learner_step'),
      (seed.generated_tokens, 'ledger/generated_tokens'),
      (seed.generated, 'ledger/rollouts'),
      (seed.trained, 'ledger/trained_rollouts'),
      (seed.costs(2.0), 'ledger/cost_units'),
      (seed.scores['eval/greedy'], 'eval/greedy'),
    ):
      self.assertEqual(actual.tolist(), [x[key] for x in lines], key)
    # Two updates of 4 rows, and 16 rollouts, after 3 and 5 iterations.
    self.assertEqual(seed.costs(10.0).tolist(), [24 + 480, 40 + 800])

  def test_a_field_may_be_named_by_its_last_word(self):
    sweep = sweep_data.read(swept.folder())
    self.assertEqual(sweep.field('batch_size'), 'replay.batch_size')
    self.assertEqual(sweep.field('replay.batch_size'), 'replay.batch_size')
    with self.assertRaisesRegex(
      ValueError, "field = 'capacity': must be one .*: batch_size, learning_"
    ):
      sweep.field('capacity')

  def test_an_evaluation_without_the_score_is_left_out_of_it_alone(self):
    def change(row):
      if row['iteration'] == '4':
        row['eval/greedy'] = ''

    seed = self._rewrite(change).arms[0].seeds[0]
    self.assertEqual(seed.evaluated().tolist(), [0])
    self.assertEqual(seed.evaluated('eval/pass_at_1').tolist(), [0, 1])
    self.assertLen(seed.costs(1.0), 2)

  def test_a_field_in_which_the_rest_agrees_is_left_out(self):
    sweep = self._rewrite(lambda row: row['replay.batch_size'] == '8')
    self.assertEqual(sweep.fields, ('optimizer.learning_rate',))
    self.assertLen(sweep.arms, 2)

  def test_cells_that_differ_in_the_seed_are_one_arm(self):
    def change(row):
      row['cell'] = f'{row["cell"]},seed={row["seed"]}'

    sweep = self._rewrite(change)
    self.assertEqual(tuple(arm.name for arm in sweep.arms), swept.NAMES)
    self.assertEqual(
      [(one.seed, one.cell) for one in sweep.arms[0].seeds],
      [(s, f'{swept.NAMES[0]},seed={s}') for s in range(6)],
    )

    def change_all(row):
      row['cell'] = f'seed={row["seed"]}'
      return row['replay.batch_size'] == row['replay.batch_size'] == '8' and (
        row['optimizer.learning_rate'] == '0.01'
      )

    (arm,) = self._rewrite(change_all).arms
    self.assertEqual(arm.name, 'all seeds')

  def test_the_seed_of_something_else_tells_arms_apart(self):
    def change(row):
      # As if warm_start.seed alone differed, whose label is also seed.
      row['replay.batch_size'] = row['cell'] = (
        f'seed={row["replay.batch_size"]}'
      )
      return row['optimizer.learning_rate'] == '0.01'

    self.assertLen(self._rewrite(change).arms, 2)

  def test_a_seed_in_two_cells_is_refused(self):
    def change(row):
      row['cell'] = f'seed={row["replay.batch_size"]}'
      row['replay.batch_size'] = '8'
      return row['optimizer.learning_rate'] == '0.01'

    with self.assertRaisesRegex(
      ValueError, "seed 0 of 'all seeds' .* = 'seed=8', 'seed=4': must be in"
    ):
      self._rewrite(change)

  @parameterized.parameters(
    ('ledger/rollouts', 'x'), ('seed', ''), ('eval/greedy', 'nan')
  )
  def test_a_wrong_number_is_named(self, column, value):
    with self.assertRaisesRegex(
      ValueError, f"{column} of cell 'batch.*' .* = '{value}': must be a finite"
    ):
      self._rewrite(lambda row: row.update({column: value}))

  def test_another_file_is_refused(self):
    for text, complaint in (
      ('', r'columns of .* = \[\]: must be those of a sweep'),
      ('cell,seed\na,1\n', "it lacks .'eval/greedy', 'iteration'"),
    ):
      with self.assertRaisesRegex(ValueError, complaint):
        sweep_data.read_table(self._write(text))
    with self.assertRaisesRegex(
      ValueError, 'path = .*: must be the table of a sweep .No such file'
    ):
      sweep_data.read(self.create_tempdir().full_path)

  @parameterized.parameters('\n', ',1,2\n')
  def test_a_line_of_another_length_is_refused(self, end):
    text = (swept.folder() / sweep_data.FILE).read_text()
    wrong = text.splitlines()[1].rpartition(',')[0] + end
    with self.assertRaisesRegex(
      ValueError, 'line 50 of .*: must have [0-9]+ val'
    ):
      sweep_data.read_table(self._write(text + wrong))


class OrderTest(parameterized.TestCase):
  def test_numbers_rise_and_texts_follow(self):
    self.assertEqual(
      sweep_data.ordered(['b', '10', '9', 'a', '', '1e-3', '9']),
      ['1e-3', '9', '10', 'b', 'a', ''],
    )
    self.assertEqual(
      sweep_data.label('optimizer.learning_rate'), 'learning_rate'
    )
    np.testing.assert_equal(sweep_data.number('inf'), None)
