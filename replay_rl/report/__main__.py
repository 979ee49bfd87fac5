"""Reports runs, a sweep, or a figure of a paper.

    python -m replay_rl.report runs/a runs/b --out=report
    python -m replay_rl.report sweep runs/x --level=0.8 --mu=5.28
    python -m replay_rl.report figure A3 runs/x

`sweep --help` and `figure --help` list their flags. A run in a folder named
like a command is given as ./sweep.
"""

import argparse
import contextlib
import pathlib
import sys
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import rich.box
import rich.console
import rich.table
from rich import text

from replay_rl.bucket import reading
from replay_rl.disk import paths
from replay_rl.report import export
from replay_rl.report import figures
from replay_rl.report import page
from replay_rl.report import paper_figures
from replay_rl.report import readings
from replay_rl.report import runs
from replay_rl.report import sample_log
from replay_rl.report import samples_page
from replay_rl.report import sweep_report
from replay_rl.report import table
from replay_rl.report import words


class Command(NamedTuple):
  """add_flags: adds its flags to a parser. run: does it. help: what it is."""

  add_flags: Callable[[argparse.ArgumentParser], None]
  run: Callable[[argparse.Namespace], None]
  help: str | None


COMMANDS = {
  'sweep': Command(
    sweep_report.add_flags,
    sweep_report.run,
    sweep_report.__doc__,
  ),
  'figure': Command(
    paper_figures.add_flags,
    paper_figures.run,
    paper_figures.__doc__,
  ),
}


def main(arguments: list[str] | None = None) -> int:
  """Does a command, or compares runs; returns the exit code."""
  arguments = sys.argv[1:] if arguments is None else arguments
  if arguments and arguments[0] in COMMANDS:
    return _command(arguments[0], arguments[1:])
  return _compare_runs(arguments)


def _command(name: str, arguments: list[str]) -> int:
  """Does what a command asks for; returns the exit code."""
  command = COMMANDS[name]
  parser = argparse.ArgumentParser(
    prog=f'python -m replay_rl.report {name}',
    description=command.help,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  command.add_flags(parser)
  options = parser.parse_args(arguments)
  try:
    command.run(options)
  except (ValueError, OSError, ImportError) as error:
    print(f'error: {error}', file=sys.stderr)
    return 2
  return 0


def _compare_runs(arguments: list[str]) -> int:
  """Writes the report of runs and prints its table; returns the exit code."""
  options = _parse(arguments)
  try:
    results = render(options)
  except (ValueError, OSError, ImportError) as error:
    print(f'error: {error}', file=sys.stderr)
    return 2
  for what in table.SAVED:
    rich.console.Console().print(terminal_table(results, what))
  for arm in results.arms:
    if arm.timed:
      print(page.timed_sentence(arm))
  print(results.rule.in_words())
  print(pathlib.Path(options.out) / 'index.html')
  return 0


def render(options: argparse.Namespace) -> table.Results:
  """Writes index.html, table.json, table.csv and one PNG per figure.

  Where a run has samples, it also writes samples.html and links to it. The same
  runs give the same bytes.

  Args:
    options: the flags.

  Returns:
    The table.

  Raises:
    ValueError: if a run folder or a flag is wrong.
  """
  thresholds = options.thresholds
  if (
    sorted(set(thresholds)) != [*thresholds]
    or not np.isfinite(thresholds).all()
  ):
    raise ValueError(
      f'thresholds = {thresholds}: must be increasing finite numbers'
    )
  with contextlib.ExitStack() as stack:
    folders = [
      str(stack.enter_context(reading.readable('runs', run, checkpoints=False)))
      for run in options.runs
    ]
    arms = runs.read_all(folders, given=options.runs)
    samples = [
      sample_log.read(folder, arm=run.name, max_samples=options.max_samples)
      for folder, run in zip(folders, arms, strict=True)
    ]
  settings = {
    'baseline': options.baseline or arms[0].name,
    'thresholds': thresholds,
    'rule': readings.choose(arms, options.window_rollouts),
  }
  results = table.make(arms, **settings)
  drawn = figures.make(arms, **settings)
  out = pathlib.Path(options.out)
  out.mkdir(parents=True, exist_ok=True)
  for figure in drawn:
    (out / f'{figure.name}.png').write_bytes(figure.png)
  has_samples = any(arm.kept for arm in samples)
  pages = {
    'table.json': export.to_json(results),
    'table.csv': export.to_csv(results),
    'index.html': page.make(arms, results, drawn, has_samples=has_samples),
  }
  if has_samples:
    pages[page.SAMPLES] = samples_page.make(samples)
  for name, content in pages.items():
    (out / name).write_text(content, 'utf-8')
  return results


def terminal_table(results: table.Results, what: str) -> rich.table.Table:
  """Returns one line per arm: what it spent and saved, by threshold.

  Args:
    results: the table.
    what: one of `table.SAVED`.
  """
  num_seeds = min(len(arm.seeds) for arm in results.arms)
  prices = sorted({arm.mu for arm in results.arms})
  unit = {
    'generated_tokens': 'Generated tokens',
    'cost_units': f'Cost units (mu = {", ".join(prices)})',
  }[what]
  grid = rich.table.Table(
    title=f'{unit} to reach a level of {results.rule.score}, and saving '
    f'(medians over {num_seeds} seeds)',
    box=rich.box.SIMPLE_HEAD,
  )
  grid.add_column('arm', overflow='fold')
  thresholds = [f'{m.threshold:g}' for m in results.arms[0].milestones]
  for column in (*thresholds, 'reward at end', 'replay ratio'):
    grid.add_column(column, justify='right')
  for arm in results.arms:
    grid.add_row(
      text.Text(arm.name),
      *(_cell(milestone.spent[what]) for milestone in arm.milestones),
      words.median(arm.reward),
      words.median(arm.replay_ratio),
    )
  return grid


def _cell(spending: table.Spending) -> str:
  num_seeds = len(spending.per_seed)
  num_reached = int(np.isfinite(spending.per_seed).sum())
  lines = [words.amount(spending.median)]
  if spending.saving is not None:
    saving = spending.saving.comparison.saving
    if np.isfinite(saving):
      lines.append(words.percent(saving))
  if num_reached < num_seeds:
    lines.append(f'({num_reached} of {num_seeds})')
  return '\n'.join(lines)


def _parse(arguments: list[str]) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    prog='python -m replay_rl.report',
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  add = parser.add_argument
  add(
    'runs',
    nargs='+',
    type=reading.text,
    help='run folders or addresses, one per arm; the others are compared with '
    'the first',
  )
  add(
    '--out',
    default='report',
    type=paths.text,
    help='folder to write (default: %(default)s)',
  )
  add(
    '--thresholds',
    type=_thresholds,
    default=(0.5, 0.6, 0.7),
    help='levels to reach, comma-separated (default: .5,.6,.7)',
  )
  add(
    '--window_rollouts',
    type=int,
    help='rollouts of the centred mean (default: five times the largest '
    'iteration of any arm)',
  )
  add('--baseline', help='name of the arm to compare with (default: the first)')
  add(
    '--max_samples',
    type=int,
    default=5000,
    help='samples of the buffer to show of each run (default: %(default)s)',
  )
  return parser.parse_args(arguments)


def _thresholds(listed: str) -> tuple[float, ...]:
  try:
    return tuple(float(threshold) for threshold in listed.split(','))
  except ValueError:
    raise argparse.ArgumentTypeError(
      f'must be numbers with commas between them, not {listed!r}'
    ) from None


if __name__ == '__main__':
  sys.exit(main())
