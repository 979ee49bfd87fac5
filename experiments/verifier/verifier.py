r"""Checks the verifier against the answers of benchmarks.

Every reference, written as `\boxed{reference}`, has to be correct for its own
problem, and wrong for the next problem and for some others drawn at random. The
first is done by math-verify alone, too, since equal strings are otherwise not
even parsed.

Command: python experiments/verifier/verifier.py --data=FOLDER
"""

import argparse
import importlib.metadata
import json
import os
import pathlib
import platform
import random
import subprocess
import time

from replay_rl.tasks.verify import equality
from replay_rl.tasks.verify import pool as pool_lib
from replay_rl.tasks.verify import verifier

BENCHMARKS = (
  'gsm8k',
  'aime24',
  'amc23',
  'math500',
  'minerva_math',
  'olympiadbench',
)
SETTINGS = {
  'num_workers': 2,
  'answer_timeout': 5.0,
  'memory_limit': 1 << 30,
  'max_answer_chars': 1000,
}
_NUM_RANDOM = 3
_CORRECT = 'correct'
_WRONG = 'wrong'


def main() -> None:
  """Prints a table and writes results.json beside this file."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--data', type=pathlib.Path, required=True)
  parser.add_argument('--seed', type=int, default=0, help='of the other pairs')
  arguments = parser.parse_args()
  results = {}
  print('| benchmark | own | own, parsed | others | called correct | seconds |')
  print('|---|---|---|---|---|---|')
  with verifier.Verifier(**SETTINGS) as judge:
    for name in BENCHMARKS:
      rows = read(arguments.data, name)
      started = time.monotonic()
      result = check(judge, rows, random.Random(arguments.seed), _NUM_RANDOM)
      seconds = round(time.monotonic() - started, 1)
      result['not_own_when_parsed'] = check_parsed(rows)
      results[name] = result | {'seconds': seconds}
      num = result['num']
      print(
        f'| {name} | {num - len(result["not_own"])} of {num} '
        f'| {num - len(result["not_own_when_parsed"])} '
        f'| {result["num_others"]} | {len(result["correct_for_others"])} '
        f'| {seconds} |'
      )
  path = pathlib.Path(__file__).with_name('results.json')
  path.write_text(json.dumps(about() | {'results': results}, indent=1) + '\n')


def read(folder: pathlib.Path, name: str) -> list[dict[str, str]]:
  """Returns the rows of a benchmark, with `id` and `answer`."""
  lines = (folder / 'benchmarks' / f'{name}.jsonl').read_text('utf-8')
  return [json.loads(line) for line in lines.splitlines()]


def check(
  judge: verifier.Verifier,
  rows: list[dict[str, str]],
  rng: random.Random,
  num_random: int,
) -> dict:
  """Returns which answers are not correct for their own problem, or for others.

  Args:
    judge: the verifier.
    rows: of a benchmark.
    rng: draws the other problems.
    num_random: other problems for each answer, besides the next.
  """
  own = [(row, row) for row in rows]
  others = list(zip(rows, rows[1:], strict=False))
  others += [(row, rng.choice(rows)) for row in rows for _ in range(num_random)]
  # Equal as strings or as numbers: not to be told apart.
  others = [
    (row, other)
    for row, other in others
    if not equality.compare(row['answer'], other['answer'])
  ]

  def verdicts(pairs):
    return judge.judge(
      [rf'\boxed{{{row["answer"]}}}' for row, _ in pairs],
      [other['answer'] for _, other in pairs],
    )

  statuses = verdicts(others)
  return {
    'num': len(rows),
    'not_own': [
      {'id': row['id'], 'status': verdict.status}
      for (row, _), verdict in zip(own, verdicts(own), strict=True)
      if not verdict.is_correct
    ],
    'num_others': len(others),
    'statuses_of_others': verifier.count(statuses),
    'correct_for_others': [
      {
        'ids': [row['id'], other['id']],
        'answer': row['answer'],
        'reference': other['answer'],
      }
      for (row, other), verdict in zip(others, statuses, strict=True)
      if verdict.is_correct
    ],
    'neither_for_others': {
      status: sorted(
        {
          row['id']
          for (row, _), verdict in zip(others, statuses, strict=True)
          if verdict.status == status
        }
      )
      for status in verifier.STATUSES
      if status not in (_CORRECT, _WRONG)
    },
  }


def check_parsed(rows: list[dict[str, str]]) -> list[dict[str, str]]:
  """Returns which answers math-verify alone does not hold for their own."""
  pool = pool_lib.Pool(
    verify_fn=equality.verify_parsed,
    warm_up=('x', 'y'),
    num_workers=SETTINGS['num_workers'],
    answer_timeout=SETTINGS['answer_timeout'],
    memory_limit=SETTINGS['memory_limit'],
  )
  statuses = pool.run([(row['answer'], row['answer']) for row in rows])
  pool.close()
  return [
    {'id': row['id'], 'status': status}
    for row, status in zip(rows, statuses, strict=True)
    if status != _CORRECT
  ]


def about() -> dict:
  """Returns what the results depend on."""
  commit = subprocess.run(
    ['git', 'rev-parse', '--short', 'HEAD'], capture_output=True, text=True
  ).stdout.strip()
  lines = pathlib.Path('/proc/cpuinfo').read_text().splitlines()
  cpu = next(line.split(':')[1] for line in lines if 'model name' in line)
  return {
    'commit': commit,
    'settings': SETTINGS,
    'hardware': {'cpu': cpu.strip(), 'cores': os.cpu_count()},
    'versions': {
      name: importlib.metadata.version(name)
      for name in ('math-verify', 'latex2sympy2_extended', 'sympy')
    }
    | {'python': platform.python_version()},
  }


if __name__ == '__main__':
  main()
