"""Tests of the accuracy-efficiency score."""

import math

import numpy as np
from absl.testing import parameterized

from replay_rl.report import efficiency


class EfficiencyTest(parameterized.TestCase):
  @parameterized.parameters(
    # A quarter shorter; .5 -> .6 is a fifth more, .5 -> .4 a fifth less.
    (0.6, (1, 3, 5), 0.25 + 3 * 0.2),
    (0.6, (1, 5, 10), 0.25 + 5 * 0.2),
    (0.4, (1, 3, 5), 0.25 - 5 * 0.2),
    (0.4, (1, 5, 10), 0.25 - 10 * 0.2),
    (0.5, (2, 5, 10), 0.5),
  )
  def test_by_hand(self, accuracy, constants, expected):
    omega, beta, gamma = constants
    result = efficiency.score(
      accuracy=accuracy,
      length=300.0,
      baseline_accuracy=0.5,
      baseline_length=400.0,
      omega=omega,
      beta=beta,
      gamma=gamma,
    )
    self.assertAlmostEqual(result['length_reduction'], 0.25)
    self.assertAlmostEqual(result['accuracy_gain'], (accuracy - 0.5) / 0.5)
    self.assertAlmostEqual(result['aes'], expected)

  def test_is_not_defined_for_a_baseline_without_a_right_answer(self):
    result = efficiency.score(
      accuracy=0.1,
      length=8.0,
      baseline_accuracy=0.0,
      baseline_length=4.0,
      omega=1,
      beta=3,
      gamma=5,
    )
    self.assertEqual(list(result.values()), [-1.0, None, None])


class OfSeedsTest(parameterized.TestCase):
  def test_by_hand(self):
    method = np.full(6, 0.6), np.full(6, 300.0)
    baseline = np.full(6, 0.5), np.full(6, 400.0)
    value, ends = efficiency.of_seeds(method, baseline, (1, 3, 5))
    self.assertAlmostEqual(value, 0.25 + 3 * 0.2)
    np.testing.assert_allclose(ends, [value, value])
    self.assertEqual(
      efficiency.of_seeds(baseline, baseline, (1, 3, 5)), (0.0, None)
    )
    few = tuple(x[:5] for x in method)
    self.assertIsNone(efficiency.of_seeds(few, baseline, (1, 3, 5))[1])
    none = np.zeros(6), np.full(6, 400.0)
    self.assertTrue(math.isnan(efficiency.of_seeds(method, none, (1, 3, 5))[0]))
    unknown = np.full(6, np.nan), np.full(6, 400.0)
    value, ends = efficiency.of_seeds(unknown, baseline, (1, 3, 5))
    self.assertTrue(math.isnan(value))
    self.assertIsNone(ends)

  def test_the_interval_holds_the_score(self):
    rng = np.random.default_rng(0)
    method = rng.uniform(0.5, 0.7, 8), rng.uniform(200, 300, 8)
    baseline = rng.uniform(0.4, 0.6, 8), rng.uniform(300, 400, 8)
    value, (low, high) = efficiency.of_seeds(method, baseline, (1, 3, 5))
    self.assertBetween(value, low + 0.05, high - 0.05)
