"""Accuracy, pass@k and entropy of the arms of a sweep at equal cost.

For each arm: medians over seeds at the evaluation that is the nearest to the
cost that all seeds of all arms have spent, or at a level, with the difference
to the baseline and its 95 % bootstrap interval, unpaired. The entropy is that
of fresh rollouts, in nats per token, over the last tenth of that cost.

Command: python experiments/replay_study/endings.py RUNS BASELINE [--level=.8]
"""

import argparse
import pathlib
import sys

import numpy as np

from replay_rl.report import bootstrap
from replay_rl.run import budget
from replay_rl.run import logs
from replay_rl.sweep import planning

_SHARE = 0.1  # The entropy is averaged over this last share of the cost.


def of_seeds(folder: pathlib.Path) -> dict[int, list[dict]]:
  """Returns the lines of each seed of a cell."""
  seeds: dict[int, list[dict]] = {}
  for line in logs.read(folder):
    seeds.setdefault(line['seed'], []).append(line)
  return seeds


def end_of(lines: list[dict], cost: float, level: float | None) -> dict:
  """Returns what a seed has at a cost, or at a level.

  Args:
    lines: of the seed.
    cost: the evaluation that is the nearest to it is read.
    level: the evaluation is the second one in a row at this level; None for
      that at the cost. Without one, the last evaluation of the seed.
  """
  evaluated = [line for line in lines if budget.SCORE in line]
  chosen = min(evaluated, key=lambda line: abs(line[budget.COST] - cost))
  if level is not None:
    scores = [line[budget.SCORE] for line in evaluated]
    reached = [
      i for i in range(1, len(scores)) if min(scores[i - 1 : i + 1]) >= level
    ]
    chosen = evaluated[reached[0] if reached else -1]
  until = chosen[budget.COST]
  entropies = [
    line['entropy']
    for line in lines
    if (1 - _SHARE) * until < line[budget.COST] <= until
  ]
  values = {k: v for k, v in chosen.items() if k.startswith('eval/')}
  return values | {'entropy': float(np.mean(entropies)), 'cost': until}


def main() -> None:
  """Prints the endings of the arms."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('runs', type=pathlib.Path)
  parser.add_argument('baseline')
  parser.add_argument('--level', type=float)
  arguments = parser.parse_args()
  folders = sorted(
    path.parent for path in arguments.runs.glob(f'*/{planning.FINISHED}')
  )
  seeds = {folder.name: of_seeds(folder) for folder in folders}
  if arguments.baseline not in seeds:
    sys.exit(
      f'error: baseline = {arguments.baseline!r}: must be one of {list(seeds)}'
    )
  cost = min(
    max(line[budget.COST] for line in lines if budget.SCORE in line)
    for arm in seeds.values()
    for lines in arm.values()
  )
  ends = {
    name: [end_of(lines, cost, arguments.level) for lines in arm.values()]
    for name, arm in seeds.items()
  }
  where = f'at {cost:,.0f} cost units'
  if arguments.level is not None:
    where = f'where a seed has reached {arguments.level}'
  print(f'medians {where}; in brackets: difference to the baseline, 95 %')
  for name, of_arm in ends.items():
    print(f'{name} ({len(of_arm)} seeds)')
    for field in of_arm[0]:
      pair = [
        np.array([end[field] for end in of])
        for of in (of_arm, ends[arguments.baseline])
      ]
      told = f'  {field}: {np.median(pair[0]):.4g}'
      if name != arguments.baseline:
        low, high = bootstrap.interval(
          pair,
          lambda one, other, axis: (
            np.median(one, axis=axis) - np.median(other, axis=axis)
          ),
          confidence=bootstrap.CONFIDENCE,
          num_resamples=bootstrap.NUM_RESAMPLES,
          seed=0,
        )
        told += f' ({low:+.3g} to {high:+.3g})'
      print(told)


if __name__ == '__main__':
  main()
