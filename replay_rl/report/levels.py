"""What reaching a level costs, and whether one arm costs less than another.

A seed that does not reach the level within its budget is censored: it counts as
an infinite cost, so it is left out of no median.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from replay_rl import tolerances

MIN_SEEDS = 6  # With 4 seeds, an interval of 95 % covers 87 %.
NUM_RESAMPLES = 10_000


class Comparison(NamedTuple):
  """The cost of an arm against that of a baseline.

  saving: 1 - the ratio of the median costs; 1 if only the baseline's is
    infinite, -inf if only the arm's is, and NaN if both are.
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


def saving(arm: np.ndarray, baseline: np.ndarray) -> float:
  """Returns the saving alone; see `Comparison`."""
  return float(_saving(np.median(arm), np.median(baseline)))


def compare(arm: np.ndarray, baseline: np.ndarray, *, seed: int) -> Comparison:
  """Compares the costs of two arms, whose seeds are not paired.

  Args:
    arm: `[S]` costs of reaching a level, infinite where censored.
    baseline: `[S']` of the other arm.
    seed: of the bootstrap; the same for all comparisons of a table.
  """
  saved = saving(arm, baseline)
  if math.isnan(saved) or min(len(arm), len(baseline)) < MIN_SEEDS:
    return Comparison(saved, None, None)
  rng = np.random.default_rng(seed)
  medians = [_resampled_medians(costs, rng) for costs in (arm, baseline)]
  savings = _saving(*medians)
  # A resample in which both medians are infinite says nothing.
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


def _resampled_medians(
  costs: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
  """Returns `[NUM_RESAMPLES]` medians of seeds drawn with replacement."""
  drawn = rng.integers(len(costs), size=(NUM_RESAMPLES, len(costs)))
  return np.median(costs[drawn], axis=1)


def _percentiles(values: np.ndarray) -> tuple[float, float]:
  """Returns the ends of the 95 % interval."""
  # Without interpolation, which infinite values do not have.
  low, high = np.quantile(values, (0.025, 0.975), method='inverted_cdf')
  return float(low), float(high)


def _saving(arm: np.ndarray, baseline: np.ndarray) -> np.ndarray:
  """Returns 1 - arm / baseline; NaN where both are infinite."""
  with np.errstate(invalid='ignore'):
    return 1 - arm / baseline
