"""Confidence intervals by the bootstrap.

Efron, Bootstrap methods: another look at the jackknife, Annals of Statistics 7
(1979).
"""

from collections.abc import Callable
from collections.abc import Sequence

import numpy as np

CONFIDENCE = 0.95
NUM_RESAMPLES = 9999


def interval(
  samples: Sequence[np.ndarray],
  statistic: Callable[..., np.ndarray],
  *,
  confidence: float,
  num_resamples: int,
  seed: int,
) -> tuple[float, float] | None:
  """Returns the percentile interval of a statistic.

  Each sample is resampled by itself. Calls with samples of the same sizes and
  with the same seed draw the same places.

  Args:
    samples: values `[N]`, each sample with an N of its own.
    statistic: `(*samples, axis)` -> the statistic along the axis.
    confidence: in (0, 1).
    num_resamples: at least 1.
    seed: of the random generator.

  Returns:
    Low and high end; None if a sample has one value only.
  """
  if min(map(len, samples)) < 2:
    return None
  from scipy import stats  # Half of the time of a small report.

  ends = stats.bootstrap(
    tuple(samples),
    statistic,
    vectorized=True,
    n_resamples=num_resamples,
    batch=1000,  # All at once would take 100 MB for a thousand values.
    confidence_level=confidence,
    method='percentile',
    rng=np.random.default_rng(seed),
  ).confidence_interval
  return float(ends.low), float(ends.high)
