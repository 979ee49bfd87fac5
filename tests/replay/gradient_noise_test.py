"""Tests of the noise of gradients: by hand, against pairs, and planted."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from replay_rl.replay import gradient_noise
from replay_rl.replay import noise_growth

# With all signs of two weights as directions, estimates are exact.
_ALL_SIGNS = np.array(list(itertools.product((-1, 1), repeat=2)), np.float32)


def _groups(gradients, group_id, ages):
  """Returns groups of gradients `[n, 2]`, projected on all directions."""
  projections = np.asarray(gradients) @ _ALL_SIGNS.T
  return gradient_noise.grouped(
    projections, np.asarray(group_id), np.asarray(ages)
  )


def _measured(fresh, stored, bins, weights=None):
  bins = np.asarray(bins)
  return gradient_noise.measure(
    fresh,
    stored,
    bins=bins,
    num_bins=bins.max() + 1,
    weights=weights or gradient_noise.once(fresh, stored),
  )


class ProjectTest(parameterized.TestCase):
  def _rows(self):
    rng = np.random.default_rng(0)
    weights = jnp.asarray(rng.normal(size=(3, 2)), jnp.float32)
    rows = (
      jnp.asarray(rng.normal(size=(5, 2)), jnp.float32),
      jnp.array([0, 2, 1, 2, 0]),
    )

    def loss(weights, row):
      return -jax.nn.log_softmax(weights @ row[0])[row[1]]

    # The gradient of -log softmax is (softmax - one hot) x.
    known = [
      np.outer(np.asarray(jax.nn.softmax(weights @ x)) - np.eye(3)[y], x)
      for x, y in zip(*rows, strict=True)
    ]
    return weights, rows, loss, np.array(known)

  @parameterized.parameters(1, 2, 5, 8)
  def test_products_with_the_known_gradients(self, rows_at_once):
    weights, rows, loss, known = self._rows()
    signs = gradient_noise.directions(jax.random.key(1), {'w': weights}, 4)
    self.assertEqual(set(np.unique(signs['w'])), {-1.0, 1.0})
    actual = jax.jit(
      lambda rows: gradient_noise.project(
        lambda row: jax.grad(lambda p: loss(p['w'], row))({'w': weights}),
        rows,
        signs,
        rows_at_once=rows_at_once,
      )
    )(rows)
    np.testing.assert_allclose(
      actual, np.einsum('nij,kij->nk', known, signs['w']), rtol=1e-4, atol=1e-5
    )

  def test_squares_have_no_bias_over_the_keys(self):
    _, _, _, known = self._rows()
    keys = jax.random.split(jax.random.key(0), 400)
    signs = jax.vmap(
      lambda key: gradient_noise.directions(key, jnp.asarray(known[0]), 8)
    )(keys)
    squares = np.einsum('ij,skij->sk', known[0], signs) ** 2
    error = np.std(squares.mean(axis=1)) / np.sqrt(len(keys))
    self.assertLess(abs(squares.mean() - np.sum(known[0] ** 2)), 4 * error)


class MeasureTest(parameterized.TestCase):
  def test_by_hand(self):
    fresh = _groups([(1, 0), (0, 2), (3, 0), (0, 0)], [7, 8, 7, 8], [0] * 4)
    stored = _groups(
      [(-2, 0), (0, 0), (1, -1), (1, -1)], [3, 3, 2, 2], [1, 1, 3, 3]
    )
    actual = _measured(fresh, stored, np.searchsorted([1, 3], stored.ages))
    # The sums of the two fresh groups are (4, 0) and (0, 2).
    self.assertAlmostEqual(actual.signal, 0)
    self.assertAlmostEqual(actual.fresh_variance, (1 + 9 + 4 + 0) / 4)
    # Products of the two rows of a group: 3 and 0.
    self.assertAlmostEqual(actual.within_fresh, 1.5 / 3.5)
    # |v|^2 - 2 v . g with g = (1, 0.5): 2 + 2, and 2 - 1.
    np.testing.assert_allclose(actual.variances, [4, 1])
    np.testing.assert_allclose(actual.alongs, [-1, 0.5])
    self.assertAlmostEqual(actual.mean_variance, 2.5)
    # Means (-1, 0) and (1, -1): -1 - (0, -1) . (1, 0.5) = -0.5.
    self.assertAlmostEqual(actual.between, -0.5 / 2.5)
    self.assertAlmostEqual(actual.intercept, -0.5 / 2.5)
    self.assertTrue(np.isnan(actual.slope))
    self.assertTrue(np.isnan(actual.same_age))
    # Products 0 and 2, less 2 v . g on average.
    self.assertAlmostEqual(actual.within_stored, (1 + 0.5) / 2.5)

  @parameterized.parameters(0, 1)
  def test_is_the_mean_over_all_pairs(self, seed):
    rng = np.random.default_rng(seed)
    sizes, ages = np.array([2, 3, 1, 2, 2, 4]), np.array([1, 1, 1, 2, 5, 5])
    rows = np.repeat(np.arange(6), sizes)
    vectors = rng.normal(size=(len(rows), 2)) + [1.0, 0.2]
    old = rng.normal(size=(6, 2)) + 0.5
    fresh = _groups(old, [0, 0, 1, 1, 2, 2], [0] * 6)
    stored = _groups(vectors, rows, ages[rows])
    # `grouped` sorts by group, so weights and bins are in that order.
    weights = gradient_noise.Weights(
      np.array([2.0, 0.0, 1.0]), np.array([1.0, 2, 0, 1, 3, 1]), np.ones(4)
    )
    actual = _measured(fresh, stored, [0, 0, 0, 1, 1, 1], weights)
    of_old = np.repeat([2.0, 0, 1], 2)
    mean = of_old @ old / of_old.sum()
    # Only the first and the last fresh group have a weight.
    signal = np.mean(old[:2] @ old[4:].T)
    of_row = weights.stored[rows]
    square = np.sum(vectors**2, axis=1) - 2 * vectors @ mean + signal
    products = (
      vectors @ vectors.T
      - (vectors @ mean)[:, None]
      - (vectors @ mean)[None, :]
      + signal
    )
    pairs = np.outer(of_row, of_row) * (rows[:, None] != rows[None, :])
    variance = of_row @ square / of_row.sum()
    self.assertAlmostEqual(actual.mean_variance, variance)
    correlations = products / variance
    self.assertAlmostEqual(
      actual.between, (pairs * correlations).sum() / pairs.sum()
    )
    same = pairs * (ages[rows][:, None] == ages[rows][None, :])
    self.assertAlmostEqual(
      actual.same_age, (same * correlations).sum() / same.sum()
    )
    distances = np.abs(ages[rows][:, None] - ages[rows][None, :])
    slope, intercept = np.polyfit(
      distances.ravel(), correlations.ravel(), 1, w=np.sqrt(pairs.ravel())
    )
    self.assertAlmostEqual(actual.slope, slope)
    self.assertAlmostEqual(actual.intercept, intercept)
    of_group = weights.stored[rows][:, None] * (
      (rows[:, None] == rows[None, :]) & ~np.eye(len(rows), dtype=bool)
    )
    self.assertAlmostEqual(
      actual.within_stored,
      (of_group * correlations).sum() / of_group.sum(),
    )

  def test_few_fresh_rollouts_add_no_bias(self):
    rng = np.random.default_rng(0)
    measured = []
    for _ in range(1500):
      fresh, stored = rng.normal(size=(6, 2)), 2 * rng.normal(size=(8, 2))
      measured.append(
        _measured(
          _groups(fresh + 1.0, np.arange(6) // 2, np.zeros(6)),
          _groups(stored + 1.0, np.arange(8) // 2, np.arange(8) // 4 + 1),
          np.zeros(4, int),
        )
      )
    for name, expected in (
      ('signal', 2.0),
      ('fresh_variance', 2.0),
      ('mean_variance', 8.0),
    ):
      values = np.array([getattr(x, name) for x in measured])
      error = values.std() / np.sqrt(len(values))
      self.assertLess(abs(values.mean() - expected), 4 * error, name)
    for name in ('between', 'within_stored', 'same_age', 'slope'):
      products = np.array(
        [getattr(x, name) * x.mean_variance for x in measured]
      )
      error = products.std() / np.sqrt(len(products))
      self.assertLess(abs(products.mean()), 4 * error, name)


class PlantedTest(absltest.TestCase):
  """Noise of known size and correlation, in 40 dimensions."""

  def _noise(self, generations, per_group=2, groups=40, scale=None, seed=0):
    """Returns vectors `[n, 40]`, groups and ages, n groups a generation."""
    rng = np.random.default_rng(seed)
    ages = np.repeat(np.arange(1, generations + 1), groups * per_group)
    vectors = rng.normal(size=(len(ages), 40)) / np.sqrt(40)
    if scale is not None:
      vectors *= scale(ages)[:, None]
    return rng, vectors, np.arange(len(ages)) // per_group, ages

  def _measure(self, rng, vectors, group, ages, bins=None):
    signs = rng.choice([-1.0, 1.0], size=(256, 40))
    old = rng.normal(size=(4000, 40)) / np.sqrt(40)
    fresh = gradient_noise.grouped(
      old @ signs.T, np.arange(4000) // 2, np.zeros(4000, int)
    )
    stored = gradient_noise.grouped(vectors @ signs.T, group, ages)
    if bins is None:
      bins = stored.ages - 1
    return fresh, stored, _measured(fresh, stored, bins)

  def test_a_planted_curve_is_found_and_shuffled_ages_have_none(self):
    rng, vectors, group, ages = self._noise(
      24, groups=100, scale=lambda s: np.sqrt(1 + (s / 6) ** 0.8)
    )
    _, stored, noise = self._measure(rng, vectors, group, ages)
    expected = 1 + (np.arange(1, 25) / 6) ** 0.8
    curve = noise.variances / noise.fresh_variance
    np.testing.assert_allclose(curve, expected, rtol=0.2)
    weights = np.append(4000, np.full(24, 200))
    found = noise_growth.fit(np.arange(25), np.append(1, curve), weights)
    self.assertBetween(found.alpha, 0.3, 0.5)
    self.assertBetween(found.tau, 4.5, 7.5)
    shuffled = rng.permutation(stored.ages)
    _, _, flat = self._measure(rng, vectors, group, ages, bins=shuffled - 1)
    means = flat.variances / flat.variances.mean()
    self.assertLess(np.abs(means - 1).max(), 0.25)
    self.assertLess(abs(np.polyfit(np.arange(24), means, 1)[0]) * 23, 0.15)

  def test_a_planted_correlation_is_found(self):
    rng, vectors, group, ages = self._noise(20)
    # Neighbours share 5 of 6 steps, so the line falls by 0.3 / 6 at each step.
    steps = np.eye(40)
    shared = np.array([steps[a : a + 6].sum(axis=0) / np.sqrt(6) for a in ages])
    vectors = np.sqrt(0.7) * vectors + np.sqrt(0.3) * shared
    near = ages <= 6
    _, _, noise = self._measure(rng, vectors[near], group[near], ages[near])
    self.assertAlmostEqual(noise.same_age, 0.3, delta=0.06)
    self.assertAlmostEqual(noise.intercept, 0.3, delta=0.06)
    self.assertAlmostEqual(noise.slope, -0.05, delta=0.015)

  def test_rollouts_of_a_group_are_taken_apart(self):
    rng, vectors, group, ages = self._noise(10)
    vectors = np.sqrt(0.6) * vectors
    vectors += np.sqrt(0.4) * rng.normal(size=(400, 40))[group] / np.sqrt(40)
    _, _, noise = self._measure(rng, vectors, group, ages)
    self.assertAlmostEqual(noise.within_stored, 0.4, delta=0.04)
    self.assertAlmostEqual(noise.between, 0, delta=0.003)
    self.assertAlmostEqual(noise.same_age, 0, delta=0.01)


if __name__ == '__main__':
  absltest.main()
