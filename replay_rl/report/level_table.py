"""Compares the arms of a sweep by what reaching a level costs.

A cost unit is the cost of training on one rollout, so one sweep serves every
mu, up to the cost that all seeds have spent at that mu. A saving is claimed
where the one-sided p, adjusted for the number of arms, is below .025.
"""

import math
from collections.abc import Callable
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import rich.box
import rich.table
from rich import text

from replay_rl.report import levels
from replay_rl.report import sweep_data
from replay_rl.report import words

_SEED_OF_BOOTSTRAP = 0
# After the fields. Intervals are below their medians, to be narrow.
_COLUMNS = (
  *('seeds', 'not\nreached', 'median cost,\n95 %', 'tokens', 'updates'),
  *('saving,\n95 %', 'p, Holm,\none-sided'),
)


class ArmCosts(NamedTuple):
  """What the seeds of an arm spent to reach a level.

  All `[S]` in the order of the seeds, infinite where the level was not held.

  arm: what was run.
  costs: units of training on one rollout.
  generated_tokens: of the responses.
  learner_steps: updates.
  """

  arm: sweep_data.SweptArm
  costs: np.ndarray
  generated_tokens: np.ndarray
  learner_steps: np.ndarray

  @property
  def median(self) -> float:
    """Median cost over seeds."""
    return float(np.median(self.costs))

  @property
  def num_censored(self) -> int:
    """Seeds that did not hold the level within the budget."""
    return int(np.isinf(self.costs).sum())


class Costs(NamedTuple):
  """What the arms of a sweep spent to reach a level.

  arms: in the order of the sweep.
  budget: what every seed that did not reach the level has spent, at least.
    Higher costs count as infinite, since a seed that ended before might have
    reached the level for as much. Infinite if every seed got there.
  """

  arms: list[ArmCosts]
  budget: float


class ComparedArm(NamedTuple):
  """An arm in the table.

  costs: of the arm.
  interval: 95 % of its median cost; see `levels.median_interval`.
  comparison: with the baseline; None for the baseline.
  adjusted_p: of the comparison, by Holm; None without a p-value.
  """

  costs: ArmCosts
  interval: tuple[float, float] | None
  comparison: levels.Comparison | None
  adjusted_p: float | None


def costs_of(
  sweep: sweep_data.Sweep, *, level: float, num_evaluations: int, mu: float
) -> Costs:
  """Returns the costs of all arms.

  Args:
    sweep: what was measured.
    level: of the mean reward of greedy responses.
    num_evaluations: how many in a row must be at the level.
    mu: cost of generating a rollout over that of training on it.
  """
  ends = [math.inf]
  arms = []
  for arm in sweep.arms:
    spent = np.full((3, len(arm.seeds)), math.inf)
    for index, seed in enumerate(arm.seeds):
      costs, evaluated = seed.costs(mu), seed.evaluated()
      cost = levels.cost_to_level(
        costs[evaluated].tolist(),
        seed.scores[sweep_data.GREEDY][evaluated].tolist(),
        level,
        num_evaluations=num_evaluations,
      )
      if math.isinf(cost):
        ends.append(float(costs[-1]))
      else:
        at = int(np.searchsorted(costs, cost))
        spent[:, index] = (
          cost,
          seed.generated_tokens[at],
          seed.learner_steps[at],
        )
    arms.append(ArmCosts(arm, *spent))
  budget = min(ends)
  return Costs([_within(arm, budget) for arm in arms], budget)


def _within(arm: ArmCosts, budget: float) -> ArmCosts:
  """Returns an arm in which what lies above the budget is infinite."""
  is_over = arm.costs > budget
  return ArmCosts(
    arm.arm, *(np.where(is_over, math.inf, values) for values in arm[1:])
  )


def baseline_of(costs: Costs, *, name: str | None, beginning: str) -> ArmCosts:
  """Returns the arm that the others are compared with.

  Args:
    costs: of all arms.
    name: of the arm; None for the cheapest of those named so:
    beginning: of the names of the arms of which the cheapest is taken.

  Raises:
    ValueError: there is no such arm.
  """
  names = [arm.arm.name for arm in costs.arms]
  if name is not None:
    if name not in names:
      raise ValueError(f'--baseline = {name!r}: must be one of {sorted(names)}')
    return costs.arms[names.index(name)]
  named = [arm for arm in costs.arms if arm.arm.name.startswith(beginning)]
  if not named:
    raise ValueError(
      f'--baselines = {beginning!r}: must be the beginning of the name of an '
      'arm'
    )
  return min(named, key=lambda one: one.median)


def rows(costs: Costs, baseline: ArmCosts) -> list[ComparedArm]:
  """Returns a row for each arm, the cheapest first."""
  comparisons = {
    one.arm.name: levels.compare(
      one.costs, baseline.costs, seed=_SEED_OF_BOOTSTRAP
    )
    for one in costs.arms
    if one is not baseline
  }
  tested = {
    name: one.p_value
    for name, one in comparisons.items()
    if one.p_value is not None
  }
  adjusted = dict(zip(tested, levels.holm(list(tested.values())), strict=True))
  return [
    ComparedArm(
      one,
      levels.median_interval(one.costs, seed=_SEED_OF_BOOTSTRAP),
      comparisons.get(one.arm.name),
      adjusted.get(one.arm.name),
    )
    for one in sorted(costs.arms, key=lambda one: one.median)
  ]


def table(
  listed: Sequence[ComparedArm], *, baseline: str, budget: float
) -> rich.table.Table:
  """Returns the rows for a terminal, without columns that hold nothing."""
  limit = ''
  if math.isfinite(budget):
    limit = f'; all within {budget:,.0f} cost units'
  grid = rich.table.Table(
    title=f'Against {baseline}{limit}',
    box=rich.box.SIMPLE_HEAD,
    padding=(0, 1, 0, 0),
    pad_edge=False,
  )
  fields = dict.fromkeys(x for row in listed for x in row.costs.arm.parts())
  columns = [*fields, *_COLUMNS]
  lines = [[*_values(row, list(fields))] for row in listed]
  shown = [i for i in range(len(columns)) if any(line[i] for line in lines)]
  for i in shown:
    is_field = i < len(fields)
    grid.add_column(
      columns[i],
      justify='left' if is_field else 'right',
      overflow='fold',
      no_wrap=not is_field,
      min_width=4 if is_field else None,
    )
  for line in lines:
    grid.add_row(*(text.Text(line[i]) for i in shown))
  return grid


def _values(row: ComparedArm, fields: Sequence[str]) -> list[str]:
  """Returns what the table says of an arm."""
  parts = row.costs.arm.parts()
  one = row.comparison
  return [
    *(parts.get(field, '') for field in fields),
    str(len(row.costs.costs)),
    str(row.costs.num_censored),
    _amount(row.costs.median) + _ends(row.interval, _amount),
    _amount(float(np.median(row.costs.generated_tokens))),
    _amount(float(np.median(row.costs.learner_steps))),
    _share(one.saving) + _ends(one.interval, _share) if one else 'baseline',
    '' if row.adjusted_p is None else f'{row.adjusted_p:.4f}',
  ]


def _ends(
  interval: tuple[float, float] | None, say: Callable[[float], str]
) -> str:
  return '\n' + ' to '.join(map(say, interval)) if interval else ''


def _amount(amount: float) -> str:
  return words.amount(amount) if math.isfinite(amount) else 'never'


def _share(saving: float) -> str:
  if math.isnan(saving):
    return 'unknown'
  return f'{round(100 * saving)}%' if math.isfinite(saving) else 'none'
