"""The report's figures, drawn with matplotlib and returned as PNG.

Lines are medians over seeds, bands the quartiles, after each seed's curve was
smoothed by a trailing mean and put on a common axis.
"""

import io
import math
import re
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib import axes as mpl_axes
from matplotlib import figure as mpl_figure
from matplotlib import lines as mpl_lines
from matplotlib import ticker

from replay_rl.report import curves
from replay_rl.report import runs

# Okabe and Ito's colours without the yellow, which is too light for lines; the
# baseline is grey. Safe for the common kinds of colour blindness.
_BASELINE_COLOR = '#4d4d4d'
_COLORS = ('#0072b2', '#d55e00', '#009e73', '#cc79a7', '#e69f00', '#56b4e9')
_DASHES = ('-', '--', ':')
_WIDTH = 10.0  # Inches of every figure.
_STYLE = {
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
  'figure.dpi': 130.0,
}
_AXIS_LABELS = {
  runs.STEPS: 'learner steps',
  runs.TOKENS: 'generated tokens per seed',
  runs.COST: 'cost units per seed, B + μR an update',
  runs.SECONDS: 'wall-clock of all seeds together, seconds',
}
_OFF_POLICY = {
  'ess': 'effective sample size',
  'abs_log_ratio/replayed': 'mean |log ratio| of replayed tokens',
  'clip_fraction/replayed': 'clipped share of replayed tokens',
  'output_projection_grad_norm': 'gradient norm of the output projection',
}
_HISTOGRAMS = {
  'staleness': ('staleness of a use, learner steps', '% of uses'),
  'uses': ('uses of a rollout until it left the buffer', '% of rollouts'),
  'steps_since_last_use': (
    'learner steps since the last use of the rollout',
    '% of uses',
  ),
}
_PASS_AT = re.compile(r'eval/pass_at_(\d+)')


class Figure(NamedTuple):
  """name: file name without ending. caption: how to read it."""

  name: str
  caption: str
  png: bytes


class _Arm(NamedTuple):
  run: runs.Run
  color: str
  dash: str


def make(
  arms: list[runs.Run],
  *,
  baseline: str,
  thresholds: tuple[float, ...],
  window: int,
) -> list[Figure]:
  """Draws all figures that the runs hold values for.

  Args:
    arms: runs with different names.
    baseline: name of the arm drawn in grey.
    thresholds: rewards marked in the reward figure.
    window: iterations of the trailing mean, at most those of a run.

  Returns:
    The figures, in the order of the page.
  """
  styled = _style(arms, baseline)
  with matplotlib.rc_context(_STYLE):
    drawn = [
      _reward(styled, thresholds, window),
      _entropy(styled, window),
      _histograms(styled),
      _off_policy(styled, window),
      _evaluation(styled),
    ]
    return [figure for figure in drawn if figure is not None]


def _reward(
  arms: list[_Arm], thresholds: tuple[float, ...], window: int
) -> Figure:
  figure, grid = _panels(arms, rows=2, columns=2, height=6.6)
  for panel, budget in zip(grid.flat, _AXIS_LABELS, strict=True):
    _draw_curves(panel, arms, budget, 'reward', window)
    panel.set_ylabel(f'reward{_smoothed(window)}')
    for threshold in thresholds:
      panel.axhline(threshold, color='#b3b3b3', linewidth=1, dashes=(2, 2))
  return Figure(
    'reward',
    'Reward of fresh rollouts against four budgets: higher at equal budget is '
    'better, and further left at equal reward is cheaper. Dashed lines are the '
    f'thresholds of the table. {_line_reading(window)}',
    _png(figure),
  )


def _entropy(arms: list[_Arm], window: int) -> Figure | None:
  if not any(_has(arm.run, 'entropy') for arm in arms):
    return None
  figure, grid = _panels(arms, rows=1, columns=1, height=4.0)
  _draw_curves(grid[0, 0], arms, runs.TOKENS, 'entropy', window)
  grid[0, 0].set_ylabel(f'entropy, nats per token{_smoothed(window)}')
  grid[0, 0].set_ylim(bottom=0)
  return Figure(
    'entropy',
    'Entropy of the policy on fresh rollouts only: an arm that keeps more at '
    f'equal reward explores more. {_line_reading(window)}',
    _png(figure),
  )


def _off_policy(arms: list[_Arm], window: int) -> Figure | None:
  keys = [
    key for key in _OFF_POLICY if any(_has(arm.run, key) for arm in arms)
  ]
  if not keys:
    return None
  num_rows = math.ceil(len(keys) / 2)
  figure, grid = _panels(arms, rows=num_rows, columns=2, height=2.8 * num_rows)
  for panel, key in zip(grid.flat, keys, strict=False):
    _draw_curves(panel, arms, runs.TOKENS, key, window)
    panel.set_title(_OFF_POLICY[key])
    panel.set_ylim(bottom=0)
  for panel in list(grid.flat)[len(keys) :]:
    panel.remove()
  return Figure(
    'off_policy',
    'How far the learner is from the policies that sampled its batches: a '
    'falling effective sample size, or rising ratios, clipping and gradient '
    f'norms, say that reuse goes too far. {_line_reading(window)}',
    _png(figure),
  )


def _histograms(arms: list[_Arm]) -> Figure | None:
  keys = [
    key
    for key in _HISTOGRAMS
    if any(_total(arm.run, key) > 0 for arm in arms)
  ]
  if not keys:
    return None
  figure, grid = _panels(arms, rows=len(keys), columns=1, height=2.5 * len(keys))
  for panel, key in zip(grid.flat, keys, strict=True):
    _draw_histogram(panel, arms, key)
  caption = (
    'Sums over the run and its seeds, as a share of each arm: how old rollouts '
    'were when used, how often each was used in its life, and how many learner '
    "steps lay between two uses ('new' is a first use). A last bin labelled "
    "'≥ n' also holds all that is larger; bars that are cut at the top are "
    'named with their height.'
  )
  for key in keys:
    absent = [arm.run.name for arm in arms if _total(arm.run, key) == 0]
    if absent:
      caption += f' Not recorded for {key!r}: {", ".join(absent)}.'
  return Figure('histograms', caption, _png(figure))


def _evaluation(arms: list[_Arm]) -> Figure | None:
  ks = sorted(
    {
      int(match[1])
      for arm in arms
      for key in arm.run.values
      if (match := _PASS_AT.fullmatch(key)) and _has(arm.run, key)
    }
  )
  if not ks:
    return None
  single = next(
    key
    for key in ('eval/greedy', 'eval/mean_at_n', f'eval/pass_at_{ks[0]}')
    if any(_has(arm.run, key) for arm in arms)
  )
  figure, (panels,) = _panels(arms, rows=1, columns=2, height=3.8)
  _draw_curves(panels[0], arms, runs.TOKENS, single, 1)
  for index, arm in enumerate(arms):
    _draw_best_pass_at_k(panels[1], arm, ks, index - (len(arms) - 1) / 2)
  panels[0].set_ylabel(f'{single}, held-out prompts')
  panels[1].set(
    xlabel='k, samples per prompt',
    ylabel='best pass@k of the run',
    xticks=range(len(ks)),
    xticklabels=ks,
  )
  return Figure(
    'evaluation',
    f'Left: {single} at each evaluation, median and quartiles over seeds. '
    'Right: for each k the highest median over seeds of all evaluations, with '
    'the quartiles there; being a maximum, it flatters runs with more '
    'evaluations.',
    _png(figure),
  )


def _draw_curves(
  panel: mpl_axes.Axes, arms: list[_Arm], budget: str, key: str, window: int
) -> None:
  is_drawn = [_draw_curve(panel, arm, budget, key, window) for arm in arms]
  if not any(is_drawn):
    panel.text(0.5, 0.5, 'not recorded', transform=panel.transAxes, ha='center')
  panel.set_xlabel(_AXIS_LABELS[budget])
  panel.set_xlim(left=0)
  panel.xaxis.set_major_formatter(ticker.EngFormatter(sep=''))
  panel.xaxis.set_major_locator(ticker.MaxNLocator(6))


def _draw_curve(
  panel: mpl_axes.Axes, arm: _Arm, budget: str, key: str, window: int
) -> bool:
  """Draws median and quartiles of a curve; False if there is nothing."""
  values = curves.trailing_mean(arm.run.column(key), window)
  grid, values = curves.on_common_axis(arm.run.column(budget), values)
  if not grid.size:
    return False
  low, middle, high = curves.quartiles(values)
  panel.plot(grid, middle, color=arm.color, ls=arm.dash)
  panel.fill_between(grid, low, high, color=arm.color, alpha=0.18, linewidth=0)
  return True


def _draw_best_pass_at_k(
  panel: mpl_axes.Axes, arm: _Arm, ks: list[int], offset: float
) -> None:
  """Draws, for each k, the evaluation with the highest median over seeds."""
  points = []
  for place, k in enumerate(ks):
    values = arm.run.column(f'eval/pass_at_{k}')
    values = values[:, np.isfinite(values).all(axis=0)]
    if values.shape[1]:
      summary = curves.quartiles(values)
      points.append((place, *summary[:, np.argmax(summary[1])]))
  if points:
    places, low, middle, high = np.array(points).T
    panel.errorbar(
      places + 0.06 * offset,
      middle,
      yerr=[middle - low, high - middle],
      color=arm.color,
      ls=arm.dash,
      marker='o',
      markersize=5,
      capsize=2.5,
    )


def _draw_histogram(panel: mpl_axes.Axes, arms: list[_Arm], key: str) -> None:
  known = [arm for arm in arms if _total(arm.run, key) > 0]
  num_bins = min(len(arm.run.histograms[key]) for arm in known)
  counts = np.stack([fold(arm.run.histograms[key], num_bins) for arm in known])
  shares = 100 * counts / counts.sum(axis=1, keepdims=True)
  num_shown = 1 + int(np.flatnonzero(counts.sum(axis=0))[-1])
  width = 0.84 / len(known)
  for index, (arm, share) in enumerate(zip(known, shares, strict=True)):
    panel.bar(
      np.arange(num_shown) + (index - (len(known) - 1) / 2) * width,
      share[:num_shown],
      width=width,
      color=arm.color,
    )
  labels = bin_labels(num_bins, has_new=key == 'steps_since_last_use')
  ticks = _sparse(num_shown)
  xlabel, ylabel = _HISTOGRAMS[key]
  # An arm with all in one bin would flatten the others: its bar is cut.
  top = min(shares.max(), 3 * shares.max(axis=1).min())
  panel.set(
    xlabel=xlabel,
    ylabel=ylabel,
    xticks=ticks,
    xticklabels=[labels[tick] for tick in ticks],
    xlim=(-0.6, num_shown - 0.4),
    ylim=(0, 1.05 * top),
  )
  panel.grid(False, axis='x')
  for line, (index, place) in enumerate(np.argwhere(shares > 1.05 * top)):
    panel.text(
      0.99,
      0.93 - 0.11 * line,
      f'cut: {_label(known[index].run.name)}, {shares[index, place]:.0f} % '
      f'at {labels[place]}',
      color=known[index].color,
      transform=panel.transAxes,
      ha='right',
      va='top',
    )


def fold(counts: np.ndarray, num_bins: int) -> np.ndarray:
  """Adds all bins from `num_bins - 1` on, so that the last holds the rest."""
  head = counts[: num_bins - 1]
  return np.append(head, counts[num_bins - 1 :].sum())


def bin_labels(num_bins: int, *, has_new: bool) -> list[str]:
  """Names the bins of a histogram whose last bin is open.

  Args:
    num_bins: bins in all.
    has_new: whether the first bin counts first uses, before the bin for 0.

  Returns:
    `num_bins` labels, such as new, 0, 1, ≥ 2.
  """
  first = ['new'] if has_new else []
  last = num_bins - len(first) - 1
  return [*first, *map(str, range(last)), f'≥ {last}'][:num_bins]


def _sparse(num_bins: int) -> list[int]:
  """Returns about 24 bins to label, always the first and the last."""
  stride = max(1, math.ceil(num_bins / 24))
  last = num_bins - 1
  ticks = [tick for tick in range(0, num_bins, stride) if last - tick >= stride]
  return [*ticks, last]


def _style(arms: list[runs.Run], baseline: str) -> list[_Arm]:
  styled = []
  place = 0
  for run in arms:
    if run.name == baseline:
      styled.append(_Arm(run, _BASELINE_COLOR, '-'))
      continue
    turn, color = divmod(place, len(_COLORS))
    styled.append(_Arm(run, _COLORS[color], _DASHES[turn % len(_DASHES)]))
    place += 1
  return styled


def _panels(
  arms: list[_Arm], *, rows: int, columns: int, height: float
) -> tuple[mpl_figure.Figure, np.ndarray]:
  """Returns a figure with the arms' legend above `[rows, columns]` panels."""
  labels = [_label(arm.run.name) for arm in arms]
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


def _label(name: str) -> str:
  """Returns a name that matplotlib shows as it is: no mathematics."""
  short = name if len(name) <= 60 else name[:59] + '…'
  return short.replace('$', r'\$')


def _has(run: runs.Run, key: str) -> bool:
  return bool(np.isfinite(run.column(key)).any())


def _total(run: runs.Run, key: str) -> int:
  return int(run.histograms.get(key, np.zeros(1)).sum())


def _smoothed(window: int) -> str:
  return f', mean of {window} iterations' if window > 1 else ''


def _line_reading(window: int) -> str:
  smoothing = (
    f', each seed averaged over the last {window} iterations'
    if window > 1
    else ''
  )
  return f'Line: median over seeds; band: quartiles{smoothing}.'


def _png(figure: mpl_figure.Figure) -> bytes:
  """Returns the same bytes for the same figure: no software, no date."""
  stream = io.BytesIO()
  figure.savefig(stream, format='png', metadata={'Software': None})
  return stream.getvalue()
