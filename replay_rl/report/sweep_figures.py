"""The figures of a sweep: curves, frontier and matched budgets.

Each function draws one and returns it with its numbers.
"""

import itertools
import math
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np
from matplotlib import axes as mpl_axes

from replay_rl.report import curves
from replay_rl.report import drawing
from replay_rl.report import level_table
from replay_rl.report import levels
from replay_rl.report import sweep_curves
from replay_rl.report import sweep_data
from replay_rl.report import sweep_drawing

_NUM_BUDGETS = 3


# arm -> `[N]` costs and `[S, N]` values of its seeds.
CurveFn = Callable[[sweep_data.SweptArm], tuple[np.ndarray, np.ndarray]]


def score_curves(
  sweep: sweep_data.Sweep,
  layout: sweep_drawing.Layout,
  *,
  mu: float,
  name: str = 'curves',
) -> sweep_drawing.DataFigure:
  """Draws a score of all arms against cost: medians, and quartiles of a few."""
  return drawn_curves(
    sweep,
    layout,
    lambda arm: sweep_curves.curve(arm, sweep_data.GREEDY, mu),
    mu=mu,
    name=name,
    what=sweep_data.GREEDY,
  )


@sweep_drawing.styled
def drawn_curves(
  sweep: sweep_data.Sweep,
  layout: sweep_drawing.Layout,
  curve_of: CurveFn,
  *,
  mu: float,
  name: str,
  what: str,
) -> sweep_drawing.DataFigure:
  """Draws a value of all arms against cost: medians, and quartiles of a few.

  Args:
    sweep: what was run.
    layout: of the arms.
    curve_of: an arm -> its curve.
    mu: cost of generating a rollout over that of training on it.
    name: of the files.
    what: the value, in words.
  """
  figure, panels = sweep_drawing.grid(
    layout, height=4.2 if len(layout.panels) == 1 else 2.4
  )
  rows = []
  for title, panel in panels:
    arms = layout.panels[title]
    is_few = len(arms) <= sweep_drawing.FEW
    for arm in arms:
      costs, values = curve_of(arm)
      if not costs.size:
        continue
      low, middle, high = curves.quartiles(values)
      look = layout.looks[arm.name]
      panel.plot(
        *(costs, middle),
        color=look.color,
        ls=look.dash,
        marker='o' if len(costs) == 1 else '',
        linewidth=1.8 if is_few else 1.0,
      )
      if is_few:
        panel.fill_between(
          costs, low, high, color=look.color, alpha=0.18, linewidth=0
        )
      rows += [
        (arm.name, len(arm.seeds), *point)
        for point in zip(costs, low, middle, high, strict=True)
      ]
    sweep_drawing.in_units(panel)
  # Of all panels, which share it.
  panels[0][1].set_xlim(0, 1.02 * max([0.0, *(row[2] for row in rows)]) or 1)
  _label_outside(panels, f'cost units per seed, mu = {mu:g}', what)
  caption = (
    f'{what} against cost, as far as all seeds of an arm were measured. Line: '
    'median over seeds; band, in panels of up to '
    f'{sweep_drawing.FEW} arms: quartiles.'
  )
  drawn = {row[0] for row in rows}
  absent = [arm.name for arm in sweep.arms if arm.name not in drawn]
  if absent:
    caption += f' Never measured: {", ".join(absent)}.'
  return sweep_drawing.DataFigure(
    name,
    caption,
    drawing.png(figure),
    ('arm', 'seeds', 'cost', 'low_quartile', 'median', 'high_quartile'),
    rows,
  )


def _label_outside(
  panels: Sequence[tuple[str, mpl_axes.Axes]], xlabel: str, ylabel: str
) -> None:
  """Labels the axes at the left and at the bottom of a grid."""
  figure = panels[0][1].figure
  if len(panels) == 1:
    panels[0][1].set(xlabel=xlabel, ylabel=ylabel)
  else:
    figure.supxlabel(xlabel, fontsize=10)
    figure.supylabel(ylabel, fontsize=10)


@sweep_drawing.styled
def frontier(
  sweep: sweep_data.Sweep,
  groups: Mapping[str, Sequence[sweep_data.SweptArm]],
  *,
  mu: float,
  name: str = 'frontier',
  heading: str = '',
) -> sweep_drawing.DataFigure:
  """Draws, for each group of arms, the best score that a cost has bought."""
  shades = sweep_drawing.colors(list(groups))
  legend = [
    (x, sweep_drawing.Look(shades[x], '-'))
    for x in sweep_drawing.some(list(groups))
  ]
  figure, axes = sweep_drawing.framed(
    legend if len(groups) > 1 else [], heading, rows=1, columns=1, height=4.4
  )
  panel, rows = axes[0, 0], []
  for group, arms in groups.items():
    points = []
    for arm in arms:
      costs, scores = sweep_curves.curve(arm, sweep_data.GREEDY, mu)
      if costs.size:
        middle = np.median(scores, axis=0)
        panel.plot(
          costs, middle, color=shades[group], linewidth=0.7, alpha=0.35
        )
        points += zip(costs, middle, itertools.repeat(arm.name))
    best = -math.inf
    steps = []
    for cost, middle, arm_name in sorted(points):
      if middle > best:
        best = middle
        steps.append((cost, middle))
        rows.append((group, cost, middle, arm_name))
    if steps:
      end = max(cost for cost, _, _ in points)
      xs, ys = zip(*steps, (end, best), strict=True)
      panel.step(xs, ys, where='post', color=shades[group], linewidth=2.4)
  panel.set(
    xlabel=f'cost units per seed, mu = {mu:g}', ylabel=sweep_data.GREEDY
  )
  panel.set_xlim(left=0)
  sweep_drawing.in_units(panel)
  return sweep_drawing.DataFigure(
    name,
    f'Thick: the highest median {sweep_data.GREEDY} that any arm of a group '
    'has reached for at most this cost; thin: the medians of its arms. It is a '
    'maximum over arms, so a group of more arms is flattered.',
    drawing.png(figure),
    ('group', 'cost', 'median', 'arm'),
    rows,
  )


@sweep_drawing.styled
def matched_budgets(
  sweep: sweep_data.Sweep,
  *,
  mu: float,
) -> sweep_drawing.DataFigure:
  """Draws the interquartile mean of each arm at costs that all arms spent.

  Raises:
    ValueError: no cost is common to all arms that were evaluated.
  """
  score = sweep_data.GREEDY
  ends = sweep_curves.common_range(sweep.arms, score, mu)
  if ends is None:
    raise ValueError(
      f'costs in common of the arms in {sweep.path} = none: must be some, to '
      f'compare {score} at equal cost'
    )
  budgets = np.linspace(*ends, _NUM_BUDGETS)
  found: dict[str, list[tuple[float, tuple[float, float] | None]]] = {}
  rows = []
  for group, arms in sweep_curves.strata(sweep).items():
    for budget in budgets:
      values = [sweep_curves.at_cost(arm, score, mu, budget) for arm in arms]
      if any(np.isnan(x).any() for x in values):
        continue  # Never evaluated.
      mean, interval = sweep_curves.interquartile_mean(values, seed=0)
      found.setdefault(group, []).append((mean, interval))
      num_seeds = sum(map(len, values))
      ends_of = interval or (math.nan, math.nan)
      rows.append((group, len(values), num_seeds, budget, mean, *ends_of))
  order = sorted(found, key=lambda x: found[x][-1][0])
  figure, axes = sweep_drawing.framed(
    [],
    '',
    rows=1,
    columns=_NUM_BUDGETS,
    height=max(2.6, 1.0 + 0.19 * len(order)),
    is_shared=True,
  )
  for index, (panel, budget) in enumerate(zip(axes[0], budgets, strict=True)):
    for place, group in enumerate(order):
      mean, interval = found[group][index]
      panel.plot(mean, place, 'o', color='#0072b2', markersize=4)
      if interval:
        panel.plot(interval, (place, place), color='#0072b2', linewidth=1.4)
    panel.set_title(f'at {budget:,.0f} cost units')
    panel.set_ylim(-0.7, len(order) - 0.3)
    panel.set_yticks(range(len(order)), map(drawing.label, order))
    panel.tick_params(axis='y', labelsize=9 if len(order) <= 20 else 7)
  figure.supxlabel(f'interquartile mean of {score}, mu = {mu:g}', fontsize=10)
  return sweep_drawing.DataFigure(
    'matched_budgets',
    f'Interquartile mean of {score} over seeds at equal cost, the greatest '
    'that all arms have spent and less. Lines: 95 % stratified bootstrap, of '
    f'at least {levels.MIN_SEEDS} seeds.',
    drawing.png(figure),
    ('arm', 'strata', 'seeds', 'cost', 'mean', 'low', 'high'),
    rows,
  )


@sweep_drawing.styled
def seed_costs(
  rows: Sequence[level_table.ComparedArm], *, level: float, mu: float
) -> sweep_drawing.DataFigure:
  """Draws what each seed spent to reach the level, with those that did not."""
  figure, axes = sweep_drawing.framed(
    [], '', rows=1, columns=1, height=max(2.6, 1.0 + 0.19 * len(rows))
  )
  panel, numbers = axes[0, 0], []
  listed = list(reversed(rows))
  for place, row in enumerate(listed):
    arm, costs = row.costs.arm, row.costs.costs
    ends = np.array([seed.costs(mu)[-1] for seed in arm.seeds])
    is_there = np.isfinite(costs)
    for is_drawn, xs, marker, color in (
      (is_there, costs, 'o', '#0072b2'),
      (~is_there, ends, '>', '#d55e00'),
    ):
      panel.plot(
        xs[is_drawn],
        np.full(is_drawn.sum(), place),
        marker,
        color=color,
        markersize=4,
        alpha=0.7,
      )
    if math.isfinite(row.costs.median):
      panel.plot(row.costs.median, place, '|', color='black', markersize=10)
    numbers += [
      (arm.name, seed.seed, cost, end)
      for seed, cost, end in zip(arm.seeds, costs, ends, strict=True)
    ]
  names = [drawing.label(row.costs.arm.name) for row in listed]
  panel.set_yticks(range(len(names)), names)
  panel.tick_params(axis='y', labelsize=9 if len(names) <= 20 else 7)
  panel.set(
    xlabel=f'cost units to {level:g}, mu = {mu:g}',
    ylim=(-0.7, len(names) - 0.3),
  )
  panel.set_xlim(left=0)
  sweep_drawing.in_units(panel)
  return sweep_drawing.DataFigure(
    'seed_costs',
    f'What each seed had spent when it reached {level:g}. Blue: a seed; black: '
    'the median. An orange arrow is a seed that did not get there, at what it '
    'had spent: it counts as more than any other, also in the median.',
    drawing.png(figure),
    ('arm', 'seed', 'cost', 'cost_at_end'),
    numbers,
  )


def grouped(
  sweep: sweep_data.Sweep, title: Callable[[sweep_data.SweptArm], str]
) -> dict[str, list[sweep_data.SweptArm]]:
  """Returns the arms of each title; titles that are numbers rise."""
  titles = sweep_data.ordered([title(arm) for arm in sweep.arms])
  return {x: [arm for arm in sweep.arms if title(arm) == x] for x in titles}
