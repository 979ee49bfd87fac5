"""The noise of a rollout's gradient, by the age of the rollout in updates."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Annotated

import numpy as np

from replay_rl import constants

# Ages in updates `[K]` -> variance of a rollout's gradient `[K]`.
VarianceFn = Callable[[np.ndarray], np.ndarray]
# x `[K]` or `[]` -> mean of the variance over the ages in the buffer, as x.
MeanVarianceFn = Callable[[np.ndarray], np.ndarray]

Positive = Annotated[float, constants.POSITIVE]


def mean_variance(variance: VarianceFn) -> MeanVarianceFn:
  """Returns v(x), the mean variance of the rollouts in a buffer of x updates.

  A buffer of N = x R rollouts holds R of each age 0, 1, ... and the rest of the
  next age, so v(x) = (variance(0) + ... + variance(n - 1) + (x - n)
  variance(n)) / x with n = floor(x). Below x = 1 it is variance(0).

  Args:
    variance: of a rollout's gradient, by its age in updates.
  """

  def mean(x: np.ndarray) -> np.ndarray:
    x = np.asarray(x, np.float64)
    whole = np.floor(x).astype(np.int64)
    ages = np.arange(int(np.ceil(x.max())))
    variances = np.asarray(variance(ages), np.float64)
    sums = np.append(0.0, np.cumsum(variances))
    # A whole x needs none of the next age, which may be unknown.
    rest = (x - whole) * np.append(variances, 0.0)[whole]
    return (sums[whole] + rest) / x

  return mean


@constants.checked
def growing(*, alpha: Positive, tau: Positive) -> VarianceFn:
  """Returns the variance 1 + (s / tau)^(2 alpha) of a rollout's gradient.

  Args:
    alpha: growth of the noise.
    tau: age in updates at which the variance is twice that of a fresh rollout.
  """
  return lambda ages: 1.0 + (np.asarray(ages) / tau) ** (2 * alpha)


def measured(ages: Sequence[float], variances: Sequence[float]) -> VarianceFn:
  """Returns a measured variance, with straight lines between the ages.

  Args:
    ages: in updates, rising from 0.
    variances: at these ages.

  Raises:
    ValueError: the ages do not rise from 0, or a variance is not positive. The
      function itself raises it for ages beyond the last one.
  """
  known, values = np.asarray(ages, float), np.asarray(variances, float)
  if known.shape != values.shape or known.ndim != 1 or not known.size:
    raise ValueError(
      f'variances = {list(variances)}: must be one for each of the ages '
      f'{list(ages)}'
    )
  if known[0] != 0 or (np.diff(known) <= 0).any():
    raise ValueError(f'ages = {list(ages)}: must rise from 0')
  if not (np.isfinite(values) & (values > 0)).all():
    raise ValueError(
      f'variances = {list(variances)}: must be positive and finite'
    )

  def variance(ages: np.ndarray) -> np.ndarray:
    if np.max(ages) > known[-1]:
      raise ValueError(
        f'age = {np.max(ages)}: must be at most {known[-1]:g}, the oldest that '
        'was measured'
      )
    return np.interp(ages, known, values)

  return variance
