"""Accuracy and tokens of responses by the number of operations of the prompt.

Reads the rollouts that a run of configs/modular_arithmetic.py has written, and
prints a line for each iteration. The run must have a reward of `correctness()`
alone, which then is the accuracy.

Command: python experiments/modular_arithmetic/by_length.py RUN
"""

import argparse
import json
import pathlib

import numpy as np

from replay_rl.run import logs
from replay_rl.tasks import modular_arithmetic

_GROUPS = ((1, 2), (3, 4), (5, 6), (7, 8), (9, 10))  # First and last number.


def num_operations(prompt: str) -> int:
  """Returns n of a prompt such as '3 +4 *2 . . ='."""
  words = prompt.split()
  return sum(word[0] in modular_arithmetic.OPERATORS for word in words)


def main() -> None:
  """Prints the table."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('run', type=pathlib.Path)
  arguments = parser.parse_args()
  rows: dict[int, list[tuple[int, float, int]]] = {}
  for text in (arguments.run / logs.SAMPLES).read_text().splitlines():
    line = json.loads(text)
    rows.setdefault(line['iteration'] + 1, []).append(
      (
        num_operations(line['prompt']),
        line['reward'],
        len(line['response'].split()),
      )
    )
  heading = ' | '.join(f'{first} to {last}' for first, last in _GROUPS)
  print(f'| iteration | rollouts | {heading} |')
  print('|---' * (2 + len(_GROUPS)) + '|')
  for iteration, of_iteration in rows.items():
    number, reward, length = np.array(of_iteration).T
    cells = []
    for first, last in _GROUPS:
      inside = (number >= first) & (number <= last)
      mean, tokens = reward[inside].mean(), length[inside].mean()
      cells.append(f'{mean:.2f}, {tokens:.1f}')
    print(f'| {iteration} | {len(number)} | {" | ".join(cells)} |')


if __name__ == '__main__':
  main()
