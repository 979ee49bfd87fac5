"""Compares the cells of a sweep by what reaching a level costs.

    python -m replay_rl.report.level_table runs/x --level=0.8 --mu=5.28

reads `evaluations.csv` of the sweep and prints a line for each cell: the fields
that name it, the median cost over seeds, how many seeds did not
get there, and the saving against the baseline with its interval. A cost unit is
the cost of training on one rollout, so one sweep serves every mu, up to the
cost that all seeds have spent at that mu. A saving is claimed where the
one-sided p, adjusted for the number of cells, is below .025.
"""

import argparse
import math
import pathlib
import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import rich.box
import rich.console
import rich.table

from replay_rl import command_line
from replay_rl.report import levels
from replay_rl.report import sweep_data

_SEED_OF_BOOTSTRAP = 0
# After those of the name.
_COLUMNS = (
  *('seeds', 'not reached', 'median cost', 'saving'),
  *('95 % interval', 'one-sided p, Holm'),
)


class CellCosts(NamedTuple):
  """What the seeds of a cell spent to reach a level.

  cell: its name.
  costs: `[S]` in the order of the seeds, infinite where the level was not held.
  """

  cell: str
  costs: np.ndarray

  @property
  def median(self) -> float:
    """Median cost over seeds."""
    return float(np.median(self.costs))


class Costs(NamedTuple):
  """What the cells of a sweep spent to reach a level.

  cells: in the order of the file.
  budget: what every seed that did not reach the level has spent, at least.
    Higher costs count as infinite, since a seed that ended before might have
    reached the level for as much. Infinite if every seed got there.
  """

  cells: list[CellCosts]
  budget: float


def costs_of(
  sweep: sweep_data.Sweep, *, level: float, num_evaluations: int, mu: float
) -> Costs:
  """Returns the costs of all arms.

  Args:
    sweep: what was measured.
    level: of the mean reward of greedy responses.
    num_evaluations: how many in a row must be at the level.
    mu: cost of generating a rollout over that of training on it.
  """
  costs: dict[str, list[float]] = {}
  ends = [math.inf]
  for arm in sweep.arms:
    for seed in arm.seeds:
      spent, evaluated = seed.costs(mu), seed.evaluated()
      cost = levels.cost_to_level(
        spent[evaluated].tolist(),
        seed.scores[sweep_data.GREEDY][evaluated].tolist(),
        level,
        num_evaluations=num_evaluations,
      )
      costs.setdefault(arm.name, []).append(cost)
      if math.isinf(cost):
        ends.append(spent[-1])
  budget = min(ends)
  return Costs(
    [
      CellCosts(name, np.array([x if x <= budget else math.inf for x in seeds]))
      for name, seeds in costs.items()
    ],
    budget,
  )


def table(costs: Costs, baseline: str) -> rich.table.Table:
  """Returns a line for each cell, the cheapest first.

  Raises:
    ValueError: the baseline is no cell.
  """
  cells = costs.cells
  by_name = {cell.cell: cell for cell in cells}
  if baseline not in by_name:
    raise ValueError(
      f'--baseline = {baseline!r}: must be one of {sorted(by_name)}'
    )
  of_baseline = by_name[baseline].costs
  others = [cell for cell in cells if cell.cell != baseline]
  compared = {
    cell.cell: levels.compare(cell.costs, of_baseline, seed=_SEED_OF_BOOTSTRAP)
    for cell in others
  }
  tested = {
    name: one.p_value
    for name, one in compared.items()
    if one.p_value is not None
  }
  adjusted = dict(zip(tested, levels.holm(list(tested.values())), strict=True))
  limit = ''
  if math.isfinite(costs.budget):
    limit = f'; all within {costs.budget:,.0f} cost units'
  grid = rich.table.Table(
    title=f'Against {baseline}{limit}', box=rich.box.SIMPLE_HEAD
  )
  parts = {cell.cell: _parts(cell.cell) for cell in cells}
  for name in (*parts[cells[0].cell], *_COLUMNS):
    grid.add_column(name, overflow='fold')
  for cell in sorted(cells, key=lambda one: one.median):
    one = compared.get(cell.cell)
    grid.add_row(
      *parts[cell.cell].values(),
      str(len(cell.costs)),
      str(int(np.isinf(cell.costs).sum())),
      _cost(cell.median),
      _share(one.saving) if one else 'baseline',
      ' to '.join(map(_share, one.interval)) if one and one.interval else '',
      f'{adjusted[cell.cell]:.4f}' if cell.cell in adjusted else '',
    )
  return grid


def _parts(cell: str) -> dict[str, str]:
  """Returns the fields in the name of a cell, such as batch_size=8,mu=2.0."""
  pairs = [part.partition('=') for part in cell.split(',')]
  if not all(equals for _, equals, _ in pairs):
    return {'cell': cell}
  return {field: value for field, _, value in pairs}


def _cost(cost: float) -> str:
  return f'{cost:,.0f}' if math.isfinite(cost) else 'never'


def _share(saving: float) -> str:
  if math.isnan(saving):
    return 'unknown'
  return f'{saving:.0%}' if math.isfinite(saving) else 'none'


def main(arguments: list[str] | None = None) -> None:
  """Prints the table that the arguments ask for."""
  parser = argparse.ArgumentParser(
    prog='python -m replay_rl.report.level_table', description=__doc__
  )
  parser.add_argument('folder', type=pathlib.Path, help='of the sweep')
  parser.add_argument('--level', type=float, required=True, help='to reach')
  parser.add_argument(
    '--num_evaluations', type=int, default=2, help='in a row, at the level'
  )
  parser.add_argument(
    '--mu', type=float, required=True, help='cost of generating a rollout'
  )
  parser.add_argument(
    '--baseline', help='name of a cell; else the cheapest one named so below'
  )
  parser.add_argument(
    '--baselines', default='', help='beginning of the names of baselines'
  )
  options = parser.parse_args(arguments)
  console = rich.console.Console()
  try:
    costs = costs_of(
      sweep_data.read(options.folder),
      level=options.level,
      num_evaluations=options.num_evaluations,
      mu=options.mu,
    )
    baseline = options.baseline or _cheapest(costs.cells, options.baselines)
    console.print(table(costs, baseline))
  except ValueError as error:
    print(command_line.last_line(error), file=sys.stderr)
    sys.exit(2)


def _cheapest(cells: Sequence[CellCosts], beginning: str) -> str:
  """Returns the best of the cells whose names begin so, to be fair to it."""
  named = [cell for cell in cells if cell.cell.startswith(beginning)]
  if not named:
    raise ValueError(
      f'--baselines = {beginning!r}: must be the beginning of the name of a '
      'cell'
    )
  return min(named, key=lambda one: one.median).cell


if __name__ == '__main__':
  main()
