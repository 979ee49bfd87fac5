"""Prints the map of `stability.py`: method x lag, at the better of two rates.

Each cell of the table has the mean of the greedy accuracy over all evaluations,
then the accuracy at the end, then the rate; all of two seeds. A method that
bears a lag keeps the numbers of lag 0. The better rate is that with the higher
mean over all evaluations.

Command: python experiments/prioritized_replay/stability_map.py RUNS [RUNS ...]
"""

import pathlib
import sys
from typing import NamedTuple

import numpy as np

from experiments.prioritized_replay import ranking
from replay_rl.run import budget


class Point(NamedTuple):
  """Means over the seeds of a cell: of all evaluations, and at the end."""

  until_then: float
  at_end: float
  rate: float


def points(
  cells: dict[str, ranking.Cell],
) -> dict[str, dict[int, list[Point]]]:
  """Returns the points of each method and lag, one for each rate."""
  cost = ranking.spent(cells, budget.COST)
  found: dict[str, dict[int, list[Point]]] = {}
  for folder, cell in cells.items():
    of_seeds = cell.seeds.values()
    point = Point(
      float(np.mean([ranking.area(x, budget.SCORE, cost) for x in of_seeds])),
      float(
        np.mean(
          [ranking.at(x, budget.SCORE, budget.COST, cost) for x in of_seeds]
        )
      ),
      cell.config['optimizer']['learning_rate'],
    )
    method = folder.removeprefix('name=').partition(',')[0]
    lags = found.setdefault(method, {})
    lags.setdefault(cell.config['sampler']['weight_lag'], []).append(point)
  return found


def main() -> None:
  """Prints the table, the methods that bear the longest lag first."""
  if len(sys.argv) < 2:
    sys.exit('error: RUNS = []: must name at least one folder of a sweep')
  cells: dict[str, ranking.Cell] = {}
  for runs in sys.argv[1:]:
    cells |= ranking.read(pathlib.Path(runs))
  best = {
    name: {lag: max(of_rates) for lag, of_rates in sorted(lags.items())}
    for name, lags in points(cells).items()
  }
  lags = sorted({lag for of_name in best.values() for lag in of_name})
  print('| method | ' + ' | '.join(f'lag {lag}' for lag in lags) + ' |')
  print('|---' * (1 + len(lags)) + '|')
  for name in sorted(best, key=lambda name: -best[name][lags[-1]].until_then):
    row = [
      f'{best[name][lag].until_then:.3f}, {best[name][lag].at_end:.3f} '
      f'({best[name][lag].rate:g})'
      for lag in lags
    ]
    print(f'| {name} | ' + ' | '.join(row) + ' |')


if __name__ == '__main__':
  main()
