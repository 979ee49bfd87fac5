"""Measures the noise of rollouts' gradients by age, and its correlation.

The theory of replay (arXiv 2604.08706, section 4, see `planner`) is about the
noise e_i = g_i - g of the gradient g_i of a rollout under the current weights,
where g is the gradient on fresh rollouts. It needs the variance E |e_i|^2 by
age, and the mean correlation of the noise of two rollouts.

Gradients are projected on K random directions of signs, drawn once. The square
of a projection, and the product of two, have the expectations |g_i|^2 and
g_i . g_j (Achlioptas, Database-friendly random projections, 2003). So each
direction gives an estimate of each quantity, and the mean over directions is
used. The square of a mean is estimated by the products of different groups, so
the errors of g and of other means add no bias. Groups are taken as independent
draws; the rollouts of a group share a prompt and a baseline.
"""

from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from replay_rl import base


def directions(
  rng_key: base.Array, params: base.PyTree, num_directions: int
) -> base.PyTree:
  """Returns random signs, `[K, ...]` float32 for each leaf of the weights.

  Args:
    rng_key: random key, consumed.
    params: arrays or `jax.ShapeDtypeStruct`s.
    num_directions: K.
  """
  leaves, structure = jax.tree.flatten(params)
  keys = jax.random.split(rng_key, len(leaves))
  return structure.unflatten(
    jax.random.rademacher(key, (num_directions, *leaf.shape), jnp.float32)
    for key, leaf in zip(keys, leaves, strict=True)
  )


def project(
  gradient_fn: Callable[[base.PyTree], base.PyTree],
  rows: base.PyTree,
  signs: base.PyTree,
  *,
  rows_at_once: int,
) -> base.Array:
  """Returns the products of each row's gradient with the directions, `[n, K]`.

  Computes whole gradients, but of `rows_at_once` rows at a time. With K forward
  derivatives instead, no gradient would be stored, at K times the work of a
  forward pass.

  Args:
    gradient_fn: a row, without leading axis -> gradient, a pytree.
    rows: pytree of `[n, ...]`.
    signs: what `directions` returned.
    rows_at_once: gradients in memory at a time, beside the K directions.
  """

  def project_row(row):
    products = jax.tree.map(
      lambda sign, leaf: sign.reshape(sign.shape[0], -1) @ leaf.ravel(),
      signs,
      gradient_fn(row),
    )
    return sum(jax.tree.leaves(products))

  return jax.lax.map(project_row, rows, batch_size=rows_at_once)


class Groups(NamedTuple):
  """Projections of the rollouts of `[N]` groups, summed within each group.

  sums: `[N, K]`.
  squares: `[N, K]`, sums of the squares.
  sizes: `[N]`, rollouts of each group.
  ages: `[N]`, learner steps since the policy that generated it.
  """

  sums: np.ndarray
  squares: np.ndarray
  sizes: np.ndarray
  ages: np.ndarray

  def take(self, index: np.ndarray) -> 'Groups':
    """Returns some of the groups."""
    return Groups(*(leaf[index] for leaf in self))


def grouped(
  projections: np.ndarray, group_id: np.ndarray, ages: np.ndarray
) -> Groups:
  """Returns the groups of `[n, K]` projections; rows of a group share an age.

  Args:
    projections: `[n, K]`.
    group_id: `[n]` integers.
    ages: `[n]` integers.
  """
  keys, place = np.unique(
    np.stack([group_id, ages]), axis=1, return_inverse=True
  )
  values = np.asarray(projections, np.float64)

  def total(rows):
    sums = np.zeros((keys.shape[1], *rows.shape[1:]))
    np.add.at(sums, place.ravel(), rows)
    return sums

  return Groups(
    sums=total(values),
    squares=total(values**2),
    sizes=total(np.ones(len(values))),
    ages=keys[1],
  )


class Weights(NamedTuple):
  """How often a resample has each group and each direction.

  fresh, stored: `[N]` of the two kinds of groups.
  directions: `[K]`.
  """

  fresh: np.ndarray
  stored: np.ndarray
  directions: np.ndarray


def once(fresh: Groups, stored: Groups) -> Weights:
  """Returns the weights of the sample itself."""
  return Weights(
    np.ones(len(fresh.sizes)),
    np.ones(len(stored.sizes)),
    np.ones(fresh.sums.shape[1]),
  )


class Noise(NamedTuple):
  """The noise of the gradients of rollouts, in units of a squared gradient.

  Correlations are in units of the variance: of `mean_variance`, or of
  `fresh_variance` for `within_fresh`. They contain the bias of old rollouts,
  that is the part of the noise that its expectation has.

  signal: |g|^2 of the mean gradient of fresh rollouts.
  fresh_variance: of a fresh rollout.
  variances: `[bins]`, of stored rollouts by bin of ages.
  alongs: `[bins]`, product of g with their mean gradient. Divided by `signal`
    it is the share of g that their gradients still have, on average.
  mean_variance: of all stored rollouts.
  between: mean correlation of stored rollouts of different groups.
  within_fresh, within_stored: of different rollouts of one group.
  same_age: `between`, for groups of the same age.
  intercept, slope: of the line of `between` against the distance of the ages of
    the two rollouts, in updates, by least squares.
  """

  signal: float
  fresh_variance: float
  variances: np.ndarray
  alongs: np.ndarray
  mean_variance: float
  between: float
  within_fresh: float
  within_stored: float
  same_age: float
  intercept: float
  slope: float


def measure(
  fresh: Groups,
  stored: Groups,
  *,
  bins: np.ndarray,
  num_bins: int,
  weights: Weights,
) -> Noise:
  """Returns the noise of stored rollouts, and of fresh ones.

  No estimate pairs a group with itself, whatever its weight. So all have no
  bias, and a bootstrap adds none: a resample has copies of a group, and a pair
  of copies would look like perfect correlation.

  Args:
    fresh: groups that the current weights have generated, two at least.
    stored: groups of the buffer, two at least.
    bins: `[N]`, the bin of each stored group, in [0, num_bins).
    num_bins: bins; an empty one has the variance NaN.
    weights: see `Weights`.
  """
  inner = _Inner(weights.directions)
  of_fresh = _Sums.of(fresh, weights.fresh)
  mean, signal = of_fresh.mean, of_fresh.product_of_groups(inner)
  fresh_variance = inner.sum(of_fresh.square) - signal

  def second_moment(square, mean_of_rows):
    # E |v - g|^2 = E |v|^2 - 2 E v . g + |g|^2, g estimated without these v.
    return square - 2 * inner(mean_of_rows, mean) + signal

  in_bins = [
    _Sums.of(stored.take(bins == i), weights.stored[bins == i])
    for i in range(num_bins)
  ]
  of_stored = _Sums.of(stored, weights.stored)
  mean_variance = second_moment(inner.sum(of_stored.square), of_stored.mean)
  distances, products, counts = _by_age(
    stored, weights.stored, inner, mean, signal
  )
  correlations = products / mean_variance
  intercept, slope = _line(distances, correlations, counts)
  is_same = distances == 0
  return Noise(
    signal=signal,
    fresh_variance=fresh_variance,
    variances=np.array(
      [second_moment(inner.sum(x.square), x.mean) for x in in_bins]
    ),
    alongs=np.array([inner(x.mean, mean) for x in in_bins]),
    mean_variance=mean_variance,
    between=float(_mean(correlations, counts)),
    within_fresh=(of_fresh.product_within(inner) - signal) / fresh_variance,
    within_stored=second_moment(
      of_stored.product_within(inner), of_stored.mean_of_pairs
    )
    / mean_variance,
    same_age=float(_mean(correlations[is_same], counts[is_same])),
    intercept=intercept,
    slope=slope,
  )


class _Inner(NamedTuple):
  """The inner product of two vectors, from their projections `[..., K]`."""

  directions: np.ndarray

  def __call__(self, one: np.ndarray, other: np.ndarray) -> Any:
    return self.sum(one * other)

  def sum(self, products: np.ndarray) -> Any:
    """Returns the mean over directions."""
    return products @ self.directions / self.directions.sum()


class _Sums(NamedTuple):
  """Weighted sums over groups."""

  groups: Groups
  weights: np.ndarray
  mean: np.ndarray
  square: np.ndarray

  @classmethod
  def of(cls, groups: Groups, weights: np.ndarray) -> '_Sums':
    num_rows = weights @ groups.sizes
    with np.errstate(invalid='ignore'):  # An empty bin is NaN.
      return cls(
        groups,
        weights,
        weights @ groups.sums / num_rows,
        weights @ groups.squares / num_rows,
      )

  def product_of_groups(self, inner: _Inner) -> float:
    """Returns the mean product of two rows of different groups."""
    total, num_rows = (
      self.weights @ self.groups.sums,
      self.weights @ self.groups.sizes,
    )
    own = self.weights[:, None] * self.groups.sums
    rows = self.weights * self.groups.sizes
    return (inner(total, total) - inner(own, own).sum()) / (
      num_rows**2 - rows @ rows
    )

  @property
  def _pairs(self) -> np.ndarray:
    """Returns `[N]`, weighted pairs of rows within each group."""
    return self.weights * self.groups.sizes * (self.groups.sizes - 1)

  def product_within(self, inner: _Inner) -> float:
    """Returns the mean product of two different rows of one group."""
    products = inner(self.groups.sums, self.groups.sums) - inner.sum(
      self.groups.squares
    )
    with np.errstate(invalid='ignore'):
      return (self.weights @ products) / self._pairs.sum()

  @property
  def mean_of_pairs(self) -> np.ndarray:
    """Returns the mean of a row, each as often as it is in a pair."""
    share = self.weights * (self.groups.sizes - 1)
    with np.errstate(invalid='ignore'):
      return share @ self.groups.sums / self._pairs.sum()


def _by_age(
  stored: Groups,
  weights: np.ndarray,
  inner: _Inner,
  mean: np.ndarray,
  signal: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns for each pair of ages its distance, mean product and weight.

  The product is that of the noise of two rollouts of different groups, and the
  weight is the number of such pairs of rollouts.
  """
  ages, place = np.unique(stored.ages, return_inverse=True)
  shape = (len(ages), len(stored.ages))
  of_age = np.zeros(shape)
  of_age[place.ravel(), np.arange(shape[1])] = weights
  sums, sizes = of_age @ stored.sums, of_age @ stored.sizes
  own = weights[:, None] * stored.sums
  rows = weights * stored.sizes
  member = of_age > 0
  # Of two ages: all pairs. Of one age: without those within a group.
  products = (sums * inner.directions) @ sums.T / inner.directions.sum()
  counts = np.outer(sizes, sizes)
  own_products = member @ inner(own, own)
  products[np.diag_indices(len(ages))] -= own_products
  counts[np.diag_indices(len(ages))] -= member @ rows**2
  # Sums of v_i . g over the same pairs, i of the first age.
  along = inner(own, mean[None, :])
  first = np.outer(member @ along, sizes)
  first[np.diag_indices(len(ages))] -= member @ (along * rows)
  products = products - first - first.T + signal * counts
  upper = np.triu_indices(len(ages))
  is_there = counts[upper] > 0
  # These count a pair of rollouts of two ages once, and of one age twice.
  factors = np.where(upper[0] == upper[1], 0.5, 1.0)[is_there]
  counts, products = counts[upper][is_there], products[upper][is_there]
  distances = np.abs(ages[upper[0]] - ages[upper[1]])[is_there]
  return distances, products / counts, counts * factors


def _mean(values: np.ndarray, weights: np.ndarray) -> float:
  return float(values @ weights / weights.sum()) if weights.sum() else np.nan


def _line(
  x: np.ndarray, y: np.ndarray, weights: np.ndarray
) -> tuple[float, float]:
  """Returns intercept and slope of the weighted line of least squares."""
  middle = _mean(x, weights), _mean(y, weights)
  spread = weights @ (x - middle[0]) ** 2
  if not spread > 0:
    return middle[1], np.nan  # All rollouts have one age.
  slope = float(weights @ ((x - middle[0]) * (y - middle[1])) / spread)
  return middle[1] - slope * middle[0], slope
