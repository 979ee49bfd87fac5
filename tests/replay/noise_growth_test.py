"""Tests of the curve that is fitted to the variance by age."""

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized
from scipy import optimize

from replay_rl.replay import noise
from replay_rl.replay import noise_growth


class FitTest(parameterized.TestCase):
  @parameterized.parameters(
    (0.05, 30.0, 1.0), (0.2, 8.0, 2.5), (0.7, 20.0, 0.1)
  )
  def test_finds_the_curve_that_the_planner_has(self, alpha, tau, scale):
    ages = np.array([0, 1, 2, 4, 8, 16, 40])
    variances = scale * noise.growing(alpha=alpha, tau=tau)(ages)
    found = noise_growth.fit(ages, variances, np.arange(1, 8))
    self.assertAlmostEqual(found.alpha, alpha, places=4)
    self.assertAlmostEqual(found.tau / tau, 1, places=2)
    self.assertAlmostEqual(found.sigma0_squared / scale, 1, places=3)

  def test_is_the_least_of_the_weighted_squares(self):
    rng = np.random.default_rng(0)
    ages, weights = np.arange(12.0), np.linspace(1, 5, 12)
    variances = 1 + 0.3 * np.sqrt(ages) + 0.1 * rng.normal(size=12)
    found = noise_growth.fit(ages, variances, weights)

    def loss(x):
      curve = x[0] + x[1] * ages ** (2 * x[2])
      return weights @ (variances - curve) ** 2

    start = found.sigma0_squared, 0.0, found.alpha
    start = (start[0], start[0] / found.tau ** (2 * found.alpha), start[2])
    best = optimize.minimize(loss, start, method='Nelder-Mead', tol=1e-10)
    self.assertAlmostEqual(loss(start), best.fun, places=6)

  @parameterized.parameters(([1.0, 0.8, 0.5],), ([2.0, 2.0, 2.0],))
  def test_no_growth_has_no_exponent(self, variances):
    found = noise_growth.fit([0, 1, 5], variances, [1, 1, 2])
    self.assertTrue(np.isnan(found.alpha))
    self.assertEqual(found.tau, np.inf)
    self.assertAlmostEqual(
      found.sigma0_squared, np.average(variances, weights=[1, 1, 2])
    )

  def test_no_variance_at_age_0_is_below_0(self):
    found = noise_growth.fit([0, 1, 2, 3], [0.0, 0.0, 4.0, 9.0], [1, 1, 1, 1])
    self.assertGreaterEqual(found.sigma0_squared, 0)
    self.assertBetween(found.alpha, 0.9, 1.0)


if __name__ == '__main__':
  absltest.main()
