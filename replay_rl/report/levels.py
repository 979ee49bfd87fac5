"""What reaching a level costs, and whether one arm costs less than another.

A seed that does not reach the level within its budget is censored: it counts as
an infinite cost, so it is left out of no median.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from replay_rl import tolerances
from replay_rl.report import bootstrap

MIN_SEEDS = 6  # With 4 seeds, an interval of 95 % covers 87 %.
NUM_RESAMPLES = 10_000
_TAIL = (1 - bootstrap.CONFIDENCE) / 2
MAX_P_VALUE = _TAIL  # Of a saving that is claimed; one-sided, after Holm.


class Comparison(NamedTuple):
  """The cost of an arm against that of a baseline.

  saving: 1 - the ratio of the median costs; 1 if only the baseline's is
    infinite, -inf if only the arm's is, and NaN if both are, or if the finite
    one is above the limit of the other. Its bounds and its p-value are those of
    the log of the ratio, of which it is a falling function.
  interval: 95 % bootstrap interval of the saving, with seeds of both resampled
    by themselves; None with fewer than `MIN_SEEDS` seeds in one of them, or
    where the saving is NaN.
  p_value: of no saving, one-sided; None with `interval`.
  """

  saving: float
  interval: tuple[float, float] | None
  p_value: float | None


def cost_to_level(
  costs: Sequence[float],
  scores: Sequence[float],
  level: float,
  *,
  num_evaluations: int,
) -> float:
  """Returns the cost at the first evaluation from which the level is held.

  Args:
    costs: spent at each evaluation of a seed, rising.
    scores: of these evaluations.
    level: to reach.
    num_evaluations: how many in a row must be at the level.

  Returns:
    The cost of the first of them; infinity if there are none.

  Raises:
    ValueError: the lengths differ, the costs do not rise, or num_evaluations is
      below 1.
  """
  if num_evaluations < 1:
    raise ValueError(f'num_evaluations = {num_evaluations}: must be at least 1')
  if len(costs) != len(scores) or (np.diff(costs) <= 0).any():
    raise ValueError(
      f'costs = {list(costs)}: must rise, one for each of {len(scores)} scores'
    )
  in_a_row = 0
  for i, score in enumerate(scores):
    in_a_row = in_a_row + 1 if score >= level - tolerances.SCORE else 0
    if in_a_row == num_evaluations:
      return float(costs[i - num_evaluations + 1])
  return math.inf


def saving(
  arm: np.ndarray,
  baseline: np.ndarray,
  *,
  limits: tuple[float, float] = (math.inf, math.inf),
) -> float:
  """Returns the saving alone; see `Comparison` and `compare`."""
  return float(_saving(np.median(arm), np.median(baseline), limits))


def compare(
  arm: np.ndarray,
  baseline: np.ndarray,
  *,
  seed: int,
  limits: tuple[float, float] = (math.inf, math.inf),
) -> Comparison:
  """Compares the costs of two arms, whose seeds are not paired.

  Args:
    arm: `[S]` costs of reaching a level, infinite where censored.
    baseline: `[S']` of the other arm.
    seed: of the bootstrap; the same for all comparisons of a table.
    limits: what a censored seed of the arm, and one of the baseline, has spent
      at least. An infinite median is above the limit, and whether it is above a
      finite one that is too is not known.
  """
  saved = saving(arm, baseline, limits=limits)
  if math.isnan(saved) or min(len(arm), len(baseline)) < MIN_SEEDS:
    return Comparison(saved, None, None)
  rng = np.random.default_rng(seed)
  # The arm is drawn first.
  of_arm, of_baseline = (
    _resampled_medians(costs, rng) for costs in (arm, baseline)
  )
  savings = _saving(of_arm, of_baseline, limits)
  # A resample that does not tell which median is lower says nothing.
  savings = np.sort(savings[~np.isnan(savings)])
  p_value = (1 + int(np.sum(savings <= 0))) / (1 + len(savings))
  return Comparison(saved, _percentiles(savings), p_value)


def median_interval(
  costs: np.ndarray, *, seed: int
) -> tuple[float, float] | None:
  """Returns the 95 % bootstrap interval of the median cost of an arm.

  Args:
    costs: `[S]` costs of reaching a level, infinite where censored.
    seed: of the bootstrap.

  Returns:
    Its ends, of which the upper one, or both, may be infinite; None with fewer
    than `MIN_SEEDS` seeds.
  """
  if len(costs) < MIN_SEEDS:
    return None
  medians = _resampled_medians(costs, np.random.default_rng(seed))
  return _percentiles(medians)


def holm(p_values: Sequence[float]) -> list[float]:
  """Returns p-values adjusted for the number of comparisons.

  Holm, A simple sequentially rejective multiple test procedure, Scandinavian
  Journal of Statistics 6 (1979).
  """
  order = np.argsort(p_values, kind='stable')
  adjusted = np.empty(len(order))
  largest = 0.0
  for rank, i in enumerate(order):
    largest = max(largest, min(1.0, (len(order) - rank) * p_values[i]))
    adjusted[i] = largest
  return adjusted.tolist()


def within_limit(
  costs: np.ndarray, spent: np.ndarray
) -> tuple[np.ndarray, float]:
  """Censors the costs above what each censored seed has spent.

  A seed that ended before might have reached the level for as much, so that
  the order of the two is not known.

  Args:
    costs: `[S]` of an arm, infinite where censored.
    spent: `[S]` of each seed, at the last place where it could have reached.

  Returns:
    The costs `[S]`, and the limit: the least that a censored seed has spent,
    infinite if there is none.
  """
  limit = float(np.min(spent[np.isinf(costs)], initial=np.inf))
  return np.where(costs > limit, np.inf, costs), limit


def _resampled_medians(
  costs: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
  """Returns `[NUM_RESAMPLES]` medians of seeds drawn with replacement."""
  drawn = rng.integers(len(costs), size=(NUM_RESAMPLES, len(costs)))
  return np.median(costs[drawn], axis=1)


def _percentiles(values: np.ndarray) -> tuple[float, float]:
  """Returns the ends of the 95 % interval."""
  # Without interpolation, which infinite values do not have.
  low, high = np.quantile(values, (_TAIL, 1 - _TAIL), method='inverted_cdf')
  return float(low), float(high)


def _saving(
  arm: np.ndarray, baseline: np.ndarray, limits: tuple[float, float]
) -> np.ndarray:
  """Returns 1 - arm / baseline; NaN where it is not known which is lower."""
  of_arm, of_baseline = limits
  is_unknown = (np.isinf(arm) & (baseline > of_arm)) | (
    np.isinf(baseline) & (arm > of_baseline)
  )
  with np.errstate(invalid='ignore'):
    return np.where(is_unknown, np.nan, 1 - arm / baseline)
