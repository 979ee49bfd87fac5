"""What the arms of a sweep save to reach a level, against mu."""

import math
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np
from matplotlib import axes as mpl_axes

from replay_rl.report import drawing
from replay_rl.report import level_table
from replay_rl.report import levels
from replay_rl.report import sweep_data
from replay_rl.report import sweep_drawing

# Of Qwen2.5-7B and Qwen3-0.6B in "Efficient RL Training for LLMs with
# Experience Replay" (arXiv 2604.08706).
MARKED_MUS = (5.28, 6.84)
MUS = tuple(np.arange(1.0, 20.5, 0.5).tolist())


class Question(NamedTuple):
  """What is asked of a sweep.

  level: of the mean reward of greedy responses.
  num_evaluations: how many in a row must be at the level.
  mu: cost of generating a rollout over that of training on it.
  baseline: name of an arm, or None for the cheapest of those whose name
    begins with `baselines`.
  """

  level: float
  num_evaluations: int
  mu: float
  baseline: str | None
  baselines: str

  def costs(
    self, sweep: sweep_data.Sweep, mu: float | None = None
  ) -> level_table.Costs:
    """Returns what the arms spent, at another mu if one is given."""
    return level_table.costs_of(
      sweep,
      level=self.level,
      num_evaluations=self.num_evaluations,
      mu=self.mu if mu is None else mu,
    )

  def baseline_of(self, costs: level_table.Costs) -> level_table.ArmCosts:
    """Returns the arm that the others are compared with."""
    return level_table.baseline_of(
      costs, name=self.baseline, beginning=self.baselines
    )


@sweep_drawing.styled
def saving(
  sweep: sweep_data.Sweep, question: Question, *, name: str = 'saving'
) -> sweep_drawing.DataFigure:
  """Draws the saving of the arms against mu; a band for those that save most.

  The baseline of each mu is the best one at that mu, so that none of them is
  at a disadvantage where it was not tuned for.
  """
  marks = sorted({*MARKED_MUS, question.mu})
  mus = sorted({*MUS, *marks})
  at = {mu: question.costs(sweep, mu) for mu in mus}
  baselines = {mu: question.baseline_of(costs) for mu, costs in at.items()}
  here = baselines[question.mu]
  candidates = [
    one
    for one in at[question.mu].arms
    if one.arm.name != here.arm.name
    and (
      question.baseline is not None
      or not question.baselines
      or not one.arm.name.startswith(question.baselines)
    )
  ]
  candidates.sort(key=lambda one: one.median)
  shown = [x.arm.name for x in candidates[: sweep_drawing.FEW]]
  looks = {
    arm: sweep_drawing.Look(color, '-')
    for arm, color in zip(
      shown,
      sweep_drawing.colors([f'{i}:' for i in shown]).values(),
      strict=True,
    )
  }
  figure, axes = sweep_drawing.framed(
    sweep_drawing.shortened(looks), '', rows=1, columns=1, height=4.4
  )
  panel, rows = axes[0, 0], []
  for one in reversed(candidates):
    arm = one.arm.name
    lines = []
    for mu in mus:
      costs = next(x for x in at[mu].arms if x.arm.name == arm).costs
      baseline = baselines[mu].costs
      # Only what is drawn with its band pays for a bootstrap.
      compared = (
        levels.compare(costs, baseline, seed=0)
        if arm in looks
        else levels.Comparison(levels.saving(costs, baseline), None, None)
      )
      ends = compared.interval or (math.nan, math.nan)
      lines.append((mu, compared.saving, *ends))
      rows.append((arm, *lines[-1], baselines[mu].arm.name, at[mu].budget))
    _draw_saving(panel, np.array(lines), looks.get(arm))
  panel.axhline(0, color='#808080', linewidth=1)
  for mu in marks:
    panel.axvline(mu, color='#b3b3b3', linewidth=1, dashes=(2, 2))
    panel.text(
      *(mu, 1.01, f'{mu:g}'),
      transform=panel.get_xaxis_transform(),
      ha='right' if mu == MARKED_MUS[0] else 'left',
      fontsize=8,
    )
  panel.set(
    xlabel='mu, cost of generating a rollout over that of training on it',
    ylabel=f'saving of cost to {question.level:g}',
    xlim=(mus[0], mus[-1]),
    ylim=_limits([row for row in rows if row[0] in looks]),
  )
  panel.yaxis.set_major_formatter(lambda x, _: f'{x:.0%}')
  rest = len(candidates) - len(shown)
  return sweep_drawing.DataFigure(
    name,
    'Saving against the best baseline of each mu, which is '
    f'{here.arm.name!r} at {question.mu:g}. Bands: 95 % bootstrap intervals, '
    f'of at least {levels.MIN_SEEDS} seeds. Grey: the other {rest} arms. A '
    'line ends where fewer than half of the seeds got there; it is at 100 % '
    'where those of the baseline did not. Below -100 % nothing is drawn.',
    drawing.png(figure),
    ('arm', 'mu', 'saving', 'low', 'high', 'baseline', 'budget'),
    rows,
  )


def _limits(rows: Sequence[tuple[Any, ...]]) -> tuple[float, float]:
  """Returns the range of the savings and of their bands, within -1 to 1."""
  values = np.array([row[2:5] for row in rows], float)
  values = np.clip(values[np.isfinite(values)], -1, 1)
  return min([0.0, *values]) - 0.05, max([0.1, *values]) + 0.05


def _draw_saving(
  panel: mpl_axes.Axes, lines: np.ndarray, look: sweep_drawing.Look | None
) -> None:
  """Draws `[M, 4]` mu, saving and the ends of its interval."""
  mus, middle, low, high = np.where(np.isfinite(lines), lines, math.nan).T
  if look is None:
    panel.plot(mus, middle, color='#bfbfbf', linewidth=0.8)
    return
  panel.plot(mus, middle, color=look.color)
  # An end at -infinity is a band that goes on below the figure.
  low = np.where(np.isneginf(lines[:, 2]), -99.0, low)
  panel.fill_between(mus, low, high, color=look.color, alpha=0.15, linewidth=0)
