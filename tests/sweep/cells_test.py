"""Tests of the cells of a sweep: which they are, and what they are called."""

import pathlib

from absl.testing import absltest
from absl.testing import parameterized

from replay_rl.run import config as config_lib
from replay_rl.sweep import cells
from tests import tiny


class ProductTest(absltest.TestCase):
  def test_the_last_field_changes_fastest(self):
    actual = cells.product({'mu': [1.0, 2.0], 'seed': [3, 4]})
    self.assertEqual(
      actual,
      [
        {'mu': 1.0, 'seed': 3},
        {'mu': 1.0, 'seed': 4},
        {'mu': 2.0, 'seed': 3},
        {'mu': 2.0, 'seed': 4},
      ],
    )

  def test_arms_of_several_changes_are_combined(self):
    arms = [{'mu': 1.0, 'name': 'a'}, {'mu': 2.0, 'name': 'b'}]
    actual = cells.combine(arms, cells.product({'seed': [3, 4]}))
    self.assertLen(actual, 4)
    self.assertEqual(actual[3], {'mu': 2.0, 'name': 'b', 'seed': 4})

  def test_what_cannot_be_is_refused(self):
    for values in ([], 'uniform()'):
      with self.assertRaisesRegex(ValueError, 'mu = .*: must be one value or'):
        cells.product({'mu': values})
    with self.assertRaisesRegex(ValueError, r"changed twice = \['mu'\]"):
      cells.combine([{'mu': 1.0}], [{'seed': 1}], [{'mu': 2.0}])


class MakeTest(parameterized.TestCase):
  def _names(self, *changes):
    return [cell.name for cell in cells.make(tiny.config(), changes)]

  def test_a_name_has_the_fields_that_differ(self):
    made = cells.make(
      tiny.config(),
      [
        {'replay.batch_size': 8, 'optimizer.learning_rate': 3e-4, 'mu': 5.0},
        {'replay.batch_size': 16, 'optimizer.learning_rate': 3e-4, 'mu': 5.0},
      ],
    )
    self.assertEqual(
      [cell.name for cell in made], ['batch_size=8', 'batch_size=16']
    )
    self.assertEqual(made[1].fields, {'replay.batch_size': 16})
    self.assertEqual(made[1].config.name, 'batch_size=16')
    self.assertEqual(made[1].config.optimizer.learning_rate, 3e-4)

  def test_a_field_that_one_cell_leaves_alone_differs_too(self):
    self.assertEqual(self._names({}, {'mu': 5.0}), ['mu=2.0', 'mu=5.0'])

  def test_fields_of_one_word_have_their_whole_path(self):
    names = self._names(
      {'replay.batch_size': 8, 'warm_start.batch_size': 9},
      {'replay.batch_size': 16, 'warm_start.batch_size': 10},
    )
    self.assertEqual(names[0], 'replay.batch_size=8,warm_start.batch_size=9')

  def test_names_are_names_of_folders(self):
    names = self._names(
      {'replay.weights': 'recency(half_life=8) * max_age(limit=16)'},
      {'replay.weights': 'uniform()'},
    )
    self.assertEqual(
      names,
      ['weights=recency-half_life-8-max_age-limit-16', 'weights=uniform'],
    )

  def test_a_name_may_have_fewer_fields_and_the_name_of_the_arm(self):
    arms = [
      {'name': 'small', 'replay.batch_size': 8, 'replay.capacity': 32},
      {'name': 'large', 'replay.batch_size': 16, 'replay.capacity': 64},
    ]
    made = cells.make(
      tiny.config(),
      cells.combine(arms, [{'mu': 1.0}, {'mu': 2.0}]),
      named_by=['name', 'mu'],
    )
    self.assertEqual(made[3].name, 'name=large,mu=2.0')
    self.assertEqual(
      made[3].fields,
      {
        'name': 'large',
        'replay.batch_size': 16,
        'replay.capacity': 64,
        'mu': 2.0,
      },
    )
    self.assertEqual(made[3].config.name, made[3].name)
    with self.assertRaisesRegex(ValueError, "named_by = .'seed'.: must be"):
      cells.make(tiny.config(), arms, named_by=['name', 'seed'])
    with self.assertRaisesRegex(ValueError, 'must differ from all others'):
      cells.make(
        tiny.config(),
        cells.combine(arms, [{'mu': 1.0}, {'mu': 2.0}]),
        named_by=['mu'],
      )

  def test_the_base_stays_as_it_is(self):
    base = tiny.config()
    cells.make(base, [{'mu': 5.0}, {'mu': 6.0}])
    self.assertEqual(base, tiny.config())

  def test_one_cell_has_the_name_of_the_base(self):
    self.assertEqual(self._names({'mu': 5.0}), ['tiny'])

  @parameterized.parameters(
    ([], 'changes = .*: must be one cell or more'),
    ([{'mu': 1.0}, {'mu': 1.0}], 'must differ from all others'),
    ([{'mu': 1.0}, {'name': 'x', 'mu': 1.0}], 'must differ from all others'),
    (
      [{'loss.policy': 'a(x=1)'}, {'loss.policy': 'a(x-1)'}],
      'must differ from all others',
    ),
    ([{'no.field': 1}], 'no.field = 1: must be a field of the config'),
    ([{'text.template': 1}], 'text.template = 1: must be a field of'),
    ([{'replay.weights': 'a' * 200}, {}], 'must have at most 120 characters'),
  )
  def test_what_cannot_be_is_refused(self, changes, complaint):
    with self.assertRaisesRegex(ValueError, complaint):
      cells.make(tiny.config(), changes)


class LoadTest(parameterized.TestCase):
  def _file(self, text) -> pathlib.Path:
    return pathlib.Path(self.create_tempfile('sweep.py', text).full_path)

  def test_a_file_is_run(self):
    made = cells.load(
      self._file(
        'from replay_rl.sweep import cells\n'
        'from tests import tiny\n'
        'def get_cells():\n'
        '  return cells.make(tiny.config(), [{"mu": 1.0}, {"mu": 3.0}])\n'
      )
    )
    self.assertEqual([cell.config.mu for cell in made], [1.0, 3.0])
    self.assertIsInstance(made[0].config, config_lib.Config)

  @parameterized.parameters(
    ('x = 1', 'AttributeError: .*get_cells'),
    ('def get_cells(): return 1/0', 'ZeroDivisionError'),
    ('def get_cells(:', 'SyntaxError'),
  )
  def test_a_file_that_cannot_be_run_is_refused(self, text, complaint):
    with self.assertRaisesRegex(ValueError, f'--sweep = .*{complaint}'):
      cells.load(self._file(text))

  def test_a_missing_file_is_refused(self):
    with self.assertRaisesRegex(ValueError, '--sweep = .*: must be a Python'):
      cells.load(pathlib.Path('/nowhere/sweep.py'))


if __name__ == '__main__':
  absltest.main()
