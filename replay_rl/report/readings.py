"""Where each seed reaches a level, and what it had spent by then.

Levels are read from evaluations on held-out prompts if all arms have them at
equal steps of cost. Otherwise they are read from the training reward, averaged
over windows of equally many rollouts. Both tell what a policy scores after a
spending: an evaluation belongs to what was spent when it was made, the reward
of an iteration to what was spent before it, and that of a window to the mean of
these over its rollouts.
"""

import math
from typing import Any
from typing import NamedTuple

import numpy as np

from replay_rl.report import curves
from replay_rl.report import levels
from replay_rl.report import runs

NUM_EVALUATIONS = 2  # In a row at the level, as one may be luck.
# Of the largest iteration: as much as the noise of a reward needs.
_ITERATIONS_OF_WINDOW = 5


class Rule(NamedTuple):
  """How the levels of a report are read.

  window: rollouts of the centred window of rewards and of all smoothed curves.
  every_cost: cost units from one evaluation to the next; None if levels are
    read from the training reward.
  why: words, what makes the evaluations no measure, or ''.
  """

  window: int
  every_cost: float | None
  why: str

  @property
  def score(self) -> str:
    """Key of what is compared with a level."""
    return 'reward' if self.every_cost is None else runs.GREEDY

  def in_words(self) -> str:
    """Returns sentences for the reader of the report."""
    if self.every_cost is not None:
      return (
        f'Levels are read from {runs.GREEDY}, evaluated every '
        f'{self.every_cost:,g} cost units: the first evaluation at or above '
        'the level, if the next one is too. Curves of the training are means '
        f'over centred windows of {self.window:,} rollouts.'
      )
    return (
      'Levels are read from the training reward, the mean over a centred '
      f'window of {self.window:,} rollouts in every arm, since {self.why}. The '
      'reward of an iteration belongs to what was spent before it.'
    )


class Spent(NamedTuple):
  """What the seeds of an arm had spent when they reached a level.

  per_seed: `[S]`, infinite where a seed did not reach it within the limit.
  limit: what every seed that did not reach it has spent, at least; infinite if
    all did.
  """

  per_seed: np.ndarray
  limit: float


def choose(arms: list[runs.Run], window: int | None) -> Rule:
  """Returns the rule that suits all arms.

  Args:
    arms: runs.
    window: rollouts; None for five times the largest iteration of any arm.

  Raises:
    ValueError: if an iteration has more rollouts than the window, or a seed
      fewer in all.
  """
  counts = {run.name: rollouts_per_iteration(run) for run in arms}
  largest = max(arms, key=lambda run: counts[run.name].max())
  shortest = min(arms, key=lambda run: counts[run.name].sum(axis=1).min())
  low = int(counts[largest.name].max())
  high = int(counts[shortest.name].sum(axis=1).min())
  if window is None:
    window = _ITERATIONS_OF_WINDOW * low
  if not 1 <= low <= window <= high:
    raise ValueError(
      f'window_rollouts = {window}: must be at least {low}, the rollouts of an '
      f'iteration of {largest.name!r}, and at most {high}, those of a seed of '
      f'{shortest.name!r}'
    )
  why = _why_not_evaluations(arms)
  every_cost = None if why else arms[0].config['evaluation']['every_cost']
  return Rule(window, every_cost, why)


def rollouts_per_iteration(run: runs.Run) -> np.ndarray:
  """Returns `[S, I]` rollouts of each iteration.

  A first iteration that is not that of the run has none, as the total before it
  is not known.
  """
  return np.diff(run.column(runs.ROLLOUTS), axis=1, prepend=_before_first(run))


def smoothed(run: runs.Run, key: str, window: int) -> list[np.ndarray]:
  """Returns the means of a value over the windows of each seed, `[N]` each."""
  return _means(run, run.column(key), window)


def spent_before(run: runs.Run, budget: str, window: int) -> list[np.ndarray]:
  """Returns what a policy had cost, averaged as `smoothed` does, `[N]` each."""
  totals = run.column(budget)
  first = np.zeros((len(totals), 1))
  before = np.concatenate([first, totals[:, :-1]], axis=1)
  return _means(run, before, window)


def _means(run: runs.Run, columns: np.ndarray, window: int) -> list[np.ndarray]:
  counts = rollouts_per_iteration(run)
  return [
    curves.centered_means(values, of_seed, window)
    for values, of_seed in zip(columns, counts, strict=True)
  ]


def spent(run: runs.Run, level: float, budget: str, rule: Rule) -> Spent:
  """Returns what the seeds of an arm had spent when they reached a level.

  Args:
    run: the arm.
    level: of the score of the rule.
    budget: key of what is spent.
    rule: how the level is read.
  """
  if rule.every_cost is None:
    scores = smoothed(run, rule.score, rule.window)
    budgets = spent_before(run, budget, rule.window)
    costs = [
      curves.at(x, curves.place_of_level(y, level))
      for x, y in zip(budgets, scores, strict=True)
    ]
    ends = [x[-1] for x in budgets]
  else:
    evaluated = [np.isfinite(scores) for scores in run.column(rule.score)]
    budgets = [
      x[at] for x, at in zip(run.column(budget), evaluated, strict=True)
    ]
    costs = [
      levels.cost_to_level(
        x, scores[at], level, num_evaluations=NUM_EVALUATIONS
      )
      for x, scores, at in zip(
        budgets, run.column(rule.score), evaluated, strict=True
      )
    ]
    ends = [x[-NUM_EVALUATIONS] for x in budgets]
  return Spent(*levels.within_limit(np.array(costs), np.array(ends)))


def value_when(
  run: runs.Run, key: str, costs: np.ndarray, window: int
) -> np.ndarray:
  """Returns the smoothed value of each seed when it had spent these units.

  Args:
    run: the arm.
    key: of the value.
    costs: `[S]` cost units, infinite where a seed never did.
    window: rollouts.

  Returns:
    `[S]`; infinite where the cost is, NaN outside of the windows.
  """
  of_seeds = zip(
    costs,
    spent_before(run, runs.COST, window),
    smoothed(run, key, window),
    strict=True,
  )
  return np.array(
    [
      np.inf if np.isinf(c) else np.interp(c, x, y, left=np.nan, right=np.nan)
      for c, x, y in of_seeds
    ]
  )


def _before_first(run: runs.Run) -> np.ndarray:
  """Returns the rollouts before the first iteration that is known, `[S, 1]`."""
  totals = run.column(runs.ROLLOUTS)[:, :1]
  return np.zeros_like(totals) if run.iterations[0] == 0 else totals


def _why_not_evaluations(arms: list[runs.Run]) -> str:
  """Says why the evaluations are not at equal cost in all arms, or ''."""
  settings: list[Any] = []
  for run in arms:
    evaluation = run.config.get('evaluation', {})
    every_cost = evaluation.get('every_cost')
    if every_cost is None:
      return f'{run.name!r} has no evaluations at equal steps of cost'
    settings.append(
      (run.config.get('mu'), every_cost, evaluation.get('num_prompts'))
    )
    numbers = np.isfinite(run.column(runs.GREEDY)).sum(axis=1)
    ends = run.column(runs.COST)[:, -1]
    for number, end in zip(numbers, ends, strict=True):
      # An iteration that costs more than a step goes past an evaluation.
      if number != math.floor(end / every_cost) or number < NUM_EVALUATIONS:
        return (
          f'{run.name!r} has {number} evaluations of a seed in {end:,g} cost '
          f'units, and not one every {every_cost:,g}, or fewer than '
          f'{NUM_EVALUATIONS}'
        )
  if len(set(settings)) > 1:
    return 'mu, the steps of cost or the prompts of the evaluations differ'
  return ''
