"""Tests of the bootstrap."""

import numpy as np
from absl.testing import absltest

from replay_rl.report import bootstrap


def _mean(*samples, axis):
  return np.mean([np.mean(x, axis=axis) for x in samples], axis=0)


class IntervalTest(absltest.TestCase):
  def interval(self, *samples, confidence=0.95, num_resamples=4000, seed=0):
    return bootstrap.interval(
      samples,
      _mean,
      confidence=confidence,
      num_resamples=num_resamples,
      seed=seed,
    )

  def test_each_sample_is_resampled_by_itself(self):
    # The means of either vary by 1/2 / sqrt(100); their mean by less.
    values = np.repeat([0.0, 1.0], 50)
    one = self.interval(values)
    two = self.interval(values, values)
    self.assertAlmostEqual(one[1] - one[0], 2 * 1.96 * 0.05, delta=0.02)
    self.assertAlmostEqual(
      two[1] - two[0], 2 * 1.96 * 0.05 / np.sqrt(2), delta=0.02
    )

  def test_covers_the_truth_about_as_often_as_it_says(self):
    generator = np.random.default_rng(1)
    num_covered = 0
    for seed in range(200):
      values = generator.binomial(4, 0.3, size=60) / 4
      low, high = self.interval(
        values, confidence=0.8, num_resamples=200, seed=seed
      )
      num_covered += low <= 0.3 <= high
    self.assertBetween(num_covered / 200, 0.72, 0.88)

  def test_a_seed_gives_one_interval(self):
    values = np.random.default_rng(0).uniform(size=40)
    self.assertEqual(self.interval(values), self.interval(values))
    self.assertNotEqual(self.interval(values), self.interval(values, seed=1))

  def test_a_sample_of_one_value_has_none(self):
    many, one = np.array([0.0, 1.0]), np.array([1.0])
    self.assertIsNone(self.interval(one))
    self.assertIsNone(self.interval(many, one))
