"""Tests of windows, levels and the common axis, with values by hand."""

import fractions

import hypothesis
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized
from hypothesis import strategies as st

from replay_rl.report import curves

NAN = np.nan
INF = np.inf


def _means(values, counts, window):
  return curves.centered_means(np.array(values), np.array(counts), window)


class WindowTest(absltest.TestCase):
  def test_centres_are_where_an_end_leaves_an_iteration(self):
    # Iterations end at 4, 6 and 12; the window is 2.5 on each side.
    np.testing.assert_array_equal(
      curves.centers(np.array([4, 2, 6]), 5), [2.5, 3.5, 6.5, 8.5, 9.5]
    )

  def test_an_iteration_counts_for_the_share_that_is_inside(self):
    # Around 3.5 the window holds 1 to 6: three of four rollouts of the first
    # iteration, and the second; around 6.5, 4 to 9: the second, and half the
    # third.
    np.testing.assert_allclose(
      _means([10.0, 20.0, 40.0], [4, 2, 6], 5),
      [(40 + 20) / 5, (30 + 40) / 5, (40 + 120) / 5, 40, 40],
    )

  def test_a_window_of_the_whole_run_has_one_place(self):
    np.testing.assert_array_equal(_means([1.0, 4.0], [1, 2], 3), [3])
    self.assertEmpty(_means([1.0, 4.0], [1, 2], 4))

  def test_an_unknown_value_makes_its_windows_unknown_and_no_other(self):
    np.testing.assert_array_equal(
      _means([2.0, 2.0, NAN, 5.0, 5.0], [2] * 5, 3),
      [2, 2, NAN, NAN, NAN, NAN, 5, 5],
    )

  def test_an_iteration_without_rollouts_has_no_weight(self):
    for value in (NAN, 7.0):
      np.testing.assert_array_equal(
        _means([1.0, value, 3.0], [2, 0, 2], 2), [1, 3]
      )

  @hypothesis.given(
    st.lists(
      st.tuples(st.integers(-9, 9), st.integers(1, 9)), min_size=1, max_size=7
    ),
    st.integers(1, 30),
  )
  def test_a_window_is_the_mean_of_its_rollouts(self, iterations, window):
    values, counts = zip(*iterations, strict=True)
    centers = curves.centers(np.array(counts), window)
    means = _means(np.array(values, float), counts, window)
    # Half rollouts, so that no centre cuts one.
    halves = np.repeat(values, [2 * n for n in counts])
    self.assertLen(means, len(centers))
    for center, mean in zip(centers, means, strict=True):
      start = fractions.Fraction(center) * 2 - window
      self.assertEqual(start.denominator, 1)
      inside = halves[int(start) : int(start) + 2 * window]
      self.assertLen(inside, 2 * window)
      self.assertAlmostEqual(mean, inside.mean())


class LevelTest(parameterized.TestCase):
  @parameterized.parameters(
    ([0.1, 0.5, 0.4, 0.9], 1),
    ([0.1, 0.4, 0.8, 0.9], 1.25),  # A quarter of the way from .4 to .8.
    ([NAN, 0.4, 0.45, 0.6], 2 + 1 / 3),
    ([0.1, NAN, 0.6], 2),
    ([0.7, 0.1, 0.1], 0),
    ([0.1, 0.2, 0.4], INF),
    ([NAN, NAN], INF),
  )
  def test_the_first_place_counts(self, values, expected):
    actual = curves.place_of_level(np.array(values), 0.5)
    self.assertAlmostEqual(actual, expected)

  def test_a_float32_reward_equal_to_the_level_reaches_it(self):
    value = float(np.float32(0.7))
    self.assertLess(value, 0.7)
    for values, expected in (
      ([value], 0),
      ([0.1, value, 0.9], 1),
      ([0.1, 0.69999], INF),
    ):
      actual = curves.place_of_level(np.array(values), 0.7)
      self.assertEqual(actual, expected)

  def test_a_place_between_two_values_is_read_between_them(self):
    values = np.array([1.0, 3.0, 9.0])
    for place, expected in ((0.0, 1), (1.5, 6), (2.0, 9), (INF, INF)):
      self.assertEqual(curves.at(values, place), expected)


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

  def test_seeds_may_have_different_lengths(self):
    budgets = [np.array([0.0, 10.0]), np.array([0.0, 4.0, 8.0])]
    values = [np.array([0.0, 1.0]), np.array([0.0, 1.0, 1.0])]
    grid, common = curves.on_common_axis(budgets, values)
    np.testing.assert_allclose(grid, [0, 4, 8])
    np.testing.assert_allclose(common, [[0, 0.4, 0.8], [0, 1, 1]])

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
