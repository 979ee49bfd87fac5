"""Tests of the theory of replay: the paper's numbers, and brute force."""

import itertools

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from replay_rl.replay import noise
from replay_rl.replay import planner

_MU, _RHO = 5.28, 0.1


def _minimum(mean_variance, **changes):
  settings = {
    'mu': _MU,
    'rho': _RHO,
    'min_x': 1.0,
    'max_x': 1e4,
    'y': None,
    'without_replacement': False,
  }
  return planner.minimum(mean_variance, **(settings | changes))


class PowerLawTest(parameterized.TestCase):
  @parameterized.parameters(
    (0.05, 35.161, 6.412),
    (0.1, 14.319, 5.576),
    (0.2, 4.265, 3.973),
    (0.3, 1.328, 2.488),
  )
  def test_the_numbers_of_the_paper(self, alpha, x, y):
    actual = planner.power_law(alpha=alpha, mu=_MU, rho=_RHO)
    np.testing.assert_allclose(actual, (x, y), atol=5e-4)
    # Another form of the same.
    np.testing.assert_allclose(
      actual.x, actual.y**2 / (_MU - _RHO * actual.y**2), rtol=1e-12
    )

  def test_without_correlation_it_is_the_limit(self):
    alpha = 0.2
    actual = planner.power_law(alpha=alpha, mu=_MU, rho=0.0)
    rest = (1 - 2 * alpha) / (2 * alpha)
    np.testing.assert_allclose(actual, (_MU * rest**2, _MU * rest), rtol=1e-12)
    near = planner.power_law(alpha=alpha, mu=_MU, rho=1e-9)
    np.testing.assert_allclose(near, actual, rtol=1e-6)

  def test_without_growth_the_reuse_has_a_limit(self):
    actual = planner.power_law(alpha=1e-9, mu=_MU, rho=_RHO)
    self.assertAlmostEqual(actual.y, 7.266, places=3)

  @parameterized.parameters(
    {'alpha': 0.5}, {'alpha': 0.0}, {'mu': 0.0}, {'rho': -0.1}, {'rho': 1.1}
  )
  def test_what_cannot_be_is_refused(self, **change):
    with self.assertRaisesRegex(ValueError, f'{next(iter(change))} = '):
      planner.power_law(**({'alpha': 0.2, 'mu': _MU, 'rho': _RHO} | change))


class MinimumTest(parameterized.TestCase):
  @parameterized.parameters(
    (0.01, 19.26, 5.895), (0.1, 5.496, 4.327), (1.0, 1.430, 2.570)
  )
  def test_lines(self, slope, x, y):
    actual = _minimum(lambda x: 1 + slope * x)
    np.testing.assert_allclose(actual.ratios, (x, y), rtol=3e-4)

  @parameterized.parameters(0.05, 0.1, 0.2, 0.3)
  def test_it_finds_the_closed_form(self, alpha):
    actual = _minimum(lambda x: x ** (2 * alpha))
    expected = planner.power_law(alpha=alpha, mu=_MU, rho=_RHO)
    np.testing.assert_allclose(actual.ratios, expected, rtol=1e-5)

  def test_without_replacement_no_batch_is_larger_than_the_buffer(self):
    free = _minimum(lambda x: x**0.6)
    self.assertGreater(free.ratios.y, free.ratios.x)
    actual = _minimum(lambda x: x**0.6, without_replacement=True)
    # Where x = y, the derivative .6 / x + 1 / (x + mu) - 2 / (2 x + rho x^2)
    # of log J is zero.
    np.testing.assert_allclose(actual.ratios, (2.2505, 2.2505), rtol=1e-4)
    self.assertGreater(actual.cost, free.cost)

  @parameterized.parameters(*itertools.product((False, True), (False, True)))
  def test_brute_force_finds_nothing_better(self, is_free, without_replacement):
    rng = np.random.default_rng(is_free + 2 * without_replacement)
    for _ in range(50):
      mu, rho = rng.uniform(0.5, 20), rng.uniform(0, 0.9)
      variance = noise.growing(
        alpha=rng.uniform(0.05, 1.0), tau=float(rng.lognormal(3, 1.5))
      )
      mean = noise.mean_variance(variance)
      y = None if is_free else rng.uniform(0.5, 8)
      actual = _minimum(
        mean,
        mu=mu,
        rho=rho,
        max_x=200.0,
        y=y,
        without_replacement=without_replacement,
      )
      # The best batch may be as large as the buffer.
      xs = np.append(np.geomspace(1, 200, 1500), y or 1.0)
      ys = np.append(np.geomspace(0.2, 1, 100), xs) if is_free else [y]
      x, y = np.meshgrid(xs, ys)
      costs = mean(xs) * (y + mu) * (1 / y + 1 / x + rho)
      if without_replacement:
        costs = np.where(y <= x, costs, np.inf)
      self.assertLessEqual(actual.cost, costs.min() * (1 + 1e-9))
      self.assertGreater(actual.cost, costs.min() * (1 - 1e-3))
      np.testing.assert_allclose(
        actual.cost, planner.cost(actual.ratios, mean, mu=mu, rho=rho)
      )

  def test_what_cannot_be_is_refused(self):
    with self.assertRaisesRegex(ValueError, 'max_x = 2.0: must be at least 3'):
      _minimum(np.ones_like, max_x=2.0, y=3.0, without_replacement=True)
    for bad in (np.nan, -1.0, np.inf):
      with self.assertRaisesRegex(ValueError, 'x = 1: must be positive and fi'):
        _minimum(lambda x, bad=bad: np.full_like(x, bad))
    with self.assertRaisesRegex(ValueError, 'mu = 0'):
      _minimum(np.ones_like, mu=0.0)


class BaselinesTest(parameterized.TestCase):
  @parameterized.parameters(
    (0.01, 0.32, 0.68), (0.05, 0.06, 0.55), (0.1, -0.14, 0.46)
  )
  def test_savings_against_both(self, slope, honest, of_paper):
    def mean(x):
      return 1 + slope * (x - 1)

    cost = _minimum(mean).cost
    on_policy = planner.on_policy(variance=1.0, mu=_MU, rho=0.0)
    self.assertAlmostEqual(1 - cost / on_policy, honest, places=2)
    baseline = planner.paper_baseline(mean, mu=_MU, rho=_RHO)
    self.assertAlmostEqual(1 - cost / baseline, of_paper, places=2)

  def test_on_policy_by_hand(self):
    actual = planner.on_policy(variance=2.0, mu=3.0, rho=0.5)
    self.assertEqual(actual, 2 * 4 * 1.5)


def _brute_force(variance, *, batch, group, updates, least, most):
  """Returns the least cost, slot by slot and update by update."""
  best = np.inf
  for fresh in range(group, batch * updates + 1, group):
    for capacity in range(fresh, most + 1, fresh):
      if capacity < least:
        continue
      slots = np.arange(capacity) // fresh * updates
      ages = np.concatenate([slots + i for i in range(updates)])
      x, y = capacity * updates / fresh, batch * updates / fresh
      cost = variance(ages).mean() * (y + _MU) * (1 / y + 1 / x + _RHO)
      best = min(best, cost)
  return best


class SettingsTest(parameterized.TestCase):
  def _settings(self, variance, **changes):
    settings = {
      'mu': _MU,
      'rho': _RHO,
      'batch_size': 12,
      'group_size': 4,
      'updates_per_iteration': 2,
      'max_x': 1e4,
      'max_capacity': 200,
      'without_replacement': False,
    }
    return planner.settings(variance, **(settings | changes))

  @parameterized.parameters(*itertools.product((1, 3), (3.0, 40.0), (0, 1)))
  def test_nothing_better_exists(self, updates, tau, without_replacement):
    variance = noise.growing(alpha=0.3, tau=tau)
    actual = self._settings(
      variance,
      updates_per_iteration=updates,
      without_replacement=bool(without_replacement),
    )
    expected = _brute_force(
      variance,
      batch=12,
      group=4,
      updates=updates,
      least=12 if without_replacement else 1,
      most=200,
    )
    self.assertAlmostEqual(actual.cost, expected, places=9)
    fresh = actual.num_prompts * actual.group_size
    self.assertEqual(actual.capacity % fresh, 0)
    self.assertEqual(actual.ratios.x, actual.capacity * updates / fresh)
    self.assertEqual(actual.ratios.y, 12 * updates / fresh)

  def test_limits_hold(self):
    variance = noise.growing(alpha=0.1, tau=1e6)  # The larger, the better.
    self.assertLessEqual(self._settings(variance, max_capacity=50).capacity, 50)
    self.assertLessEqual(self._settings(variance, max_x=6.0).ratios.x, 6)
    steep = noise.growing(alpha=1.0, tau=0.1)
    chosen = self._settings(steep, without_replacement=True)
    self.assertEqual(chosen.capacity, 12)

  @parameterized.parameters(
    {'group_size': 25}, {'max_capacity': 3}, {'max_x': 1.0}
  )
  def test_what_cannot_run_is_refused(self, **change):
    with self.assertRaisesRegex(ValueError, 'group_size = .*: must be at most'):
      self._settings(noise.growing(alpha=0.3, tau=3.0), **change)


class SplitTest(parameterized.TestCase):
  def _split(self, mean_variance, **changes):
    settings = {
      'mu': _MU,
      'rho': _RHO,
      'num_devices': 8,
      'min_x': 1.0,
      'max_x': 1e3,
      'without_replacement': False,
    }
    return planner.split(mean_variance, **(settings | changes))

  @parameterized.parameters(0.001, 0.1, 1.0, 10.0)
  def test_no_other_split_is_better(self, slope):
    mean = noise.mean_variance(lambda ages: 1 + 2 * slope * ages)
    actual = self._split(mean)
    x = np.geomspace(1, 1e3, 5000)
    costs = [np.inf]
    for num_samplers in range(1, 8):
      y = _MU * (8 - num_samplers) / num_samplers
      costs.append((mean(x) * (y + _MU) * (1 / y + 1 / x + _RHO)).min())
    self.assertEqual(actual.num_samplers, np.argmin(costs))
    self.assertEqual(actual.num_learners, 8 - actual.num_samplers)
    self.assertAlmostEqual(
      actual.ratios.y, _MU * actual.num_learners / actual.num_samplers
    )
    self.assertAlmostEqual(actual.cost / min(costs), 1, places=3)
    self.assertGreaterEqual(actual.cost, _minimum(mean).cost)

  def test_a_batch_without_replacement_must_fit(self):
    actual = self._split(np.ones_like, max_x=2.0, without_replacement=True)
    self.assertEqual(actual.num_samplers, 6)
    with self.assertRaisesRegex(ValueError, r'max_x = 0.7: must be .*0\.754'):
      self._split(np.ones_like, min_x=0.1, max_x=0.7, without_replacement=True)


if __name__ == '__main__':
  absltest.main()
