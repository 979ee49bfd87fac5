"""Tests of which cells a part of a sweep has."""

import pathlib

from absl.testing import absltest
from absl.testing import parameterized

from replay_rl.sweep import cells as cells_lib
from replay_rl.sweep import planning
from tests import tiny


class ChooseTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    axes = {'replay.batch_size': [8, 4], 'mu': [1.0, 3.0]}
    cls.planned = planning.plan(
      cells_lib.make(tiny.config(), cells_lib.product(axes)),
      pathlib.Path('/nowhere'),
    )

  @parameterized.parameters(
    ((), [0, 1, 2, 3]),
    (('1',), [2, 3]),
    (('1', '0'), [0, 1, 2, 3]),
    (('batch_size=4,mu=1.0', 'batch_size=8,mu=3.0'), [1, 2]),
    (('0', 'batch_size=4,mu=3.0', '0'), [0, 1, 3]),
  )
  def test_names_and_numbers_choose_cells_in_their_order(
    self, chosen, expected
  ):
    self.assertEqual(
      planning.choose(self.planned, chosen), [self.planned[i] for i in expected]
    )

  @parameterized.parameters('2', '-1', 'mu=1.0', '', '0 ')
  def test_what_is_no_cell_is_refused(self, text):
    with self.assertRaisesRegex(
      ValueError,
      f'--cells = {text!r}: must be the name of a cell, or a number '
      'of programs from 0 to 1',
    ):
      planning.choose(self.planned, ['0', text])

  def test_the_name_of_a_cell_comes_before_a_number(self):
    named = self.planned[0].cell._replace(name='1')
    planned = [self.planned[0]._replace(cell=named), *self.planned[1:]]
    self.assertEqual(planning.choose(planned, ['1']), planned[:1])

  def test_groups_have_the_cells_that_have_to_run(self):
    planned = [
      one._replace(is_finished=i in (0, 2, 3))
      for i, one in enumerate(self.planned)
    ]
    self.assertEqual(planning.unfinished_groups(planned), {0: [planned[1]]})


if __name__ == '__main__':
  absltest.main()
