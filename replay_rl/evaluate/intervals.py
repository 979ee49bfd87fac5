"""Confidence intervals of scores on few problems.

The unit is the problem: several samples of one problem are not independent, and
other problems of the same kind would score otherwise. The interval is Wilson's,
on the effective number of problems, so that it covers with 30 problems, and has
a width where no problem or every problem is solved. It is wider than it has to
be where many samples of each problem agree that all are equally hard.

Wilson, Probable inference, the law of succession, and statistical inference,
JASA 22 (1927). Brown, Cai and DasGupta, Interval estimation for a binomial
proportion, Statistical Science 16 (2001), recommend it for small numbers. Korn
and Graubard, Confidence intervals for proportions with small expected number of
positive counts estimated from survey data, Survey Methodology 24 (1998), give
the effective number. Zou and Donner, Construction of confidence limits about
effect measures: a general approach, Statistics in Medicine 27 (2008), combine
intervals.
"""

import statistics
from collections.abc import Sequence

import numpy as np


def mean_of_means(
  benchmarks: Sequence[np.ndarray], *, confidence: float
) -> tuple[float, float] | None:
  """Returns the interval of the mean over benchmarks of their mean scores.

  The distances of the ends from the mean are those of the benchmarks, added in
  squares (Zou and Donner 2008); one benchmark keeps its own ends.

  Args:
    benchmarks: scores in [0, 1], one for each problem: `[P]`, each with a P of
      its own.
    confidence: in (0, 1).

  Returns:
    Low and high end; None if a benchmark has one problem, which says nothing
    about others.

  Raises:
    ValueError: a score is outside [0, 1].
  """
  if min(map(len, benchmarks)) < 2:
    return None
  means = np.array([np.mean(values) for values in benchmarks])
  ends = np.array([mean(values, confidence) for values in benchmarks])
  below, above = np.sqrt(np.sum((ends.T - means) ** 2, axis=1)) / len(means)
  return float(np.mean(means) - below), float(np.mean(means) + above)


def mean(values: np.ndarray, confidence: float) -> tuple[float, float]:
  """Returns the interval of one mean score; arguments as `mean_of_means`."""
  if not np.all((values >= 0) & (values <= 1)):
    raise ValueError(f'scores = {values}: must be in [0, 1]')
  z = statistics.NormalDist().inv_cdf((1 + confidence) / 2)
  score, number = np.mean(values), effective_number(values)
  # Brown, Cai and DasGupta 2001, Sec. 3.1.1.
  scale = 1 + z**2 / number
  center = (score + z**2 / (2 * number)) / scale
  half = z * np.sqrt(score * (1 - score) / number + z**2 / (4 * number**2))
  low, high = center - half / scale, center + half / scale
  # An end that is 0 or 1 in exact numbers may miss it by rounding.
  return max(float(low), 0.0), min(float(high), 1.0)


def effective_number(values: np.ndarray) -> float:
  """Returns how many problems of one right or wrong sample say as much.

  That is p (1 - p) over the variance of the mean (Korn and Graubard 1998). It
  is P if all scores are 0 or 1, and more if they are closer together.
  Two problems are added, one always solved and one never (the rule of
  succession), since the variance of few scores may be 0 by chance.

  Args:
    values: scores in [0, 1], `[P]`.
  """
  size = len(values) + 2
  score = (np.sum(values) + 1) / size
  variance = (np.sum(np.square(values)) + 1) / size - score**2
  return float(len(values) * score * (1 - score) / variance)
