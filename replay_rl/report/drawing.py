"""Colours, panels and curves, which all figures share."""

import io
import itertools
import math
from typing import Any
from typing import NamedTuple

import numpy as np
from matplotlib import axes as mpl_axes
from matplotlib import figure as mpl_figure
from matplotlib import lines as mpl_lines
from matplotlib import ticker

from replay_rl.report import curves
from replay_rl.report import readings
from replay_rl.report import runs

# Okabe and Ito's colours without the yellow, which is too light for lines; the
# baseline is grey. Safe for the common kinds of colour blindness.
_BASELINE_COLOR = '#4d4d4d'
_COLORS = ('#0072b2', '#d55e00', '#009e73', '#cc79a7', '#e69f00', '#56b4e9')
HATCHES = {'-': '', '--': '////', ':': '....'}  # Bars, by the line's dashes.
_WIDTH = 10.0  # Inches of every figure.
BUDGET_LABELS = {
  runs.STEPS: 'learner steps',
  runs.TOKENS: 'generated tokens per seed',
  runs.COST: 'cost units per seed, B + μR an update',
  runs.SECONDS: 'wall-clock of all seeds together, seconds',
}
STYLE: dict[Any, Any] = {
  'font.size': 10.0,
  'axes.titlesize': 10.5,
  'axes.titlelocation': 'left',
  'axes.spines.top': False,
  'axes.spines.right': False,
  'axes.edgecolor': '#808080',
  'axes.grid': True,
  'axes.axisbelow': True,
  'grid.color': '#e6e6e6',
  'grid.linewidth': 0.8,
  'xtick.color': '#808080',
  'ytick.color': '#808080',
  'xtick.labelcolor': '#262626',
  'ytick.labelcolor': '#262626',
  'legend.frameon': False,
  'lines.linewidth': 1.8,
  'figure.dpi': 200.0,  # Twice the width of the page, for dense screens.
}


class StyledRun(NamedTuple):
  """A run and its look in every figure."""

  run: runs.Run
  color: str
  dash: str


def style(arms: list[runs.Run], baseline: str) -> list[StyledRun]:
  """Gives each arm a colour; from the seventh on they repeat, dashed."""
  looks = itertools.cycle(itertools.product(HATCHES, _COLORS))
  styled = []
  for run in arms:
    is_baseline = run.name == baseline
    dash, color = ('-', _BASELINE_COLOR) if is_baseline else next(looks)
    styled.append(StyledRun(run, color, dash))
  return styled


def panels(
  arms: list[StyledRun], *, rows: int, columns: int, height: float
) -> tuple[mpl_figure.Figure, np.ndarray]:
  """Returns a figure with the arms' legend above `[rows, columns]` panels."""
  labels = [label(arm.run.name) for arm in arms]
  num_columns = max(1, min(len(arms), 110 // (max(map(len, labels)) + 8)))
  num_lines = math.ceil(len(arms) / num_columns)
  figure = mpl_figure.Figure(
    figsize=(_WIDTH, height + 0.25 * num_lines), layout='constrained'
  )
  grid = figure.subplots(rows, columns, squeeze=False)
  handles = [
    mpl_lines.Line2D([], [], color=arm.color, ls=arm.dash, linewidth=3)
    for arm in arms
  ]
  figure.legend(handles, labels, loc='outside upper left', ncols=num_columns)
  return figure, grid


def label(name: str) -> str:
  """Returns a name that matplotlib shows as it is, without mathematics."""
  short = name if len(name) <= 60 else name[:59] + '…'
  return short.replace('$', r'\$')


def draw_curves(
  panel: mpl_axes.Axes,
  arms: list[StyledRun],
  budget: str,
  key: str,
  window: int | None,
) -> None:
  """Draws a value of every arm against a budget.

  Args:
    panel: where to draw.
    arms: what to draw; an arm without the value or the budget has no line.
    budget: key of the horizontal axis, in `BUDGET_LABELS`.
    key: the value.
    window: rollouts of the centred mean, against what was spent before them;
      None to draw evaluations, against what was spent when they were made.
  """
  is_drawn = [_draw_curve(panel, arm, budget, key, window) for arm in arms]
  if not any(is_drawn):
    panel.text(0.5, 0.5, 'not recorded', transform=panel.transAxes, ha='center')
  panel.set_xlabel(BUDGET_LABELS[budget])
  panel.set_xlim(left=0)
  panel.xaxis.set_major_formatter(ticker.EngFormatter(sep=''))
  panel.xaxis.set_major_locator(ticker.MaxNLocator(6))


def _draw_curve(
  panel: mpl_axes.Axes,
  arm: StyledRun,
  budget: str,
  key: str,
  window: int | None,
) -> bool:
  """Draws median and quartiles of a curve; False if there is nothing."""
  if window is None:
    budgets, values = arm.run.column(budget), arm.run.column(key)
  else:
    budgets = readings.spent_before(arm.run, budget, window)
    values = readings.smoothed(arm.run, key, window)
  grid, values = curves.on_common_axis(budgets, values)
  if not grid.size:
    return False
  low, middle, high = curves.quartiles(values)
  panel.plot(grid, middle, color=arm.color, ls=arm.dash)
  panel.fill_between(grid, low, high, color=arm.color, alpha=0.18, linewidth=0)
  return True


def png(figure: mpl_figure.Figure) -> bytes:
  """Returns PNG without date and version: equal figures give equal bytes."""
  stream = io.BytesIO()
  figure.savefig(stream, format='png', metadata={'Software': None})
  return stream.getvalue()
