"""Figures of two papers, by their numbers, from the sweeps that they take.

    python -m replay_rl.report figure A3 runs/x

A is "Efficient RL Training for LLMs with Experience Replay" (arXiv 2604.08706)
and B "Rollout-Level Advantage-Prioritized Experience Replay for GRPO" (arXiv
2606.04560). Where arms differ in fields that a figure does not show, it shows
the best of them, see `sweep_curves.best`.
"""

import argparse
import functools
import math
import pathlib
import re
from collections.abc import Callable
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import rich.console

from replay_rl.disk import paths
from replay_rl.report import drawing
from replay_rl.report import paper_histograms
from replay_rl.report import paper_methods
from replay_rl.report import sweep_curves
from replay_rl.report import sweep_data
from replay_rl.report import sweep_drawing
from replay_rl.report import sweep_figures
from replay_rl.report import sweep_heat_map
from replay_rl.report import sweep_report
from replay_rl.report import sweep_runs

_CAPACITY, _COMPOSE = 'replay.capacity', 'replay.compose'
_RATE = 'optimizer.learning_rate'
_LAG, _SCHEDULE = 'sampler.weight_lag', 'schedule'
_LOSS, _KEEP = 'loss.policy', 'replay.keep'
_DRAW, _WEIGHTS = 'replay.draw', 'replay.weights'
# Each sets how often a rollout is used: y = B / R updates, as W / T does.
_REUSE = (
  *(_SCHEDULE, 'replay.updates_per_iteration', 'replay.batch_size'),
  'sampler.num_prompts',
)
_NO_BUFFER = 'no buffer'
_SHARE_OF_BEST = 0.98  # Of a seed's own best score, in figure A14.
_PASS_AT = re.compile(r'eval/pass_at_(\d+)')

Sweep = sweep_data.Sweep
Arm = sweep_data.SweptArm
Figures = list[sweep_drawing.DataFigure]


class PaperFigure(NamedTuple):
  """A figure of a paper.

  draw: (sweep, mu) -> the figure, perhaps in several files.
  takes: which arms it shows; all, if it takes none of them.
  needs: of each of these sets, the arms must differ in one field.
  shows: what, in words.
  """

  draw: Callable[[Sweep, float], Figures]
  takes: Callable[[Arm], bool]
  needs: tuple[tuple[str, ...], ...]
  shows: str


def _has_buffer(arm: Arm) -> bool:
  return not arm.fields.get(_COMPOSE, '').startswith('fresh_only')


def _has_no_buffer(arm: Arm) -> bool:
  return not _has_buffer(arm)


def _any(arm: Arm) -> bool:
  del arm
  return True


def _of_buffer(arm: Arm) -> str:
  """Returns the capacity of an arm, or that it has no buffer."""
  return arm.fields[_CAPACITY] if _has_buffer(arm) else _NO_BUFFER


def best_of_each(
  sweep: Sweep, name: str, value: Callable[[Arm], str], mu: float
) -> Sweep:
  """Returns a sweep in one field, with the best arm of each of its values.

  Args:
    sweep: what was run.
    name: of the field.
    value: arm -> its value.
    mu: cost of generating a rollout over that of training on it.
  """
  arms = []
  for text, group in sweep_figures.grouped(sweep, value).items():
    best = sweep_curves.best(group, sweep_data.GREEDY, mu)
    arms.append(best._replace(name=f'{name}={text}', fields={name: text}))
  return sweep._replace(arms=tuple(arms), fields=(name,))


def _curves(
  sweep: Sweep,
  mu: float,
  *,
  figure: str,
  name: str,
  value: Callable[[Arm], str],
) -> sweep_drawing.DataFigure:
  """Draws the best arm of each value of a field, coloured by the value."""
  best = best_of_each(sweep, name, value, mu)
  layout = sweep_drawing.layout(best, panels=None, color=name)
  return sweep_figures.score_curves(best, layout, mu=mu, name=figure)


def _a1(sweep: Sweep, mu: float) -> Figures:
  if all(map(_has_buffer, sweep.arms)):
    raise ValueError(
      f'{_COMPOSE} of {sweep.path} = {sweep.values(_COMPOSE)}: must be '
      'fresh_only() in an arm, for figure A1'
    )
  return [
    _curves(
      *(sweep, mu),
      figure='A1',
      name='buffer',
      value=lambda arm: 'best buffer' if _has_buffer(arm) else _NO_BUFFER,
    )
  ]


def _a2(sweep: Sweep, mu: float) -> Figures:
  del mu
  return [paper_histograms.draw(sweep, 'A2')]


def _a3(sweep: Sweep, mu: float) -> Figures:
  best = best_of_each(sweep, 'capacity', _of_buffer, mu)
  layout = sweep_drawing.layout(best, panels=None, color='capacity')
  return [
    sweep_figures.score_curves(best, layout, mu=mu, name='A3'),
    pass_at_k_gain(best, layout, mu=mu, name='A3_pass_at_k'),
  ]


@sweep_drawing.styled
def pass_at_k_gain(
  sweep: Sweep, layout: sweep_drawing.Layout, *, mu: float, name: str
) -> sweep_drawing.DataFigure:
  """Draws, by k, how much higher the best pass@k of a run is with a buffer.

  That is the highest median over seeds of the run, less that of the arm without
  a buffer, or of the smallest buffer if all have one.
  """
  ks = sorted(
    int(match[1]) for x in sweep.scores if (match := _PASS_AT.fullmatch(x))
  )
  names = [arm.fields['capacity'] for arm in sweep.arms]
  baseline = names.index(_NO_BUFFER) if _NO_BUFFER in names else 0
  best = np.full((len(names), len(ks)), math.nan)
  for (i, arm), (j, k) in (
    (one, other) for one in enumerate(sweep.arms) for other in enumerate(ks)
  ):
    _, scores = sweep_curves.curve(arm, f'eval/pass_at_{k}', mu)
    if scores.size:
      best[i, j] = np.median(scores, axis=0).max()
  gains = best - best[baseline]
  figure, axes = sweep_drawing.framed(
    layout.legend, layout.heading, rows=1, columns=1, height=4.0
  )
  for arm, of_arm in zip(sweep.arms, gains, strict=True):
    look = layout.looks[arm.name]
    axes[0, 0].plot(ks, of_arm, color=look.color, ls=look.dash, marker='o')
  axes[0, 0].set_xscale('log', base=2)
  axes[0, 0].set_xticks(ks, list(map(str, ks)))
  axes[0, 0].set(
    xlabel='k, samples per prompt',
    ylabel=f'best pass@k less that of {names[baseline]}',
  )
  return sweep_drawing.DataFigure(
    name,
    'For each k the highest median over seeds of the run, less that of '
    f'{names[baseline]!r}. Being a maximum, it flatters arms with more '
    'evaluations.',
    drawing.png(figure),
    ('capacity', 'k', 'best_pass_at_k', 'gain'),
    [
      (names[i], k, best[i, j], gains[i, j])
      for i in range(len(names))
      for j, k in enumerate(ks)
    ],
  )


def _a4(sweep: Sweep, mu: float) -> Figures:
  groups = sweep_figures.grouped(sweep, _of_buffer)
  return [
    sweep_figures.frontier(
      sweep, groups, mu=mu, name='A4', heading='buffer of N rollouts'
    )
  ]


def _a5(sweep: Sweep, mu: float) -> Figures:
  return [_of_fields(sweep, mu, figure='A5', fields=(_KEEP, _LOSS))]


def _of_fields(
  sweep: Sweep, mu: float, *, figure: str, fields: Sequence[str]
) -> sweep_drawing.DataFigure:
  """Draws the best arm of each setting of those of the fields that differ."""
  differing = [field for field in fields if field in sweep.fields]

  def value(arm: Arm) -> str:
    return ', '.join(arm.fields[field] or 'None' for field in differing)

  label = ' and '.join(map(sweep_data.label, differing))
  return _curves(sweep, mu, figure=figure, name=label, value=value)


def _a12(sweep: Sweep, mu: float) -> Figures:
  return [_of_fields(sweep, mu, figure='A12', fields=(_LAG, _SCHEDULE))]


def _a13(sweep: Sweep, mu: float) -> Figures:
  best = best_of_each(sweep, 'capacity', _of_buffer, mu)
  layout = sweep_drawing.layout(best, panels=None, color='capacity')
  of_arm = {
    arm.name: sweep_runs.curve(sweep_runs.runs_of(sweep, arm), 'entropy', mu)
    for arm in best.arms
  }
  return [
    sweep_figures.drawn_curves(
      best,
      layout,
      lambda arm: of_arm[arm.name],
      mu=mu,
      name='A13',
      what='entropy of fresh rollouts, nats per token',
    )
  ]


def _a14(sweep: Sweep, mu: float) -> Figures:
  y = next(field for field in _REUSE if field in sweep.fields)
  best = {
    arm.name: float(np.median(sweep_curves.highest(arm, sweep_data.GREEDY)))
    for arm in sweep.arms
  }
  # Both maps show the same arms. A low cost to 98 % of little is no merit.
  groups = sweep_figures.grouped(
    sweep, lambda arm: f'{arm.fields[_CAPACITY]} {arm.fields[y]}'
  )
  chosen = sweep._replace(
    arms=tuple(
      max(arms, key=lambda arm: np.nan_to_num(best[arm.name], nan=-1.0))
      for arms in groups.values()
    )
  )
  costs = {
    arm.name: float(
      np.median([cost_to_share(x, _SHARE_OF_BEST, mu) for x in arm.seeds])
    )
    for arm in chosen.arms
  }
  drawn = functools.partial(
    sweep_heat_map.heat_map, chosen, _CAPACITY, y, panels=None
  )
  return [
    drawn(
      best,
      name='A14_accuracy',
      what=f'median of the best {sweep_data.GREEDY} of a seed',
      is_low_best=False,
    ),
    drawn(
      costs,
      name='A14_cost',
      what=f'median cost to {_SHARE_OF_BEST:.0%} of the best of a seed, '
      f'mu = {mu:g}',
      is_low_best=True,
    ),
  ]


def cost_to_share(seed: sweep_data.SweptSeed, share: float, mu: float) -> float:
  """Returns the cost at which a seed first had this share of its best score.

  Infinite if it was never evaluated.
  """
  at = seed.evaluated()
  if not at.size:
    return math.inf
  scores = seed.scores[sweep_data.GREEDY][at]
  first = int(np.argmax(scores >= share * scores.max()))
  return float(seed.costs(mu)[at][first])


def _a18(sweep: Sweep, mu: float) -> Figures:
  return [_of_fields(sweep, mu, figure='A18', fields=(_DRAW, _WEIGHTS))]


FIGURES = {
  'A1': PaperFigure(_a1, _any, ((_COMPOSE,),), 'best buffer against none'),
  'A2': PaperFigure(_a2, _any, (), 'histograms of use, and closed forms'),
  'A3': PaperFigure(_a3, _any, ((_CAPACITY,),), 'buffer sizes, their pass@k'),
  'A4': PaperFigure(
    _a4, _any, ((_RATE,), (_CAPACITY,)), 'frontier of rate x buffer'
  ),
  'A5': PaperFigure(
    _a5, _has_buffer, ((_KEEP, _LOSS),), 'positive bias, AsymRE'
  ),
  'A12': PaperFigure(
    _a12, _has_no_buffer, ((_LAG, _SCHEDULE),), 'lag without reuse'
  ),
  'A13': PaperFigure(_a13, _any, ((_CAPACITY,),), 'entropy of fresh rollouts'),
  'A14': PaperFigure(_a14, _any, ((_CAPACITY,), _REUSE), 'buffer x reuse'),
  'A18': PaperFigure(
    _a18, _has_buffer, ((_DRAW, _WEIGHTS),), 'variants of sampling'
  ),
  'B_main': PaperFigure(
    paper_methods.main,
    _any,
    (paper_methods.METHODS,),
    'methods: accuracy and AES',
  ),
  'B_ablations': PaperFigure(
    paper_methods.ablations,
    _has_buffer,
    (paper_methods.ABLATED,),
    'one setting at a time',
  ),
}


def add_flags(parser: argparse.ArgumentParser) -> None:
  """Adds the flags of the command."""
  parser.add_argument(
    'name',
    choices=list(FIGURES),
    metavar='NAME',
    help='; '.join(f'{name}: {one.shows}' for name, one in FIGURES.items()),
  )
  add = parser.add_argument
  add('folder', type=paths.text, help='folder of the sweep')
  text = 'folder to write (default: %(default)s)'
  add('--out', default='report', type=paths.text, help=text)
  add(
    '--mu',
    type=float,
    help='cost of generating a rollout over that of training on it (default: '
    'that of the runs)',
  )


def draw(name: str, sweep: Sweep, mu: float) -> Figures:
  """Returns a figure, perhaps in several files.

  Args:
    name: in `FIGURES`.
    sweep: what was run.
    mu: cost of generating a rollout over that of training on it.

  Raises:
    ValueError: the sweep lacks what the figure shows.
  """
  asked = FIGURES[name]
  taken = list(filter(asked.takes, sweep.arms))
  sweep = sweep.only(taken) if taken else sweep
  for fields in asked.needs:
    if not set(fields) & set(sweep.fields):
      raise ValueError(
        f'fields of {sweep.path} = {list(sweep.fields)}: must have '
        f'{" or ".join(fields)}, in which the {len(sweep.arms)} arms that it '
        f'takes differ, for figure {name}'
      )
  return asked.draw(sweep, mu)


def run(options: argparse.Namespace) -> None:
  """Writes a figure and its numbers, and prints its caption.

  Raises:
    ValueError: the sweep lacks what the figure shows, or a flag is wrong.
  """
  sweep = sweep_data.read(options.folder)
  mu = sweep_runs.mu_of(sweep) if options.mu is None else options.mu
  sweep_report.check_mu(mu)
  drawn = draw(options.name, sweep, mu)
  out = pathlib.Path(options.out)
  out.mkdir(parents=True, exist_ok=True)
  console = rich.console.Console()
  for figure in drawn:
    sweep_drawing.write(figure, out)
    sweep_drawing.say(console, figure, out)
