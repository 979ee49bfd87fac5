"""Tests of the statistics of costs to a level."""

import math

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized
from scipy import stats

from replay_rl.report import levels

_INF = math.inf


class CostToLevelTest(parameterized.TestCase):
  @parameterized.parameters(
    ([0.5, 0.7, 0.7], 1, 20),
    ([0.5, 0.7, 0.7], 2, 20),
    ([0.7, 0.6, 0.7, 0.8], 2, 30),
    ([0.5, 0.7, 0.6], 2, _INF),
    ([0.5, 0.6, 0.7], 2, _INF),  # One evaluation is too few.
    ([], 1, _INF),
    ([np.float32(0.7) - 1e-8], 1, 10),
  )
  def test_the_first_of_so_many_in_a_row(self, scores, number, expected):
    costs = [10 * (i + 1) for i in range(len(scores))]
    actual = levels.cost_to_level(costs, scores, 0.7, num_evaluations=number)
    self.assertEqual(actual, expected)

  def test_no_evaluation_is_too_few(self):
    with self.assertRaisesRegex(ValueError, 'num_evaluations = 0: must be'):
      levels.cost_to_level([1], [1], 0.5, num_evaluations=0)

  @parameterized.parameters(([1, 1], [0, 0]), ([2, 1], [0, 0]), ([1], [0, 0]))
  def test_what_cannot_be_is_refused(self, costs, scores):
    with self.assertRaisesRegex(ValueError, 'costs = .*: must rise, one for'):
      levels.cost_to_level(costs, scores, 0.7, num_evaluations=1)


def _compare(arm, baseline, **limits):
  return levels.compare(
    np.asarray(arm, float), np.asarray(baseline, float), seed=0, **limits
  )


class CompareTest(parameterized.TestCase):
  @parameterized.parameters(
    ([60, 50, 80], [100, 90, 200], 0.4),
    ([60, 50, _INF], [100, 90, 200], 0.4),  # A censored seed stays in.
    ([60, _INF, _INF], [100, 90, 200], -_INF),
    ([60, 50, 80], [100, _INF, 90], 0.4),  # One of the baseline blanks nothing.
    ([60, 50, 80], [100, _INF, _INF], 1.0),
  )
  def test_the_saving_is_one_of_medians(self, arm, baseline, expected):
    actual = _compare(arm, baseline)
    self.assertAlmostEqual(actual.saving, expected)
    self.assertIsNone(actual.interval)  # Three seeds are too few.

  def test_without_any_median_nothing_is_known(self):
    self.assertTrue(math.isnan(_compare([_INF] * 6, [_INF] * 6).saving))
    self.assertIsNone(_compare([_INF] * 6, [_INF] * 6).interval)

  def test_a_baseline_that_often_fails_counts_for_the_arm(self):
    arm = [60.0, 50, 70, 55, 65, 60, 58, 62]
    some = [100.0, 110, 90, 105, 95, _INF, _INF, _INF]
    actual = _compare(arm, some)
    self.assertEqual(actual.interval[1], 1.0)
    self.assertGreater(actual.interval[0], 0.3)

  def test_censoring_of_both_claims_nothing_too_often(self):
    rng = np.random.default_rng(0)
    against, in_favour = 0, 0
    for _ in range(300):
      arm, baseline = rng.lognormal(4.6, 0.3, (2, 8))
      arm, baseline = (np.where(x > 110, _INF, x) for x in (arm, baseline))
      interval = _compare(arm, baseline).interval
      if interval is not None:
        against += interval[1] < 0
        in_favour += interval[0] > 0
    # 2.5 % of 300 are 7.5; the bootstrap of a median of 8 is a little wide.
    self.assertLess(against, 16)
    self.assertLess(in_favour, 16)

  def test_five_seeds_have_no_interval_and_six_have_one(self):
    costs = [1.0, 2.0, 3.0, 4.0, 5.0]
    self.assertIsNone(_compare(costs, [*costs, 6.0]).interval)
    self.assertIsNotNone(_compare([*costs, 6.0], [*costs, 6.0]).interval)

  def test_it_agrees_with_scipy(self):
    rng = np.random.default_rng(0)
    arm, baseline = rng.lognormal(4, 0.3, 12), rng.lognormal(4.5, 0.3, 15)
    actual = _compare(arm, baseline)
    ends = stats.bootstrap(
      (arm, baseline),
      lambda x, y, axis: 1 - np.median(x, axis) / np.median(y, axis),
      n_resamples=10_000,
      method='percentile',
      rng=np.random.default_rng(1),
    ).confidence_interval
    np.testing.assert_allclose(actual.interval, ends, atol=0.03)
    self.assertLess(actual.p_value, 0.01)

  def test_equal_arms_are_rarely_different(self):
    rng = np.random.default_rng(0)
    outside, claimed = 0, 0
    for _ in range(200):
      arm, baseline = rng.lognormal(4, 0.3, (2, 16))
      actual = _compare(arm, baseline)
      assert actual.interval is not None and actual.p_value is not None
      outside += not actual.interval[0] <= 0 <= actual.interval[1]
      claimed += actual.p_value < 0.025
    self.assertBetween(outside, 2, 22)  # 10 are expected.
    self.assertLess(claimed, 13)  # And 5.

  def test_censored_seeds_widen_the_interval(self):
    baseline = [100.0, 110, 90, 105, 95, 100, 120, 80]
    whole = _compare([60.0, 50, 70, 55, 65, 60, 58, 62], baseline)
    some = _compare([60.0, 50, 70, 55, 65, 60, _INF, _INF], baseline)
    self.assertLess(some.interval[0], whole.interval[0])
    self.assertGreater(some.p_value, whole.p_value)

  def test_the_same_seed_gives_the_same_interval(self):
    arm, baseline = np.arange(1.0, 9), np.arange(3.0, 13)
    self.assertEqual(
      levels.compare(arm, baseline, seed=3),
      levels.compare(arm, baseline, seed=3),
    )

  @parameterized.parameters(
    (60.0, 1.0, -_INF), (59.0, math.nan, math.nan), (_INF, 1.0, -_INF)
  )
  def test_a_median_above_the_limit_of_the_other_says_nothing(
    self, limit, of_arm, of_baseline
  ):
    some, none = [60.0] * 3, [_INF] * 3
    actual = _compare(some, none, limits=(_INF, limit)).saving
    np.testing.assert_equal(actual, of_arm)
    actual = _compare(none, some, limits=(limit, _INF)).saving
    np.testing.assert_equal(actual, of_baseline)

  def test_a_limit_leaves_finite_medians_alone(self):
    arm, baseline = [60.0, 50, _INF], [100.0, 90, 200]
    actual = _compare(arm, baseline, limits=(70, _INF))
    self.assertAlmostEqual(actual.saving, 0.4)

  def test_resamples_that_say_nothing_are_left_out(self):
    arm = [60.0, 50, 70, 55, 65, 60, 58, 62]
    some = [100.0, 110, 90, 105, 95, _INF, _INF, _INF]
    # Below the costs of the arm, the limit says nothing of infinite medians.
    known = _compare(arm, some, limits=(_INF, 80.0))
    unknown = _compare(arm, some, limits=(_INF, 40.0))
    self.assertEqual(known.interval[1], 1.0)
    self.assertLess(unknown.interval[1], 0.6)


class WithinLimitTest(absltest.TestCase):
  def test_no_seed_is_given_more_than_one_that_did_not_get_there_had(self):
    costs, limit = levels.within_limit(
      np.array([10.0, 40.0, _INF, 50.0, _INF]),
      np.array([90.0, 90.0, 60.0, 90.0, 40.0]),
    )
    self.assertEqual((costs.tolist(), limit), ([10, 40, _INF, _INF, _INF], 40))

  def test_nothing_is_censored_where_all_got_there(self):
    costs, limit = levels.within_limit(np.array([1.0, 9]), np.array([5.0, 9]))
    self.assertEqual((costs.tolist(), limit), ([1, 9], _INF))


class MedianIntervalTest(parameterized.TestCase):
  def test_it_agrees_with_scipy(self):
    costs = np.random.default_rng(0).lognormal(4, 0.3, 13)
    ends = stats.bootstrap(
      (costs,),
      np.median,
      n_resamples=10_000,
      method='percentile',
      rng=np.random.default_rng(1),
    ).confidence_interval
    actual = levels.median_interval(costs, seed=0)
    np.testing.assert_allclose(actual, ends, rtol=0.03)

  def test_a_censored_seed_may_open_its_upper_end(self):
    costs = np.array([1.0, 2, 3, 4, _INF, _INF])
    low, high = levels.median_interval(costs, seed=0)
    self.assertLess(low, 3)
    self.assertEqual(high, _INF)

  def test_five_seeds_have_none(self):
    self.assertIsNone(levels.median_interval(np.arange(5.0), seed=0))
    self.assertIsNotNone(levels.median_interval(np.arange(6.0), seed=0))


class HolmTest(absltest.TestCase):
  def test_by_hand(self):
    # Sorted .01 x 3, .02 x 2, .04 x 1; no later one may be smaller.
    np.testing.assert_allclose(
      levels.holm([0.04, 0.01, 0.02]), [0.04, 0.03, 0.04]
    )
    np.testing.assert_allclose(levels.holm([0.5, 0.9]), [1.0, 1.0])
    self.assertEqual(levels.holm([]), [])


if __name__ == '__main__':
  absltest.main()
