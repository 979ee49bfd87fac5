"""The theory of replay: how large a buffer, and how much reuse, cost the least.

Arnal, Cabannes, Cohen, Kempe, Munos, Efficient RL training for LLMs with
experience replay (arXiv 2604.08706), section 4. An update generates R rollouts,
inserts them into a buffer of N, and learns from B that are drawn uniformly. In
the ratios x = N / R, the updates that a rollout stays in the buffer, and
y = B / R, the mean number of its uses, a given accuracy costs (theorem 4.5)

    J(x, y) = v(x) (y + mu) (1 / y + 1 / x + rho)

in units of training on one rollout. mu is the cost of generating a rollout in
these units, rho the correlation of the gradient noise of stored rollouts, and
v(x) the mean of the variance of a rollout's gradient over the ages in the
buffer.

J charges a buffer even to a run without one: at x = y = 1 it holds 1 / x for
drawing from N, where a batch that is used once has 1 / B only. A run without a
buffer is therefore priced by `on_policy`, and `paper_baseline` is what the
formula says of x = y = 1.
"""

import math
from typing import Annotated
from typing import Any
from typing import NamedTuple

import numpy as np
from scipy import optimize

from replay_rl import constants
from replay_rl.replay import noise

Positive = Annotated[float, constants.POSITIVE]
Correlation = Annotated[float, constants.FRACTION]
# Of the others of a group together, so it may be above 1; a baseline may make
# it negative.
GroupCorrelation = Annotated[float, constants.interval('[-1, inf)')]
# From 1/2 on, noise grows so fast that J has no minimum inside.
Alpha = Annotated[float, constants.interval('(0, 0.5)')]
OptionalPositive = Annotated[float | None, constants.POSITIVE]
Count = Annotated[int, constants.interval('[1, 1048576]')]
DeviceCount = Annotated[int, constants.interval('[2, 65536]')]

_NUM_CELLS = 512  # Of the search before the refinement.


class Ratios(NamedTuple):
  """A point of the theory.

  x: N / R, updates that a rollout stays in the buffer.
  y: B / R, the mean number of its uses.
  """

  x: Any
  y: Any


class Optimum(NamedTuple):
  """The ratios of the least cost, and that cost."""

  ratios: Ratios
  cost: float


@constants.checked
def power_law(*, alpha: Alpha, mu: Positive, rho: Correlation) -> Ratios:
  """Returns the optimum if the noise at age s has deviation (s / tau)^alpha.

  The closed form after theorem 4.5, with the square root that one summary of it
  lacks, and written so that rho = 0 is its limit. tau does not matter. Nothing
  bounds x and y here: neither may be below 1 in a run.

  Args:
    alpha: growth of the noise, in (0, 1/2).
    mu: cost of generating a rollout over that of training on it.
    rho: correlation of the noise of stored rollouts.
  """
  rest = 1 - 2 * alpha
  y = mu * rest / (alpha + math.sqrt(alpha**2 + mu * rho * rest))
  return Ratios(x=y**2 / (2 * alpha * (mu + y)), y=y)


def cost(
  ratios: Ratios, mean_variance: noise.MeanVarianceFn, *, mu: float, rho: float
) -> Any:
  """Returns J of the ratios: the cost of a given accuracy, up to a factor.

  The ratios may be arrays `[K]`; then so is the cost.
  """
  x, y = ratios
  return mean_variance(np.asarray(x)) * (y + mu) * (1 / y + 1 / x + rho)


@constants.checked
def minimum(
  mean_variance: noise.MeanVarianceFn,
  *,
  mu: Positive,
  rho: Correlation,
  min_x: Positive,
  max_x: Positive,
  y: OptionalPositive,
  without_replacement: bool,
) -> Optimum:
  """Returns the ratios of the least cost.

  For a given x, the cost has one minimum over y, at y^2 = mu / (rho + 1 / x).
  The search over x looks at 512 values from `min_x` to `max_x`, in equal steps
  of log x, and refines the best one. It may miss a dip between two of them.

  Args:
    mean_variance: v(x), see `noise.mean_variance`.
    mu: cost of generating a rollout over that of training on it.
    rho: correlation of the noise of stored rollouts.
    min_x: 1 for a buffer that holds the newest generation.
    max_x: the largest buffer, or the oldest age of which the variance is known.
    y: B / R if it is given; None for the best one.
    without_replacement: whether a batch has each rollout at most once, which
      takes y <= x.

  Raises:
    ValueError: no x is allowed, or the variance is not positive and finite at
      one of them.
  """
  if without_replacement and y is not None:
    min_x = max(min_x, y)
  if min_x > max_x:
    raise ValueError(f'max_x = {max_x}: must be at least {min_x:g}')

  def best_y(x: np.ndarray) -> np.ndarray:
    if y is not None:
      return np.full_like(x, y)
    best = np.sqrt(mu / (rho + 1 / x))
    return np.minimum(x, best) if without_replacement else best

  def as_x(log_x: Any) -> np.ndarray:
    # Rounding must not leave the range, beyond which v may be unknown.
    return np.clip(np.exp(log_x), min_x, max_x)

  def costs(log_x: Any) -> np.ndarray:
    x = as_x(log_x)
    return cost(Ratios(x, best_y(x)), mean_variance, mu=mu, rho=rho)

  cells = np.log(np.geomspace(min_x, max_x, _NUM_CELLS))
  of_cells = costs(cells)
  is_bad = ~(np.isfinite(of_cells) & (of_cells > 0))
  if is_bad.any():
    raise ValueError(
      f'mean variance of x = {as_x(cells[is_bad][0]):g}: must be positive '
      'and finite'
    )
  best = int(np.argmin(of_cells))
  log_x, least = cells[best], of_cells[best]
  around = cells[max(best - 1, 0)], cells[min(best + 1, _NUM_CELLS - 1)]
  if around[0] < around[1]:
    refined: Any = optimize.minimize_scalar(
      lambda one: float(costs(one)),
      bounds=around,
      method='bounded',
      options={'xatol': 1e-9},
    )
    if refined.fun < least:
      log_x, least = refined.x, refined.fun
  x = as_x(log_x)
  return Optimum(Ratios(float(x), float(best_y(x))), float(least))


@constants.checked
def on_policy(
  *, variance: Positive, mu: Positive, rho: GroupCorrelation
) -> float:
  """Returns the cost of a given accuracy without a buffer, in units of `cost`.

  Each update generates B rollouts and uses each once, so the variance of its
  gradient is variance (1 / B + rho / B).

  Args:
    variance: of a fresh rollout's gradient.
    mu: cost of generating a rollout over that of training on it.
    rho: correlation of the noise of a fresh rollout with all others of its
      update together, such as (G - 1) times that of two of a group.
  """
  return variance * (1 + mu) * (1 + rho)


def paper_baseline(
  mean_variance: noise.MeanVarianceFn, *, mu: float, rho: float
) -> float:
  """Returns what the paper's formula says of training without a buffer.

  It charges for a buffer of one update, so a saving against it is too large.
  """
  return float(cost(Ratios(1.0, 1.0), mean_variance, mu=mu, rho=rho))


class ReplaySettings(NamedTuple):
  """Whole numbers that realise the theory, named as fields of the config.

  num_prompts, group_size: P and G, of which a generation has F = P G rollouts.
  updates_per_iteration: U, for R = F / U.
  batch_size: B.
  capacity: N.
  ratios: x = N / R and y = B / R.
  cost: J, with the ages that these settings have.
  """

  num_prompts: int
  group_size: int
  updates_per_iteration: int
  batch_size: int
  capacity: int
  ratios: Ratios
  cost: float


@constants.checked
def settings(
  variance: noise.VarianceFn,
  *,
  mu: Positive,
  rho: Correlation,
  batch_size: Count,
  group_size: Count,
  updates_per_iteration: Count,
  max_x: Positive,
  max_capacity: Count,
  without_replacement: bool,
) -> ReplaySettings:
  """Returns the settings of least cost for a batch of B and U updates a cycle.

  Tries every number of prompts with at most U B rollouts, and every buffer of
  whole generations. In update u of a cycle, the rollouts of k cycles ago have
  age u + k U.

  Args:
    variance: of a rollout's gradient, by its age in updates.
    mu: cost of generating a rollout over that of training on it.
    rho: correlation of the noise of stored rollouts.
    batch_size: B.
    group_size: G.
    updates_per_iteration: U.
    max_x: the longest stay in the buffer, in updates.
    max_capacity: the largest N.
    without_replacement: whether a batch has each rollout at most once, which
      takes N >= B.

  Raises:
    ValueError: the rows of a cycle are fewer than a group, or the largest
      buffer has no room for a group or, without replacement, for a batch.
  """
  least = batch_size if without_replacement else 1
  num_rows = batch_size * updates_per_iteration
  choices = []
  for num_prompts in range(1, num_rows // group_size + 1):
    fresh = num_prompts * group_size
    most = min(max_capacity // fresh, int(max_x / updates_per_iteration))
    cycles = np.arange(-(-least // fresh), most + 1)
    if not cycles.size:
      continue
    x = cycles * updates_per_iteration
    sums = np.cumsum(np.asarray(variance(np.arange(x[-1])), np.float64))
    ratios = Ratios(x, num_rows / fresh)
    costs = cost(ratios, lambda x, sums=sums: sums[x - 1] / x, mu=mu, rho=rho)
    i = int(np.argmin(costs))
    choices.append(
      ReplaySettings(
        num_prompts=num_prompts,
        group_size=group_size,
        updates_per_iteration=updates_per_iteration,
        batch_size=batch_size,
        capacity=int(cycles[i]) * fresh,
        ratios=Ratios(float(x[i]), ratios.y),
        cost=float(costs[i]),
      )
    )
  if not choices:
    raise ValueError(
      f'group_size = {group_size}: must be at most the {num_rows} rows of a '
      f'cycle, and fit the largest buffer, max_capacity = {max_capacity} and '
      f'max_x = {max_x:g}, with a batch of {batch_size}'
    )
  return min(choices, key=lambda one: one.cost)


class Split(NamedTuple):
  """Devices of an asynchronous run.

  num_samplers, num_learners: W and T.
  ratios: y = mu T / W, and the best x for it.
  cost: J.
  """

  num_samplers: int
  num_learners: int
  ratios: Ratios
  cost: float


@constants.checked
def split(
  mean_variance: noise.MeanVarianceFn,
  *,
  mu: Positive,
  rho: Correlation,
  num_devices: DeviceCount,
  min_x: Positive,
  max_x: Positive,
  without_replacement: bool,
) -> Split:
  """Returns the split of devices that costs the least.

  W devices sample while T train, so an update takes B / T and generates
  R = B W / (T mu) rollouts: y = mu T / W.

  Args:
    mean_variance: v(x), see `noise.mean_variance`.
    mu: cost of generating a rollout over that of training on it.
    rho: correlation of the noise of stored rollouts.
    num_devices: W + T.
    min_x, max_x, without_replacement: see `minimum`. A split whose y is above
      `max_x` is left out if a batch is drawn without replacement.

  Raises:
    ValueError: no split is left, or see `minimum`.
  """
  splits = []
  for num_samplers in range(1, num_devices):
    num_learners = num_devices - num_samplers
    y = mu * num_learners / num_samplers
    if without_replacement and y > max_x:
      continue
    best = minimum(
      mean_variance,
      mu=mu,
      rho=rho,
      min_x=min_x,
      max_x=max_x,
      y=y,
      without_replacement=without_replacement,
    )
    splits.append(Split(num_samplers, num_learners, *best))
  if not splits:
    raise ValueError(
      f'max_x = {max_x}: must be at least mu / (num_devices - 1) = '
      f'{mu / (num_devices - 1):g}, for a batch without replacement'
    )
  return min(splits, key=lambda one: one.cost)
