"""Accuracy of the arms of a sweep at equal cost, generation and updates.

For each arm: interquartile means over seeds of the accuracy on held-out
prompts, greedy or `--score=eval/pass_at_1`, at the evaluation that is the
nearest to what every seed of every arm has spent, in cost units, in generated
rollouts and in updates; of the mean over all evaluations until the equal cost;
and of entropy and length of the fresh rollouts over the last tenth of that
cost. A seed has collapsed if its accuracy at the equal cost is less than half
of its highest before. AES has the constants (1, 3, 5). In brackets: the
difference to the baseline with its 95 % bootstrap interval, unpaired, and p,
two-sided, after Holm over the arms.

`--choose` prints the best cell of each arm of a tuning sweep instead: that with
the highest mean accuracy over all evaluations, and its neighbours' scores.

Command: python experiments/prioritized_replay/ranking.py RUNS [RUNS ...] \
    --baseline=name=GRPO
"""

import argparse
import json
import pathlib
import sys
from typing import NamedTuple

import numpy as np
from scipy import stats

from replay_rl.report import bootstrap
from replay_rl.report import efficiency
from replay_rl.report import levels
from replay_rl.run import budget
from replay_rl.run import logs
from replay_rl.sweep import planning

_SHARE = (
  0.1  # Entropy and length are averaged over this last share of the cost.
)
_GENERATED, _UPDATES = 'ledger/rollouts', 'ledger/updates'
_COUNTS = (budget.COST, _GENERATED, _UPDATES)
SAMPLED = 'eval/pass_at_1'  # Of one sampled response to each prompt.


class Cell(NamedTuple):
  """A cell that has finished.

  config: fields by path.
  seeds: the lines of each seed.
  """

  config: dict
  seeds: dict[int, list[dict]]


def read(runs: pathlib.Path) -> dict[str, Cell]:
  """Returns the finished cells of a sweep, by folder."""
  cells = {}
  for path in sorted(runs.glob(f'*/{planning.FINISHED}')):
    seeds: dict[int, list[dict]] = {}
    for line in logs.read(path.parent):
      seeds.setdefault(line['seed'], []).append(line)
    config = json.loads((path.parent / 'config.json').read_text())['config']
    cells[path.parent.name] = Cell(config, seeds)
  return cells


def evaluations(lines: list[dict]) -> list[dict]:
  """Returns the lines of a seed that have an evaluation."""
  return [line for line in lines if budget.SCORE in line]


def until(lines: list[dict], cost: float) -> list[dict]:
  """Returns the evaluations of a seed until a cost."""
  return [
    line for line in evaluations(lines) if line[budget.COST] <= 1.01 * cost
  ]


def spent(cells: dict[str, Cell], count: str) -> float:
  """Returns what all seeds have spent at their last evaluation, at least."""
  return min(
    evaluations(lines)[-1][count]
    for cell in cells.values()
    for lines in cell.seeds.values()
  )


def at(lines: list[dict], score: str, count: str, value: float) -> float:
  """Returns the accuracy of a seed where a count is the nearest to a value."""
  nearest = min(evaluations(lines), key=lambda line: abs(line[count] - value))
  return nearest[score]


def area(lines: list[dict], score: str, cost: float) -> float:
  """Returns the mean accuracy of the evaluations until a cost."""
  return float(np.mean([line[score] for line in until(lines, cost)]))


def of_seed(
  lines: list[dict], score: str, spent_by_all: dict[str, float]
) -> dict:
  """Returns the numbers of a seed that the table shows."""
  cost = spent_by_all[budget.COST]
  last = [
    line
    for line in lines
    if (1 - _SHARE) * cost < line[budget.COST] <= 1.01 * cost
  ]
  highest = max(line[score] for line in until(lines, cost))
  end = at(lines, score, budget.COST, cost)
  return {
    'equal cost': end,
    'equal generation': at(lines, score, _GENERATED, spent_by_all[_GENERATED]),
    'equal updates': at(lines, score, _UPDATES, spent_by_all[_UPDATES]),
    'mean until then': area(lines, score, cost),
    'entropy': float(np.mean([line['entropy'] for line in last])),
    'tokens': float(np.mean([line['response_length'] for line in last])),
    'collapsed': float(end < 0.5 * highest),
  }


def middle(values: np.ndarray, axis: int = -1) -> np.ndarray:
  """Returns the interquartile mean along an axis."""
  return stats.trim_mean(values, 0.25, axis=axis)


def difference(
  arm: np.ndarray, baseline: np.ndarray
) -> tuple[float, tuple[float, float] | None, float]:
  """Returns the difference of middles, its interval and its p-value."""

  def gap(one, other, axis=-1):
    return middle(one, axis=axis) - middle(other, axis=axis)

  ends = bootstrap.interval(
    [arm, baseline],
    gap,
    confidence=bootstrap.CONFIDENCE,
    num_resamples=bootstrap.NUM_RESAMPLES,
    seed=0,
  )
  rng = np.random.default_rng(0)
  size = bootstrap.NUM_RESAMPLES
  resampled = gap(
    *(x[rng.integers(len(x), size=(size, len(x)))] for x in (arm, baseline))
  )
  sides = [np.sum(resampled <= 0), np.sum(resampled >= 0)]
  p_value = min(1.0, 2 * (1 + min(sides)) / (1 + size))
  return float(gap(arm, baseline)), ends, p_value


def ranking(cells: dict[str, Cell], score: str, baseline: str) -> None:
  """Prints the table."""
  spent_by_all = {count: spent(cells, count) for count in _COUNTS}
  print(
    'every seed: ' + ', '.join(f'{k} {v:,.0f}' for k, v in spent_by_all.items())
  )
  rows = {
    name: [of_seed(lines, score, spent_by_all) for lines in cell.seeds.values()]
    for name, cell in cells.items()
  }
  values = {
    name: {field: np.array([x[field] for x in of]) for field in of[0]}
    for name, of in rows.items()
  }
  base = values[baseline]
  for field in next(iter(values.values())):
    print(f'\n{field}')
    others = [name for name in values if name != baseline]
    gaps = {
      name: difference(values[name][field], base[field]) for name in others
    }
    adjusted = levels.holm([gaps[name][2] for name in others])
    for name in sorted(values, key=lambda name: -middle(values[name][field])):
      told = f'  {float(middle(values[name][field])):8.4f}  {name}'
      if name != baseline:
        gap, ends, _ = gaps[name]
        assert ends is not None
        p_value = adjusted[others.index(name)]
        told += (
          f'  ({gap:+.3f}: {ends[0]:+.3f} to {ends[1]:+.3f}; p {p_value:.2f})'
        )
      print(told)
  print('\nAES at equal cost')
  for name in values:
    pair = [
      (values[x]['equal cost'], values[x]['tokens']) for x in (name, baseline)
    ]
    efficient, ends = efficiency.of_seeds(*pair, efficiency.CONSTANTS[0])
    told = '' if ends is None else f'  ({ends[0]:+.3f} to {ends[1]:+.3f})'
    print(f'  {efficient:+.3f}  {name}{told}')


def choose(cells: dict[str, Cell], score: str) -> None:
  """Prints the scores of all cells of each arm, the best first."""
  cost = spent(cells, budget.COST)
  arms: dict[str, list] = {}
  for folder, cell in cells.items():
    mean = np.mean([area(lines, score, cost) for lines in cell.seeds.values()])
    settings = cell.config
    arm = folder.partition(',num_prompts')[0]
    arms.setdefault(arm, []).append(
      (
        float(mean),
        settings['sampler']['num_prompts'],
        settings['optimizer']['learning_rate'],
      )
    )
  for name, scores in arms.items():
    print(name)
    for mean, num_prompts, rate in sorted(scores, reverse=True):
      print(f'  {mean:.4f}  prompts {num_prompts}, rate {rate:g}')


def main() -> None:
  """Prints the table, or the best cells."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('runs', type=pathlib.Path, nargs='+')
  parser.add_argument('--baseline')
  parser.add_argument('--choose', action='store_true')
  parser.add_argument(
    '--score', choices=[budget.SCORE, SAMPLED], default=budget.SCORE
  )
  arguments = parser.parse_args()
  cells = {}
  for runs in arguments.runs:
    cells |= read(runs)
  if arguments.choose:
    choose(cells, arguments.score)
    return
  if arguments.baseline not in cells:
    sys.exit(
      f'error: baseline = {arguments.baseline!r}: must be one of {list(cells)}'
    )
  ranking(cells, arguments.score, arguments.baseline)


if __name__ == '__main__':
  main()
