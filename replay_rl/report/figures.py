"""The report's figures, drawn with matplotlib and returned as PNG.

Lines are medians over seeds, bands the quartiles, after each seed's curve was
averaged over windows of equally many rollouts and put on a common axis.
"""

import math
import re
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib import axes as mpl_axes

from replay_rl.report import curves
from replay_rl.report import drawing
from replay_rl.report import readings
from replay_rl.report import runs

_OFF_POLICY = {
  'ess': 'effective sample size',
  'abs_log_ratio/replayed': 'mean |log ratio| of replayed tokens',
  'clip_fraction/replayed': 'clipped share of replayed tokens',
  'output_projection_grad_norm': 'gradient norm of the output projection',
}
_HISTOGRAMS = {
  'staleness': ('staleness of a use, learner steps', '% of uses'),
  'uses': ('uses of an inserted rollout', '% of rollouts'),
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


def make(
  arms: list[runs.Run],
  *,
  baseline: str,
  thresholds: tuple[float, ...],
  rule: readings.Rule,
) -> list[Figure]:
  """Draws all figures that the runs hold values for.

  Args:
    arms: runs with different names.
    baseline: name of the arm drawn in grey.
    thresholds: levels marked in the figure of the score that is read.
    rule: how levels are read, from `readings.choose` on these arms.

  Returns:
    The figures, in the order of the page.
  """
  styled = drawing.style(arms, baseline)
  with matplotlib.rc_context(drawing.STYLE):
    drawn = [
      _held_out(styled, thresholds if rule.score == runs.GREEDY else ()),
      _reward(
        styled, thresholds if rule.score == 'reward' else (), rule.window
      ),
      _entropy(styled, rule.window),
      _histograms(styled),
      _off_policy(styled, rule.window),
      _evaluation(styled),
    ]
    return [figure for figure in drawn if figure is not None]


def _held_out(
  arms: list[drawing.StyledRun], thresholds: tuple[float, ...]
) -> Figure | None:
  if not any(_has(arm.run, runs.GREEDY) for arm in arms):
    return None
  figure, (panels,) = drawing.panels(arms, rows=1, columns=2, height=3.8)
  for panel, budget in zip(panels, (runs.COST, runs.SECONDS), strict=True):
    drawing.draw_curves(panel, arms, budget, runs.GREEDY, None)
    _mark(panel, thresholds)
  panels[0].set_ylabel(f'{runs.GREEDY}, held-out prompts')
  return Figure(
    'held_out',
    'Mean reward of greedy responses to held-out prompts, at each evaluation, '
    'against cost and against wall-clock. Line: median over seeds; band: '
    f'quartiles.{_LEVELS if thresholds else ""}',
    drawing.png(figure),
  )


_LEVELS = ' Dashed lines are the levels of the table.'


def _mark(panel: mpl_axes.Axes, thresholds: tuple[float, ...]) -> None:
  for threshold in thresholds:
    panel.axhline(threshold, color='#b3b3b3', linewidth=1, dashes=(2, 2))


def _reward(
  arms: list[drawing.StyledRun], thresholds: tuple[float, ...], window: int
) -> Figure:
  figure, grid = drawing.panels(arms, rows=2, columns=2, height=6.6)
  for panel, budget in zip(grid.flat, drawing.BUDGET_LABELS, strict=True):
    drawing.draw_curves(panel, arms, budget, 'reward', window)
    panel.set_ylabel(f'reward{_smoothed(window)}')
    _mark(panel, thresholds)
  return Figure(
    'reward',
    'Reward of fresh rollouts against four budgets: higher at equal budget is '
    'better, and further left at equal reward is cheaper. '
    f'{_line_reading(window)}{_LEVELS if thresholds else ""}',
    drawing.png(figure),
  )


def _entropy(arms: list[drawing.StyledRun], window: int) -> Figure | None:
  if not any(_has(arm.run, 'entropy') for arm in arms):
    return None
  figure, grid = drawing.panels(arms, rows=1, columns=1, height=4.0)
  drawing.draw_curves(grid[0, 0], arms, runs.TOKENS, 'entropy', window)
  grid[0, 0].set_ylabel(f'entropy, nats per token{_smoothed(window)}')
  grid[0, 0].set_ylim(bottom=0)
  return Figure(
    'entropy',
    'Entropy of the policy on fresh rollouts only: an arm that keeps more at '
    f'equal reward explores more. {_line_reading(window)}',
    drawing.png(figure),
  )


def _off_policy(arms: list[drawing.StyledRun], window: int) -> Figure | None:
  keys = [key for key in _OFF_POLICY if any(_has(arm.run, key) for arm in arms)]
  if not keys:
    return None
  num_rows = math.ceil(len(keys) / 2)
  figure, grid = drawing.panels(
    arms, rows=num_rows, columns=2, height=2.8 * num_rows
  )
  for panel, key in zip(grid.flat, keys, strict=False):
    drawing.draw_curves(panel, arms, runs.TOKENS, key, window)
    panel.set_title(_OFF_POLICY[key])
    panel.set_ylim(bottom=0)
  for panel in list(grid.flat)[len(keys) :]:
    panel.remove()
  return Figure(
    'off_policy',
    'How far the learner is from the policies that sampled its batches: a '
    'falling effective sample size, or rising ratios, clipping and gradient '
    f'norms, say that reuse goes too far. {_line_reading(window)}',
    drawing.png(figure),
  )


def _histograms(arms: list[drawing.StyledRun]) -> Figure | None:
  keys = [
    key for key in _HISTOGRAMS if any(_total(arm.run, key) > 0 for arm in arms)
  ]
  if not keys:
    return None
  figure, grid = drawing.panels(
    arms, rows=len(keys), columns=1, height=2.5 * len(keys)
  )
  for panel, key in zip(grid.flat, keys, strict=True):
    _draw_histogram(panel, arms, key)
  caption = (
    'Sums over the run and its seeds, as a share of each arm: how old rollouts '
    'were when used, how often each that was inserted was used, and how many '
    "learner steps lay between two uses ('new' is a first use). A last bin "
    "labelled '≥ n' also holds all that is larger; bars that are cut at the "
    'top are named with their height.'
  )
  for key in keys:
    absent = [arm.run.name for arm in arms if _total(arm.run, key) == 0]
    if absent:
      caption += f' Not recorded for {key!r}: {", ".join(absent)}.'
  return Figure('histograms', caption, drawing.png(figure))


def _evaluation(arms: list[drawing.StyledRun]) -> Figure | None:
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
    for key in (runs.GREEDY, 'eval/mean_at_n', f'eval/pass_at_{ks[0]}')
    if any(_has(arm.run, key) for arm in arms)
  )
  figure, (panels,) = drawing.panels(arms, rows=1, columns=2, height=3.8)
  drawing.draw_curves(panels[0], arms, runs.TOKENS, single, None)
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
    drawing.png(figure),
  )


def _draw_best_pass_at_k(
  panel: mpl_axes.Axes, arm: drawing.StyledRun, ks: list[int], offset: float
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


def _draw_histogram(
  panel: mpl_axes.Axes, arms: list[drawing.StyledRun], key: str
) -> None:
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
      hatch=drawing.HATCHES[arm.dash],
      edgecolor='white',
      linewidth=0,
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
    name = drawing.label(known[index].run.name)
    panel.text(
      0.99,
      0.93 - 0.11 * line,
      f'cut: {name}, {shares[index, place]:.0f} % at {labels[place]}',
      color=known[index].color,
      transform=panel.transAxes,
      ha='right',
      va='top',
      bbox={'color': 'white', 'pad': 1},
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


def _has(run: runs.Run, key: str) -> bool:
  return bool(np.isfinite(run.column(key)).any())


def _total(run: runs.Run, key: str) -> int:
  return int(run.histograms.get(key, np.zeros(1)).sum())


def _smoothed(window: int) -> str:
  return f', mean of {window:,} rollouts'


def _line_reading(window: int) -> str:
  return (
    'Line: median over seeds; band: quartiles, each seed averaged over centred '
    f'windows of {window:,} rollouts, against what was spent before them.'
  )
