"""Tests of smoothing, crossings and the common axis, with values by hand."""

import numpy as np
from absl.testing import absltest

from replay_rl.report import curves

NAN = np.nan


class TrailingMeanTest(absltest.TestCase):
  def test_means_end_at_each_value_and_wait_for_a_full_window(self):
    values = np.array([[1.0, 2.0, 6.0, 4.0], [0.0, 0.0, 3.0, 3.0]])
    np.testing.assert_allclose(
      curves.trailing_mean(values, 3),
      [[NAN, NAN, 3, 4], [NAN, NAN, 1, 2]],
    )

  def test_a_window_of_one_changes_nothing(self):
    values = np.random.default_rng(0).normal(size=(2, 5))
    np.testing.assert_array_equal(curves.trailing_mean(values, 1), values)

  def test_an_unknown_value_makes_its_windows_unknown_and_no_other(self):
    values = np.array([[1.0, NAN, 3.0, 5.0]])
    np.testing.assert_array_equal(
      curves.trailing_mean(values, 2), [[NAN, NAN, NAN, 4]]
    )


class CrossingsTest(absltest.TestCase):
  def test_the_first_column_at_or_above_the_threshold_counts(self):
    values = np.array(
      [
        [0.1, 0.5, 0.4, 0.9],
        [NAN, 0.4, 0.45, 0.6],
        [0.1, 0.2, 0.3, 0.4],
        [0.7, 0.1, 0.1, 0.1],
      ]
    )
    np.testing.assert_array_equal(curves.crossings(values, 0.5), [1, 3, -1, 0])

  def test_a_float32_reward_equal_to_the_threshold_reaches_it(self):
    value = float(np.float32(0.7))
    self.assertLess(value, 0.7)
    np.testing.assert_array_equal(curves.crossings(np.array([[value]]), 0.7), 0)
    np.testing.assert_array_equal(
      curves.crossings(np.array([[0.69999]]), 0.7), -1
    )

  def test_a_row_that_does_not_cross_reads_infinity(self):
    values = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    columns = np.array([1, -1, 0])
    np.testing.assert_array_equal(curves.at(values, columns), [2, np.inf, 5])


class CommonAxisTest(absltest.TestCase):
  def test_seeds_are_interpolated_where_all_have_been(self):
    budgets = np.array([[0.0, 10.0, 20.0], [5.0, 15.0, 25.0]])
    values = np.array([[0.0, 10.0, 30.0], [1.0, 2.0, 3.0]])
    grid, common = curves.on_common_axis(budgets, values)
    np.testing.assert_allclose(grid, [5, 10, 15, 20])
    np.testing.assert_allclose(common, [[5, 10, 20, 30], [1, 1.5, 2, 2.5]])

  def test_unknown_points_are_bridged(self):
    for budgets, values, expected in (
      ([0.0, 1.0, 2.0], [0.0, NAN, 4.0], [[0, 2], [0, 4]]),
      ([0.0, NAN, 2.0], [0.0, 1.0, 4.0], [[0, 2], [0, 4]]),
      ([0.0, 1.0, NAN], [0.0, 1.0, 4.0], [[0, 1], [0, 1]]),
    ):
      grid, common = curves.on_common_axis(
        np.array([budgets]), np.array([values])
      )
      np.testing.assert_allclose([grid, common[0]], expected)

  def test_nothing_is_common_to_disjoint_or_unknown_seeds(self):
    budgets = np.array([[0.0, 1.0], [2.0, 3.0]])
    for values in (np.ones((2, 2)), np.array([[1.0, 1.0], [NAN, NAN]])):
      grid, common = curves.on_common_axis(budgets, values)
      self.assertEqual((grid.shape, common.shape), ((0,), (2, 0)))

  def test_quartiles_are_over_seeds(self):
    values = np.array([[0.0, 4.0], [1.0, 4.0], [2.0, 4.0], [3.0, 4.0]])
    np.testing.assert_allclose(
      curves.quartiles(values), [[0.75, 4], [1.5, 4], [2.25, 4]]
    )
