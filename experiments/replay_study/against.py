"""Savings of the arms of one sweep against an arm of another.

The saving is 1 - the ratio of the median costs, with its 95 % bootstrap
interval, unpaired. Both files are `seeds.csv` of `report sweep`, at one level
and one mu. A seed that did not get there has an infinite cost.

Command: python experiments/replay_study/against.py BASE_SEEDS.csv ARM SEEDS.csv
"""

import argparse
import csv
import math
import sys

import numpy as np

from replay_rl.report import bootstrap


def costs(path: str) -> dict[str, np.ndarray]:
  """Returns the costs of the seeds of each arm."""
  arms: dict[str, list[float]] = {}
  with open(path, newline='') as file:
    for row in csv.DictReader(file):
      cost = float(row['cost']) if row['cost'] else math.inf
      arms.setdefault(row['arm'], []).append(cost)
  return {name: np.array(values) for name, values in arms.items()}


def saving(one: np.ndarray, base: np.ndarray, axis: int = -1) -> np.ndarray:
  """Returns 1 - the ratio of the medians along an axis."""
  return 1 - np.median(one, axis=axis) / np.median(base, axis=axis)


def main() -> None:
  """Prints the savings."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('base_seeds')
  parser.add_argument('arm')
  parser.add_argument('seeds')
  arguments = parser.parse_args()
  bases = costs(arguments.base_seeds)
  if arguments.arm not in bases:
    sys.exit(f'error: arm = {arguments.arm!r}: must be one of {list(bases)}')
  base = bases[arguments.arm]
  print(f'{arguments.arm}: {np.median(base):,.0f} ({len(base)} seeds)')
  for name, values in costs(arguments.seeds).items():
    low, high = bootstrap.interval(
      [values, base],
      saving,
      confidence=bootstrap.CONFIDENCE,
      num_resamples=bootstrap.NUM_RESAMPLES,
      seed=0,
    )
    print(
      f'{name}: {np.median(values):,.0f} ({len(values)} seeds), saving '
      f'{saving(values, base):.0%} ({low:.0%} to {high:.0%})'
    )


if __name__ == '__main__':
  main()
