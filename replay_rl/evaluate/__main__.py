"""Evaluates a language model on benchmarks of problems.

    python -m replay_rl.evaluate --model=DIR --benchmarks=math500,aime24 \\
        --data_dir=DIR --n=16 --max_new_tokens=4096 --chat --out=DIR

The same command again continues where it stopped: it appends samples to
`samples-<benchmark>.jsonl`, batch by batch, and writes scores to
`results.json`.
"""

import sys

from replay_rl.run import packages


def main(arguments: list[str] | None = None) -> int:
  """Evaluates what the flags name; returns the exit code."""
  try:
    packages.check_text('program', 'evaluate')
  except ValueError as error:
    print(f'error: {error}', file=sys.stderr)
    return 2
  # Its modules import packages of the extra [math].
  from replay_rl.evaluate import evaluator

  return evaluator.main(arguments)


if __name__ == '__main__':
  sys.exit(main())
