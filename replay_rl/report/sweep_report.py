"""Reports a sweep: `python -m replay_rl.report sweep runs/x --level=.8 --mu=5`.

Prints a line for each arm: the fields that name it, the median cost of
reaching the level with its interval, how many seeds did not get there, and the
saving against the baseline. The folder `--out` gets the same as table.csv, all
seeds as seeds.csv, figures, each with its numbers as CSV, and index.html, a
page in which level, mu and arms can be chosen.
"""

import argparse
import math
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import rich.console

from replay_rl.disk import paths
from replay_rl.report import level_table
from replay_rl.report import sweep_curves
from replay_rl.report import sweep_data
from replay_rl.report import sweep_drawing
from replay_rl.report import sweep_figures
from replay_rl.report import sweep_heat_map
from replay_rl.report import sweep_page
from replay_rl.report import sweep_saving


def add_flags(parser: argparse.ArgumentParser) -> None:
  """Adds the flags of the command."""
  add = parser.add_argument
  add('folder', type=paths.text, help='folder of the sweep')
  add('--level', type=float, required=True, help='greedy score to reach')
  add(
    '--num_evaluations',
    type=int,
    default=2,
    help='in a row, at the level (default: %(default)s)',
  )
  add(
    '--mu',
    type=float,
    required=True,
    help='cost of generating a rollout over that of training on it',
  )
  add('--baseline', help='name of an arm; else the cheapest one named so below')
  add(
    '--baselines',
    default='',
    help='beginning of the names of baselines, of which the best is taken',
  )
  add(
    '--out',
    default='report',
    type=paths.text,
    help='folder to write (default: %(default)s)',
  )
  add('--panels', help='field with a small panel for each value')
  add('--color', help='field with a colour for each value')
  add(
    '--heat_map',
    help='two fields with a comma between them (default: two that name the '
    'arms)',
  )


def run(options: argparse.Namespace) -> None:
  """Prints the table and writes the folder.

  Raises:
    ValueError: the sweep or a flag is wrong.
  """
  _check(options)
  sweep = sweep_data.read(options.folder)
  question = sweep_saving.Question(
    level=options.level,
    num_evaluations=options.num_evaluations,
    mu=options.mu,
    baseline=options.baseline,
    baselines=options.baselines,
  )
  costs = question.costs(sweep)
  baseline = question.baseline_of(costs)
  rows = level_table.rows(costs, baseline)
  drawn = _figures(sweep, question, rows, options)
  out = pathlib.Path(options.out)
  out.mkdir(parents=True, exist_ok=True)
  (out / 'table.csv').write_text(_table(sweep, rows, costs.budget), 'utf-8')
  (out / 'seeds.csv').write_text(_seeds(sweep, costs, options.mu), 'utf-8')
  for figure in drawn:
    sweep_drawing.write(figure, out)
  (out / sweep_page.FILE).write_text(sweep_page.make(sweep, question), 'utf-8')
  console = rich.console.Console()
  console.print(
    level_table.table(rows, baseline=baseline.arm.name, budget=costs.budget)
  )
  for figure in drawn:
    sweep_drawing.say(console, figure, out)
  print(out / sweep_page.FILE)


def _check(options: argparse.Namespace) -> None:
  if not math.isfinite(options.level):
    raise ValueError(f'--level = {options.level}: must be a finite number')
  check_mu(options.mu)


def check_mu(mu: float) -> None:
  """Raises ValueError if mu cannot be a cost."""
  if not 0 <= mu < math.inf:
    raise ValueError(f'--mu = {mu}: must be a finite number >= 0')


def _figures(
  sweep: sweep_data.Sweep,
  question: sweep_saving.Question,
  rows: Sequence[level_table.ComparedArm],
  options: argparse.Namespace,
) -> list[sweep_drawing.DataFigure]:
  panels, color = (
    name and sweep.field(name) for name in (options.panels, options.color)
  )
  named = sweep.naming_fields()
  x, y = _axes(sweep, options.heat_map, panels)
  mu = options.mu
  layout = sweep_drawing.layout(sweep, panels=panels, color=color)
  by = panels or next(iter(named), None)
  groups = sweep_figures.grouped(
    sweep, lambda arm: arm.fields[by] if by else 'all arms'
  )
  drawn = [
    sweep_figures.score_curves(sweep, layout, mu=mu),
    sweep_figures.frontier(
      sweep, groups, mu=mu, heading=f'best of each {sweep_data.label(by or "")}'
    ),
    sweep_saving.saving(sweep, question),
    sweep_figures.seed_costs(rows, level=question.level, mu=mu),
    sweep_figures.matched_budgets(sweep, mu=mu),
  ]
  if x is None or y is None:
    return drawn
  if panels is None and options.heat_map is None and len(named) > 2:
    panels = named[0]
  settings: dict[str, Any] = {
    'panels': panels if panels not in (x, y) else None
  }
  level = question.level
  return drawn + [
    sweep_heat_map.heat_map(
      *(sweep, x, y, {row.costs.arm.name: row.costs.median for row in rows}),
      name='heat_map_cost',
      what=f'median cost to {level:g} at mu = {mu:g}',
      is_low_best=True,
      **settings,
    ),
    sweep_heat_map.heat_map(
      *(sweep, x, y, _best_scores(sweep)),
      name='heat_map_score',
      what=f'median of the best {sweep_data.GREEDY} of a seed',
      is_low_best=False,
      **settings,
    ),
  ]


def _best_scores(sweep: sweep_data.Sweep) -> dict[str, float]:
  return {
    arm.name: float(np.median(sweep_curves.highest(arm, sweep_data.GREEDY)))
    for arm in sweep.arms
  }


def _axes(
  sweep: sweep_data.Sweep, asked: str | None, panels: str | None
) -> tuple[str | None, str | None]:
  """Returns the fields of the heat maps; None if there are no two."""
  if asked is not None:
    names = asked.split(',')
    if len(names) != 2 or names[0] == names[1]:
      raise ValueError(
        f'--heat_map = {asked!r}: must be two fields, with a comma between'
      )
    return sweep.field(names[0]), sweep.field(names[1])
  free = [x for x in sweep.naming_fields() if x != panels]
  if len(free) < 2:
    return None, None
  return free[-1], free[-2]


def _table(
  sweep: sweep_data.Sweep,
  rows: Sequence[level_table.ComparedArm],
  budget: float,
) -> str:
  """Returns a line for each arm."""
  columns = [
    *('arm', *sweep.fields, 'seeds', 'not_reached', 'budget', 'median_cost'),
    *('cost_low', 'cost_high', 'median_generated_tokens'),
    *('median_learner_steps', 'saving', 'saving_low', 'saving_high'),
    *('p_value', 'p_value_holm'),
  ]
  lines = []
  for row in rows:
    costs, one = row.costs, row.comparison
    lines.append(
      [
        *(costs.arm.name, *costs.arm.fields.values(), len(costs.costs)),
        *(costs.num_censored, budget, costs.median),
        *(row.interval or (None, None)),
        float(np.median(costs.generated_tokens)),
        float(np.median(costs.learner_steps)),
        *((one and one.saving), *((one and one.interval) or (None, None))),
        *((one and one.p_value), row.adjusted_p),
      ]
    )
  return sweep_drawing.to_csv(columns, lines)


def _seeds(sweep: sweep_data.Sweep, costs: level_table.Costs, mu: float) -> str:
  """Returns a line for each seed of each arm; `inf` is a seed not there."""
  columns = [
    *('arm', 'seed', *sweep.fields, 'cost', 'generated_tokens'),
    *('learner_steps', 'cost_at_end'),
    *(f'{score}_at_end' for score in sweep.scores),
    *(f'{score}_highest' for score in sweep.scores),
  ]
  lines = []
  for one in costs.arms:
    highest = [sweep_curves.highest(one.arm, x) for x in sweep.scores]
    for index, seed in enumerate(one.arm.seeds):
      lines.append(
        [
          *(one.arm.name, seed.seed, *one.arm.fields.values()),
          *(float(values[index]) for values in one[1:]),
          float(seed.costs(mu)[-1]),
          *(float(seed.scores[score][-1]) for score in sweep.scores),
          *(float(values[index]) for values in highest),
        ]
      )
  return sweep_drawing.to_csv(columns, lines)
