"""Compares runs: `python -m replay_rl.report runs/a runs/b --out=report`."""

import argparse
import math
import pathlib
import sys

import rich.box
import rich.console
import rich.table
from rich import text

from replay_rl.report import render
from replay_rl.report import table
from replay_rl.report import words


def main(arguments: list[str] | None = None) -> int:
  """Writes the report and prints its table; returns the exit code."""
  options = _parse(arguments)
  try:
    results = render.render(
      options.runs,
      options.out,
      thresholds=options.thresholds,
      smooth=options.smooth,
      baseline=options.baseline,
      max_samples=options.max_samples,
    )
  except (ValueError, OSError) as error:
    print(f'error: {error}', file=sys.stderr)
    return 2
  rich.console.Console().print(terminal_table(results))
  print(pathlib.Path(options.out) / 'index.html')
  return 0


def terminal_table(results: table.Table) -> rich.table.Table:
  """Returns one line per arm: generated tokens and saving by threshold."""
  grid = rich.table.Table(
    title='Generated tokens to reach a reward, and saving (medians over seeds)',
    box=rich.box.SIMPLE_HEAD,
  )
  grid.add_column('arm', overflow='fold')
  for milestone in results.arms[0].milestones:
    grid.add_column(f'{milestone.threshold:g}', justify='right')
  grid.add_column('reward at end', justify='right')
  grid.add_column('replay ratio', justify='right')
  for arm in results.arms:
    grid.add_row(
      text.Text(arm.name),
      *(_cell(milestone) for milestone in arm.milestones),
      words.median(arm.reward),
      words.median(arm.replay_ratio),
    )
  return grid


def _cell(milestone: table.Milestone) -> str:
  spending = milestone.spent['generated_tokens']
  num_seeds = len(spending.per_seed)
  lines = [words.amount(spending.median)]
  if spending.saving is not None and math.isfinite(spending.saving.median):
    lines.append(words.percent(spending.saving.median))
  if milestone.num_reached < num_seeds:
    lines.append(f'({milestone.num_reached} of {num_seeds})')
  return '\n'.join(lines)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    prog='python -m replay_rl.report',
    description='Compares runs: a table, figures and one HTML page.',
  )
  parser.add_argument(
    'runs', nargs='+', help='run folders, one per arm; the first is compared to'
  )
  parser.add_argument(
    '--out', default='report', help='folder to write (default: %(default)s)'
  )
  parser.add_argument(
    '--thresholds',
    type=_thresholds,
    default=(0.5, 0.6, 0.7),
    help='rewards to reach, comma-separated (default: .5,.6,.7)',
  )
  parser.add_argument(
    '--smooth',
    type=int,
    default=5,
    help='iterations of the trailing mean (default: %(default)s)',
  )
  parser.add_argument(
    '--baseline', help='name of the arm to compare with (default: the first)'
  )
  parser.add_argument(
    '--max_samples',
    type=int,
    default=5000,
    help='replayed samples to show of each run (default: %(default)s)',
  )
  return parser.parse_args(arguments)


def _thresholds(listed: str) -> tuple[float, ...]:
  try:
    return tuple(float(threshold) for threshold in listed.split(','))
  except ValueError:
    raise argparse.ArgumentTypeError(
      f'{listed!r} must be numbers with commas between them, such as .5,.6'
    ) from None


if __name__ == '__main__':
  sys.exit(main())
