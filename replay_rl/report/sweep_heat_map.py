"""A map of a value of the arms of a sweep over two fields."""

import itertools
import math
from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np
from matplotlib import axes as mpl_axes

from replay_rl.report import drawing
from replay_rl.report import sweep_data
from replay_rl.report import sweep_drawing
from replay_rl.report import words

_MOST_NUMBERS = 144  # Written into a panel.


@sweep_drawing.styled
def heat_map(
  sweep: sweep_data.Sweep,
  x: str,
  y: str,
  values: Mapping[str, float],
  *,
  panels: str | None,
  name: str,
  what: str,
  is_low_best: bool,
) -> sweep_drawing.DataFigure:
  """Draws a value of the arms over two fields.

  Arms that differ in other fields too share a place, which shows the best.

  Args:
    sweep: what was run.
    x, y: fields.
    values: name of an arm -> value, infinite or NaN where there is none.
    panels: field with a map for each value, or None.
    name: of the files.
    what: the value, in words.
    is_low_best: whether a low value is a good one.
  """
  titles = sweep.values(panels) if panels else ['']
  xs, ys = sweep.values(x), sweep.values(y)
  maps = np.full((len(titles), len(ys), len(xs)), math.nan)
  rows = []
  for (i, title), (j, of_y), (k, of_x) in itertools.product(
    enumerate(titles), enumerate(ys), enumerate(xs)
  ):
    here = [
      arm
      for arm in sweep.arms
      if (arm.fields[x], arm.fields[y]) == (of_x, of_y)
      and (panels is None or arm.fields[panels] == title)
    ]
    known = [arm for arm in here if math.isfinite(values[arm.name])]
    choose = min if is_low_best else max
    best = choose(known, key=lambda arm: values[arm.name], default=None)
    if best is not None:
      maps[i, j, k] = values[best.name]
    rows.append(
      (title, of_x, of_y, len(here), best and best.name, maps[i, j, k])
    )
  num_columns = min(len(titles), 2 if len(xs) > 5 else 4)
  num_rows = math.ceil(len(titles) / num_columns)
  figure, axes = sweep_drawing.framed(
    [],
    '',
    rows=num_rows,
    columns=num_columns,
    height=num_rows * max(2.6, min(8.0, 1.2 + 0.32 * len(ys))),
  )
  places = list(axes.flat)
  for empty in places[len(titles) :]:
    empty.remove()
  counts = {(row[0], row[1], row[2]): row[3] for row in rows}
  image = None
  for title, panel, of_title in zip(titles, places, maps, strict=False):
    image = panel.imshow(
      of_title,
      aspect='auto',
      origin='lower',
      cmap='viridis_r' if is_low_best else 'viridis',
      vmin=np.nanmin(maps) if np.isfinite(maps).any() else 0,
      vmax=np.nanmax(maps) if np.isfinite(maps).any() else 1,
    )
    _tick(panel, xs, ys, 90 / num_columns)
    panel.set(xlabel=sweep_data.label(x), ylabel=sweep_data.label(y))
    if panels:
      panel.set_title(drawing.label(f'{sweep_data.label(panels)} = {title}'))
    for (j, of_y), (k, of_x) in itertools.product(enumerate(ys), enumerate(xs)):
      if counts[title, of_x, of_y] and math.isnan(of_title[j, k]):
        panel.text(k, j, '×', ha='center', va='center', color='#b22222')
    if of_title.size <= _MOST_NUMBERS and np.isfinite(of_title).any():
      _write_numbers(panel, of_title, maps, is_low_best)
  if image is not None:
    bar = figure.colorbar(image, ax=places[: len(titles)])
    bar.ax.yaxis.set_major_formatter(lambda x, _: words.amount(x))
    figure.suptitle(what, fontsize=10.5, x=0.01, ha='left')
  return sweep_drawing.DataFigure(
    name,
    f'{what}, of the best arm at each place. White: no arm; a cross: an arm '
    'that has no such value, such as one that never got there.',
    drawing.png(figure),
    (
      *(sweep_data.label(panels) if panels else 'panel', x, y),
      *('arms', 'best_arm', 'value'),
    ),
    rows,
  )


def _tick(
  panel: mpl_axes.Axes, xs: Sequence[str], ys: Sequence[str], width: float
) -> None:
  """Labels at most a dozen of the values on each axis, of so many letters."""
  for values, axis in ((list(xs), panel.xaxis), (list(ys), panel.yaxis)):
    shown = sweep_drawing.some(values)
    axis.set_ticks([values.index(x) for x in shown])
    axis.set_ticklabels([drawing.label(x)[:24] or 'None' for x in shown])
  if sum(min(len(x), 24) + 3 for x in sweep_drawing.some(list(xs))) > width:
    panel.tick_params(axis='x', rotation=90)
  panel.grid(False)


def _write_numbers(
  panel: mpl_axes.Axes, values: np.ndarray, maps: np.ndarray, is_low_best: bool
) -> None:
  middle = (np.nanmin(maps) + np.nanmax(maps)) / 2
  for (j, k), value in np.ndenumerate(values):
    if math.isfinite(value):
      is_dark = (value > middle) == is_low_best
      panel.text(
        *(k, j, words.amount(value)),
        ha='center',
        va='center',
        fontsize=8 if values.size <= 36 else 6,
        color='white' if is_dark else 'black',
      )
