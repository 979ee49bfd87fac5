"""Prints and draws the map of `stability.py`: method x lag.

Each cell of the table has the mean of the greedy accuracy over all evaluations,
then the accuracy at the end, then the rate; all of two seeds. A method that
bears a lag keeps the numbers of lag 0. Of the two rates, that with the higher
mean over all evaluations counts. The figure has that mean.

Command: python experiments/prioritized_replay/stability_map.py \
    --figure=stability.png RUNS [RUNS ...]
"""

import argparse
import pathlib
from typing import NamedTuple

import numpy as np
from matplotlib import pyplot

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


def draw(
  best: dict[str, dict[int, Point]],
  names: list[str],
  lags: list[int],
  path: pathlib.Path,
) -> None:
  """Draws the means over all evaluations, methods below each other."""
  means = np.array(
    [[best[name][lag].until_then for lag in lags] for name in names]
  )
  figure, axes = pyplot.subplots(figsize=(5.6, 0.36 * len(names) + 1.4))
  image = axes.imshow(means, aspect='auto', cmap='viridis')
  middle = means.min() + 0.6 * np.ptp(means)
  for (row, column), mean in np.ndenumerate(means):
    axes.text(
      *(column, row, f'{mean:.3f}'.lstrip('0')),
      color='black' if mean > middle else 'white',
      ha='center',
      va='center',
    )
  axes.set_xticks(range(len(lags)), [str(lag) for lag in lags])
  axes.set_yticks(range(len(names)), names)
  axes.set_xlabel('learner steps by which the weights that generate trail')
  figure.colorbar(image, label='mean accuracy over the run')
  figure.savefig(path, dpi=150, bbox_inches='tight')


def main() -> None:
  """Prints the table, the methods that bear the longest lag first."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('runs', type=pathlib.Path, nargs='+')
  parser.add_argument('--figure', type=pathlib.Path, required=True)
  arguments = parser.parse_args()
  cells: dict[str, ranking.Cell] = {}
  for runs in arguments.runs:
    cells |= ranking.read(runs)
  best = {
    name: {lag: max(of_rates) for lag, of_rates in sorted(lags.items())}
    for name, lags in points(cells).items()
  }
  lags = sorted({lag for of_name in best.values() for lag in of_name})
  names = sorted(best, key=lambda name: -best[name][lags[-1]].until_then)
  print('| method | ' + ' | '.join(f'lag {lag}' for lag in lags) + ' |')
  print('|---' * (1 + len(lags)) + '|')
  for name in names:
    row = [
      f'{best[name][lag].until_then:.3f}, {best[name][lag].at_end:.3f} '
      f'({best[name][lag].rate:g})'
      for lag in lags
    ]
    print(f'| {name} | ' + ' | '.join(row) + ' |')
  draw(best, names, lags, arguments.figure)


if __name__ == '__main__':
  main()
