"""Colours, panels and files that the figures of a sweep share.

A hundred arms stay readable: they are spread over small panels by one field,
coloured by another and dashed by a third; the legend names the values of these
fields, not the arms.
"""

import csv
import functools
import io
import math
import pathlib
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple
from typing import ParamSpec

import matplotlib
import numpy as np
import rich.console
from matplotlib import axes as mpl_axes
from matplotlib import colors as mpl_colors
from matplotlib import figure as mpl_figure
from matplotlib import lines as mpl_lines
from matplotlib import ticker

from replay_rl.report import drawing
from replay_rl.report import sweep_data

FEW = 6  # So many arms have a colour, a band and a name of their own.
_MAX_NAMES = 12  # Of values in a legend.
_MAX_PANELS = 16
_MAX_COLUMNS = 4
_COLORS = ('#0072b2', '#d55e00', '#009e73', '#cc79a7', '#e69f00', '#56b4e9')
_DASHES = ('-', '--', ':')
GREY = '#4d4d4d'
P = ParamSpec('P')


class DataFigure(NamedTuple):
  """A figure and the numbers that are drawn in it.

  name: of its files, without ending.
  caption: how to read it.
  png: the image.
  columns, rows: the numbers, as a table.
  """

  name: str
  caption: str
  png: bytes
  columns: tuple[str, ...]
  rows: list[tuple[Any, ...]]


class Look(NamedTuple):
  """How the curve of an arm is drawn."""

  color: str
  dash: str


class Layout(NamedTuple):
  """Which panel and which look each arm has.

  panels: title -> the arms in it.
  looks: name of an arm -> its look.
  legend: (text, look) of each line of the legend.
  heading: what the legend tells, such as 'colour: learning_rate'.
  """

  panels: dict[str, list[sweep_data.SweptArm]]
  looks: dict[str, Look]
  legend: list[tuple[str, Look]]
  heading: str


def layout(
  sweep: sweep_data.Sweep, *, panels: str | None, color: str | None
) -> Layout:
  """Decides the panels and colours of the arms.

  Args:
    sweep: what was run.
    panels: field with a panel for each value; None for the first that names the
      arms, if they are many.
    color: field with a colour for each value; None for the next that names
      them. Up to `FEW` arms have colours of their own, if neither is given.

  Raises:
    ValueError: the arms do not differ in such a field, or there would be too
      many panels.
  """
  arms = sweep.arms
  if panels is None and color is None and len(arms) <= FEW:
    looks = {
      arm.name: Look(shade, '-')
      for arm, shade in zip(arms, _COLORS, strict=False)
    }
    return Layout({'': list(arms)}, looks, shortened(looks), '')
  free = [x for x in sweep.naming_fields() if x not in (panels, color)]
  if panels is None and len(free) > (color is None):
    if len(sweep.values(free[0])) <= _MAX_PANELS:
      panels = free.pop(0)
  if color is None:
    color = free.pop(0) if free else panels
  in_panels = (
    {
      f'{sweep_data.label(panels)} = {value}': [
        arm for arm in arms if arm.fields[panels] == value
      ]
      for value in sweep.values(panels)
    }
    if panels
    else {'': list(arms)}
  )
  if len(in_panels) > _MAX_PANELS:
    raise ValueError(
      f'panels = {panels!r}: must have at most {_MAX_PANELS} values, and has '
      f'{len(in_panels)}'
    )
  shades = colors(sweep.values(color)) if color else {}
  few = [x for x in free if len(sweep.values(x)) <= len(_DASHES)]
  dashed = few[0] if few else None
  dashes = (
    dict(zip(sweep.values(dashed), _DASHES, strict=False)) if dashed else {}
  )
  looks = {
    arm.name: Look(
      shades[arm.fields[color]] if color else GREY,
      dashes[arm.fields[dashed]] if dashed else '-',
    )
    for arm in arms
  }
  legend = [(x, Look(shades[x], '-')) for x in some(list(shades))]
  heading = f'colour: {sweep_data.label(color)}' if color else ''
  if dashed:
    legend += [
      (f'{sweep_data.label(dashed)} = {value}', Look(GREY, dash))
      for value, dash in dashes.items()
    ]
  return Layout(in_panels, looks, legend, heading)


def shortened(looks: Mapping[str, Look]) -> list[tuple[str, Look]]:
  """Returns the legend of a few arms, without what all of their names say."""
  names = [name.split(',') for name in looks]
  common = set.intersection(*map(set, names)) if len(names) > 1 else set()
  return [
    (', '.join(x for x in parts if x not in common) or ','.join(parts), look)
    for parts, look in zip(names, looks.values(), strict=True)
  ]


def some(values: list[str]) -> list[str]:
  """Returns at most 12 of the values, evenly spaced, with first and last."""
  if len(values) <= _MAX_NAMES:
    return values
  places = np.linspace(0, len(values) - 1, _MAX_NAMES).round().astype(int)
  return [values[i] for i in places]


def colors(values: Sequence[str]) -> dict[str, str]:
  """Returns a colour for each value: numbers go from dark to light.

  Texts have the colours of a report of runs; beside numbers, or if they are too
  many, the first is grey and the others go from dark to light too.
  """
  numbers = [x for x in values if sweep_data.number(x) is not None]
  texts = [x for x in values if x not in numbers]
  if not numbers and len(texts) <= len(_COLORS):
    return dict(zip(texts, _COLORS, strict=False))
  scaled = [*numbers, *texts[1:]]
  scale = matplotlib.colormaps['viridis']
  # Its last part is too light for a line on white.
  places = np.linspace(0, 0.88, len(scaled)) if len(scaled) > 1 else [0.3]
  of_scale = {
    value: mpl_colors.to_hex(scale(place))
    for value, place in zip(scaled, places, strict=True)
  }
  return of_scale | dict.fromkeys(texts[:1], GREY)


def grid(
  arranged: Layout, *, height: float
) -> tuple[mpl_figure.Figure, list[tuple[str, mpl_axes.Axes]]]:
  """Returns a figure with its legend above a panel for each title.

  Args:
    arranged: panels and legend.
    height: of a row of panels in inches.
  """
  titles = list(arranged.panels)
  num_columns = min(_MAX_COLUMNS, len(titles))
  num_rows = math.ceil(len(titles) / num_columns)
  figure, axes = framed(
    arranged.legend,
    arranged.heading,
    rows=num_rows,
    columns=num_columns,
    height=height * num_rows,
    is_shared=len(titles) > 1,
  )
  places = list(axes.flat)
  for empty in places[len(titles) :]:
    empty.remove()
  for title, panel in zip(titles, places, strict=False):
    panel.set_title(drawing.label(title))
  return figure, list(zip(titles, places, strict=False))


def framed(
  legend: Sequence[tuple[str, Look]],
  heading: str,
  *,
  rows: int,
  columns: int,
  height: float,
  is_shared: bool = False,
) -> tuple[mpl_figure.Figure, np.ndarray]:
  """Returns a figure with a legend above `[rows, columns]` panels.

  Args:
    legend: (text, look) of each line.
    heading: before them.
    rows, columns: of panels.
    height: of all panels, in inches.
    is_shared: whether all panels have the same axes.
  """
  labels = [drawing.label(text) for text, _ in legend]
  widest = max(map(len, [heading, *labels]), default=0) + 8
  num_columns = max(1, min(len(legend), 110 // widest))
  num_lines = math.ceil(len(legend) / num_columns) + bool(heading)
  figure = mpl_figure.Figure(
    figsize=(10.0, height + 0.25 * num_lines), layout='constrained'
  )
  axes = figure.subplots(
    rows, columns, squeeze=False, sharex=is_shared, sharey=is_shared
  )
  if legend:
    figure.legend(
      [
        mpl_lines.Line2D([], [], color=look.color, ls=look.dash, linewidth=3)
        for _, look in legend
      ],
      labels,
      loc='outside upper left',
      ncols=num_columns,
      title=heading or None,
      alignment='left',
    )
  return figure, axes


def styled(draw: Callable[P, DataFigure]) -> Callable[P, DataFigure]:
  """Returns the function, which draws in the style of the report."""

  @functools.wraps(draw)
  def drawn(*args: P.args, **kwargs: P.kwargs) -> DataFigure:
    with matplotlib.rc_context(drawing.STYLE):
      return draw(*args, **kwargs)

  return drawn


def in_units(panel: mpl_axes.Axes) -> None:
  """Writes the numbers of the horizontal axis as 10k and not as 10000."""
  panel.xaxis.set_major_formatter(ticker.EngFormatter(sep=''))
  panel.xaxis.set_major_locator(ticker.MaxNLocator(5))


def write(figure: DataFigure, out: pathlib.Path) -> None:
  """Writes the image, and the table beside it, into a folder that exists."""
  (out / f'{figure.name}.png').write_bytes(figure.png)
  text = to_csv(figure.columns, figure.rows)
  (out / f'{figure.name}.csv').write_text(text, 'utf-8')


def say(
  console: rich.console.Console, figure: DataFigure, out: pathlib.Path
) -> None:
  """Prints where a figure is, and how to read it, in one line."""
  console.print(
    f'{out / figure.name}.png: {figure.caption}',
    highlight=False,
    markup=False,
    soft_wrap=True,
  )


def to_csv(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
  """Returns a table as CSV; what is not known is empty, `inf` is never."""
  text = io.StringIO()
  writer = csv.writer(text, lineterminator='\n')
  writer.writerow(columns)
  for row in rows:
    writer.writerow([_plain(value) for value in row])
  return text.getvalue()


def _plain(value: Any) -> Any:
  if value is None:
    return ''
  if isinstance(value, float | np.floating):
    return '' if math.isnan(value) else f'{value:.10g}'
  return value
