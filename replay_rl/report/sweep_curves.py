"""Scores of the arms of a sweep against cost, and at matched budgets."""

import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

from replay_rl.report import bootstrap
from replay_rl.report import curves
from replay_rl.report import levels
from replay_rl.report import sweep_data

_TASK = 'task'  # Arms that differ in this field alone are strata of one.
_NUM_RESAMPLES = 10_000


def curve(
  arm: sweep_data.SweptArm, score: str, mu: float
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the scores of all seeds at equal costs, linear between evaluations.

  Args:
    arm: what was run.
    score: name, such as eval/greedy.
    mu: cost of generating a rollout over that of training on it.

  Returns:
    `[N]` costs that all seeds have been evaluated at or between, and `[S, N]`
    scores. N is 0 if there are none.
  """
  length = max(len(seed.iterations) for seed in arm.seeds)
  costs, scores = np.full((2, len(arm.seeds), length), math.nan)
  for index, seed in enumerate(arm.seeds):
    costs[index, : len(seed.iterations)] = seed.costs(mu)
    scores[index, : len(seed.iterations)] = seed.scores[score]
  return curves.on_common_axis(costs, scores)


def common_range(
  arms: Sequence[sweep_data.SweptArm], score: str, mu: float
) -> tuple[float, float] | None:
  """Returns the least and the greatest cost that the curves of all arms have.

  An arm that was never evaluated is left out. None if nothing is common.
  """
  axes = [curve(arm, score, mu)[0] for arm in arms]
  axes = [axis for axis in axes if axis.size]
  if not axes:
    return None
  start, end = max(x[0] for x in axes), min(x[-1] for x in axes)
  return (float(start), float(end)) if start <= end else None


def at_cost(
  arm: sweep_data.SweptArm, score: str, mu: float, cost: float
) -> np.ndarray:
  """Returns `[S]` scores at a cost, NaN where the curve does not reach it."""
  costs, scores = curve(arm, score, mu)
  if not costs.size or not costs[0] <= cost <= costs[-1]:
    return np.full(len(arm.seeds), math.nan)
  return np.array([np.interp(cost, costs, of_seed) for of_seed in scores])


def best(
  arms: Sequence[sweep_data.SweptArm], score: str, mu: float
) -> sweep_data.SweptArm:
  """Returns the arm with the highest curve.

  That is the median over seeds of the mean score over the costs that all of
  the arms have in common. The first of equal ones is taken.

  Raises:
    ValueError: nothing is common to the arms.
  """
  ends = common_range(arms, score, mu)
  if ends is None:
    raise ValueError(
      f'{score} of {[arm.name for arm in arms]} = nothing: must be measured at '
      'costs that they have in common'
    )

  def height(arm: sweep_data.SweptArm) -> float:
    costs, scores = curve(arm, score, mu)
    if not costs.size:
      return -math.inf
    axis = np.unique(np.clip(costs, *ends))
    values = np.stack([np.interp(axis, costs, x) for x in scores])
    if len(axis) == 1:
      return float(np.median(values))
    areas = np.trapezoid(values, axis, axis=1) / (axis[-1] - axis[0])
    return float(np.median(areas))

  return max(arms, key=height)


def highest(arm: sweep_data.SweptArm, score: str) -> np.ndarray:
  """Returns `[S]` highest scores of the seeds, NaN where never evaluated."""
  found = np.full(len(arm.seeds), math.nan)
  for index, seed in enumerate(arm.seeds):
    values = seed.scores[score][seed.evaluated(score)]
    if values.size:
      found[index] = values.max()
  return found


def interquartile_mean(
  strata: Sequence[np.ndarray], *, seed: int
) -> tuple[float, tuple[float, float] | None]:
  """Returns the mean of the middle half of the scores, and its interval.

  Deep Reinforcement Learning at the Edge of the Statistical Precipice (arXiv
  2108.13264): a quarter of all scores, rounded down, is left out at each end.
  The bootstrap draws the seeds of each stratum by themselves.

  Args:
    strata: scores `[S]` of each stratum, such as a task.
    seed: of the bootstrap.

  Returns:
    The mean, and its 95 % interval; None if a stratum has fewer than
    `levels.MIN_SEEDS` seeds.
  """

  def statistic(*samples: np.ndarray, axis: int) -> np.ndarray:
    return stats.trim_mean(np.concatenate(samples, axis), 0.25, axis=axis)

  mean = float(statistic(*strata, axis=0))
  if min(map(len, strata)) < levels.MIN_SEEDS:
    return mean, None
  if all(np.ptp(sample) == 0 for sample in strata):
    return mean, (mean, mean)  # SciPy warns of equal values.
  ends = bootstrap.interval(
    strata,
    statistic,
    confidence=bootstrap.CONFIDENCE,
    num_resamples=_NUM_RESAMPLES,
    seed=seed,
  )
  return mean, ends


def strata(
  sweep: sweep_data.Sweep,
) -> dict[str, list[sweep_data.SweptArm]]:
  """Returns arms that differ in the task alone together, by their name.

  If the task does not differ, each arm is by itself.
  """
  together: dict[tuple[str, ...], list[sweep_data.SweptArm]] = {}
  for arm in sweep.arms:
    key = tuple(arm.fields[x] for x in sweep.fields if x != _TASK)
    # Without another field, arms of one key are different all the same.
    together.setdefault(
      key if _TASK in sweep.fields else (arm.name,), []
    ).append(arm)
  return {_name_of(arms): arms for arms in together.values()}


def _name_of(arms: Sequence[sweep_data.SweptArm]) -> str:
  if len(arms) == 1:
    return arms[0].name
  parts = [f'{x}={y}' for x, y in arms[0].parts().items() if x != _TASK]
  return ','.join(parts) or 'all tasks'
