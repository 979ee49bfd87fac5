"""Figures of "Rollout-Level Advantage-Prioritized Experience Replay for GRPO".

arXiv 2606.04560: methods by accuracy and AES, and one setting at a time.
"""

import math
from collections.abc import Callable
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib import axes as mpl_axes

from replay_rl.report import drawing
from replay_rl.report import efficiency
from replay_rl.report import levels
from replay_rl.report import sweep_curves
from replay_rl.report import sweep_data
from replay_rl.report import sweep_drawing
from replay_rl.report import sweep_figures
from replay_rl.report import sweep_runs

METHODS = ('name', 'replay.compose', 'replay.weights', 'replay.capacity')
# Exponent, oldest age, share of replay, unit, composition, advantage.
ABLATED = (
  *('replay.weights', 'replay.compose', 'replay.draw', 'loss.advantage'),
  *('replay.capacity', 'replay.keep', 'replay.feedback'),
  *('replay.drop_zero_variance', 'replay.updates_per_iteration'),
)
_LENGTH = 'response_length'


class _Method(NamedTuple):
  """A method at equal cost: `[S]` scores and lengths of its seeds."""

  name: str
  scores: np.ndarray
  lengths: np.ndarray


def main(sweep: sweep_data.Sweep, mu: float) -> list[sweep_drawing.DataFigure]:
  """Draws accuracy and AES of each method, at the same cost."""
  return [_main(sweep, mu)]


@sweep_drawing.styled
def _main(sweep: sweep_data.Sweep, mu: float) -> sweep_drawing.DataFigure:
  field = next(x for x in METHODS if x in sweep.fields)
  best = [
    (value, sweep_curves.best(arms, sweep_data.GREEDY, mu))
    for value, arms in sweep_figures.grouped(
      sweep, lambda arm: arm.fields[field]
    ).items()
  ]
  cost = _common_cost(sweep, [arm for _, arm in best], mu)
  methods = []
  for value, arm in best:
    axis, lengths = sweep_runs.curve(
      sweep_runs.runs_of(sweep, arm), _LENGTH, mu
    )
    methods.append(
      _Method(
        value or 'None',
        sweep_curves.at_cost(arm, sweep_data.GREEDY, mu, cost),
        np.array([np.interp(cost, axis, of_seed) for of_seed in lengths]),
      )
    )
  baseline = methods[_baseline([arm for _, arm in best])]
  num_panels = 1 + len(efficiency.CONSTANTS)
  figure, axes = sweep_drawing.framed(
    *([], ''),
    rows=1,
    columns=num_panels,
    height=max(2.6, 1.2 + 0.3 * len(methods)),
  )
  rows = []
  for place, one in enumerate(reversed(methods)):
    accuracy, interval = sweep_curves.interquartile_mean([one.scores], seed=0)
    _mark(axes[0, 0], place, accuracy, interval)
    cells = []
    for panel, constants in zip(axes[0, 1:], efficiency.CONSTANTS, strict=True):
      score, ends = efficiency.of_seeds(one[1:], baseline[1:], constants)
      _mark(panel, place, score, ends)
      cells += [score, *(ends or (math.nan, math.nan))]
    ends = interval or (math.nan, math.nan)
    length = float(one.lengths.mean())
    rows.append(
      (one.name, len(one.scores), cost, accuracy, *ends, length, *cells)
    )
  names = [drawing.label(one.name) for one in reversed(methods)]
  titles = [
    f'{sweep_data.GREEDY}, interquartile mean',
    *(f'AES {constants}' for constants in efficiency.CONSTANTS),
  ]
  for index, (panel, title) in enumerate(zip(axes[0], titles, strict=True)):
    panel.set_title(title)
    panel.set_ylim(-0.7, len(names) - 0.3)
    panel.set_yticks(range(len(names)), names if index == 0 else [])
    if index:
      panel.axvline(0, color='#808080', linewidth=1)
  columns = [
    f'aes_{"_".join(map(str, constants))}{end}'
    for constants in efficiency.CONSTANTS
    for end in ('', '_low', '_high')
  ]
  return sweep_drawing.DataFigure(
    'B_main',
    f'The best arm of each {sweep_data.label(field)} at {cost:,.0f} cost '
    f'units of mu = {mu:g}. AES compares accuracy and length of the sampled '
    f'responses with {baseline.name!r}, by the constants (omega, beta, gamma). '
    f'Lines: 95 % bootstrap over seeds, of at least {levels.MIN_SEEDS}.',
    drawing.png(figure),
    (
      *('method', 'seeds', 'cost', 'accuracy', 'accuracy_low'),
      *('accuracy_high', 'response_length', *columns),
    ),
    rows[::-1],
  )


def _baseline(arms: Sequence[sweep_data.SweptArm]) -> int:
  """Returns the first that learns on-policy, or the first."""
  for index, arm in enumerate(arms):
    if arm.fields.get('replay.compose', '').startswith('fresh_only'):
      return index
  return 0


def _common_cost(
  sweep: sweep_data.Sweep, arms: Sequence[sweep_data.SweptArm], mu: float
) -> float:
  ends = sweep_curves.common_range(arms, sweep_data.GREEDY, mu)
  if ends is None:
    raise ValueError(
      f'costs in common of the arms in {sweep.path} = none: must be some, to '
      'compare them at equal cost'
    )
  return ends[1]


def _mark(
  panel: mpl_axes.Axes,
  place: int,
  value: float,
  interval: tuple[float, float] | None,
) -> None:
  panel.plot(value, place, 'o', color='#0072b2', markersize=5)
  if interval:
    panel.plot(interval, (place, place), color='#0072b2', linewidth=1.4)


def ablations(
  sweep: sweep_data.Sweep, mu: float
) -> list[sweep_drawing.DataFigure]:
  """Draws a panel for each setting, with the best arm of each of its values."""
  return [_ablations(sweep, mu)]


@sweep_drawing.styled
def _ablations(sweep: sweep_data.Sweep, mu: float) -> sweep_drawing.DataFigure:
  fields = [field for field in ABLATED if field in sweep.fields]
  cost = _common_cost(sweep, sweep.arms, mu)
  sizes = [max(2, len(sweep.values(field))) for field in fields]
  figure, axes = sweep_drawing.framed(
    *([], ''),
    rows=len(fields),
    columns=1,
    height=sum(0.7 + 0.25 * x for x in sizes),
  )
  axes[0, 0].get_gridspec().set_height_ratios(sizes)
  rows = []
  for panel, field in zip(axes[:, 0], fields, strict=True):
    groups = sweep_figures.grouped(sweep, _value_of(field))
    for place, (value, arms) in enumerate(groups.items()):
      best = sweep_curves.best(arms, sweep_data.GREEDY, mu)
      scores = sweep_curves.at_cost(best, sweep_data.GREEDY, mu, cost)
      mean, interval = sweep_curves.interquartile_mean([scores], seed=0)
      _mark(panel, place, mean, interval)
      ends = interval or (math.nan, math.nan)
      rows.append(
        (field, value, best.name, len(arms), len(scores), cost, mean, *ends)
      )
    panel.set_yticks(
      range(len(groups)), [drawing.label(x or 'None') for x in groups]
    )
    panel.set_ylim(-0.7, len(groups) - 0.3)
    panel.set_title(sweep_data.label(field))
  axes[-1, 0].set_xlabel(f'interquartile mean of {sweep_data.GREEDY}')
  return sweep_drawing.DataFigure(
    'B_ablations',
    f'{sweep_data.GREEDY} at {cost:,.0f} cost units of mu = {mu:g}, of the '
    'best arm with each value of a setting. Lines: 95 % bootstrap, of at least '
    f'{levels.MIN_SEEDS} seeds.',
    drawing.png(figure),
    (
      *('field', 'value', 'best_arm', 'arms', 'seeds', 'cost'),
      *('mean', 'low', 'high'),
    ),
    rows,
  )


def _value_of(field: str) -> Callable[[sweep_data.SweptArm], str]:
  return lambda arm: arm.fields[field]
