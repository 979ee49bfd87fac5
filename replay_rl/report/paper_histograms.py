"""Figure A2: staleness, reuse and steps since last use, with closed forms."""

import math
from typing import Any

import numpy as np
from matplotlib import axes as mpl_axes

from replay_rl.report import closed_forms
from replay_rl.report import drawing
from replay_rl.report import figures
from replay_rl.report import sweep_data
from replay_rl.report import sweep_drawing
from replay_rl.report import sweep_runs

_TITLES = {
  'staleness': 'staleness of a use, learner steps',
  'uses': 'uses of a rollout',
  'steps_since_last_use': 'learner steps since the last use',
}
# All uses of a run are a fixed number, so their mean per rollout is too.
_LACKING_DEGREES = {'staleness': 0, 'uses': 1, 'steps_since_last_use': 0}
_MOST_RUNS = 10  # Drawn.
_BARS, _LINE = '#9ecae1', '#d55e00'


@sweep_drawing.styled
def draw(sweep: sweep_data.Sweep, name: str) -> sweep_drawing.DataFigure:
  """Draws the histograms of each arm beside what is expected of them."""
  rows: list[tuple[Any, ...]] = []
  found, reasons = [], {}
  for arm in sweep.arms:
    for cell in dict.fromkeys(seed.cell for seed in arm.seeds):
      run = sweep_runs.histograms_of(sweep, cell)
      model, reason = _model(run)
      expected = _expected(run, model)
      compared = {
        key: _compare(run.counts[key], expected.get(key), key)
        for key in _TITLES
      }
      for key, (fit, lines) in compared.items():
        rows += [(arm.name, cell, key, *line, *fit) for line in lines]
      if reason:
        reasons[cell] = reason
      found.append((model, cell, compared))
  # The longest run of each buffer is drawn; those without a closed form last.
  found.sort(key=lambda one: one[0].num_iterations if one[0] else 0)
  different = {
    model._replace(num_iterations=0) if model else cell: (cell, one)
    for model, cell, one in found
  }
  shown = sorted(different.values(), key=lambda one: one[0] in reasons)
  shown = shown[:_MOST_RUNS]
  figure, axes = sweep_drawing.framed(
    [
      ('run', sweep_drawing.Look(_BARS, '-')),
      ('closed form', sweep_drawing.Look(_LINE, '-')),
    ],
    '',
    rows=len(shown),
    columns=len(_TITLES),
    height=1.9 * len(shown) + 0.6,
  )
  for panels, (cell, compared) in zip(axes, shown, strict=True):
    for (key, title), panel in zip(_TITLES.items(), panels, strict=True):
      fit, lines = compared[key]
      _draw(panel, lines, fit)
      panel.set_xlabel(title if cell == shown[-1][0] else '')
    panels[0].set_title(drawing.label(cell))
  caption = (
    'Bars: all seeds and iterations of a run, as a share. Line: what is '
    'exactly expected of a ring that is sampled uniformly with replacement, '
    'from its first iteration on. p: of a chi-square test; TV: total variation '
    'distance of the two. The last bin holds all that is larger; '
    "'new' is a first use."
  )
  if len(found) > len(shown):
    caption += (
      f' Drawn are {len(shown)} of {len(found)} runs; the table has all.'
    )
  if reasons:
    listed = ', '.join(dict.fromkeys(reasons.values()))
    caption += f' {len(reasons)} runs have no closed form: {listed}.'
  return sweep_drawing.DataFigure(
    name,
    caption,
    drawing.png(figure),
    (
      *('arm', 'cell', 'histogram', 'bin', 'count', 'expected'),
      *('p_value', 'total_variation'),
    ),
    rows,
  )


def _model(
  run: sweep_runs.Histograms,
) -> tuple[closed_forms.Synchronous | None, str]:
  """Returns the model of a run, or None and the reason."""
  if not run.is_every_update_applied:
    return None, 'some updates were empty or refused'
  return closed_forms.model_of(run.config, run.num_iterations)


def _expected(
  run: sweep_runs.Histograms, model: closed_forms.Synchronous | None
) -> dict[str, np.ndarray]:
  """Returns the expected counts of a run, or none without a model."""
  if model is None:
    return {}
  bins = {key: len(counts) for key, counts in run.counts.items()}
  expected = {
    'staleness': closed_forms.staleness(model, bins['staleness']),
    'uses': closed_forms.uses(model, bins['uses'], with_stored=run.with_stored),
    'steps_since_last_use': closed_forms.steps_since_last_use(
      model, bins['steps_since_last_use'] - 1
    ),
  }
  return {key: run.num_seeds * x for key, x in expected.items()}


def _compare(
  counts: np.ndarray, expected: np.ndarray | None, key: str
) -> tuple[closed_forms.Fit, list[tuple[str, int, float]]]:
  """Returns the fit, and (bin, count, expected count) up to the last used."""
  fit = closed_forms.Fit(math.nan, math.nan)
  if expected is None:
    wanted = np.full(len(counts), math.nan)
  else:
    wanted = expected
    if counts.sum():
      fit = closed_forms.fit(counts, expected, ddof=_LACKING_DEGREES[key])
  labels = figures.bin_labels(
    len(counts), has_new=key == 'steps_since_last_use'
  )
  is_used = (counts > 0) | (np.nan_to_num(wanted) >= 0.5)
  num_shown = 1 + int(np.flatnonzero(is_used)[-1]) if is_used.any() else 1
  lines = [
    (label, int(count), float(one))
    for label, count, one in zip(labels, counts, wanted, strict=True)
  ]
  return fit, lines[:num_shown]


def _draw(
  panel: mpl_axes.Axes,
  lines: list[tuple[str, int, float]],
  fit: closed_forms.Fit,
) -> None:
  labels, counts, expected = zip(*lines, strict=True)
  total = max(1, sum(counts))
  places = np.arange(len(labels))
  panel.bar(places, 100 * np.array(counts) / total, color=_BARS, width=0.9)
  if not math.isnan(expected[0]):
    panel.plot(
      places,
      100 * np.array(expected) / max(sum(expected), 1e-12),
      color=_LINE,
      marker='.',
      linewidth=1.2,
    )
    panel.text(
      *(0.98, 0.95, f'p = {fit.p_value:.2g}, TV = {fit.total_variation:.3f}'),
      transform=panel.transAxes,
      ha='right',
      va='top',
      fontsize=8,
      bbox={'color': 'white', 'alpha': 0.7, 'pad': 1},
    )
  ticks = range(0, len(labels), math.ceil(len(labels) / 12))
  panel.set_xticks(ticks, [labels[i] for i in ticks])
  panel.set_ylabel('%')
  panel.set_ylim(0, 1.3 * panel.get_ylim()[1])  # Room for the text.
  panel.grid(False, axis='x')
