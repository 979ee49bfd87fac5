"""Fits a curve to the measured variance of gradients by age."""

from typing import NamedTuple

import numpy as np
from scipy import optimize

_MIN_ALPHA, _MAX_ALPHA = 0.01, 1.0
_NUM_ALPHAS = 100  # Of the search before the refinement.


class Growth(NamedTuple):
  """The variance sigma0^2 (1 + (s / tau)^(2 alpha)) at age s.

  alpha: within [0.01, 1]; NaN if the variance does not grow.
  tau: age, in updates, at which the variance is twice sigma0^2; inf if it does
    not grow.
  sigma0_squared: variance at age 0.
  """

  alpha: float
  tau: float
  sigma0_squared: float


def fit(ages: np.ndarray, variances: np.ndarray, weights: np.ndarray) -> Growth:
  """Returns the growth of the least weighted squares; never a negative one.

  Args:
    ages: `[n]`, in updates, of which one is 0.
    variances: `[n]`.
    weights: `[n]`, such as the number of rollouts.
  """
  ages, variances, weights = (
    np.asarray(x, np.float64) for x in (ages, variances, weights)
  )
  weights = weights / weights.sum()
  mean = weights @ variances

  def parts(alphas):
    """Returns intercept, slope and loss of the line in s^(2 alpha), `[k]`."""
    powers = ages[None, :] ** (2 * np.atleast_1d(alphas)[:, None])
    middle = powers @ weights
    centered = powers - middle[:, None]
    slope = (centered * (variances - mean)) @ weights / (centered**2 @ weights)
    slope = np.maximum(slope, 0.0)
    intercept = mean - slope * middle
    # Below 0 no variance is; there the line goes through the origin.
    through = (powers * variances) @ weights / (powers**2 @ weights)
    slope = np.where(intercept < 0, through, slope)
    intercept = np.maximum(intercept, 0.0)
    errors = variances - intercept[:, None] - slope[:, None] * powers
    return intercept, slope, errors**2 @ weights

  alphas = np.linspace(_MIN_ALPHA, _MAX_ALPHA, _NUM_ALPHAS)
  losses = parts(alphas)[2]
  best = int(np.argmin(losses))
  around = alphas[max(best - 1, 0)], alphas[min(best + 1, _NUM_ALPHAS - 1)]
  refined = optimize.minimize_scalar(
    lambda alpha: float(parts(alpha)[2][0]), bounds=around, method='bounded'
  )
  alpha = alphas[best]
  if refined.fun < losses[best]:  # pyright: ignore
    alpha = refined.x  # pyright: ignore
  (intercept,), (slope,), _ = parts(alpha)
  if slope <= 0:
    return Growth(np.nan, np.inf, float(mean))
  tau = (intercept / slope) ** (0.5 / alpha)
  return Growth(float(alpha), float(tau), float(intercept))
