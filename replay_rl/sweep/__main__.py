"""Runs a sweep.

    python -m replay_rl.sweep --sweep=experiments/replay_study/tune.py \\
        --out=runs/tune --dry_run

The file has a function `get_cells`, see `cells`. Each cell is a run in a folder
of its own below --out; the same command, given again, skips the cells that
have finished and continues the others. `--dry_run` prints what would run. When
all cells have ended, its evaluations.csv has a line for each evaluation of
each seed.

`--cells` runs a part of the sweep, as any scheduler may do on many machines
that share --out. `--executor` names a scheduler; its settings follow `--`, see
`on_ray` and `jobs`. `--collect` runs nothing and writes evaluations.csv.

The exit status is 1 if a cell failed, or had not finished for --collect, and 2
if a flag or a setting is wrong.
"""

import functools
import pathlib
import sys
from collections.abc import Sequence

import rich.box
import rich.console
import rich.table
from absl import app
from absl import flags
from absl import logging as absl_logging

from replay_rl import command_line
from replay_rl.disk import paths
from replay_rl.sweep import cells as cells_lib
from replay_rl.sweep import executors
from replay_rl.sweep import local
from replay_rl.sweep import planning
from replay_rl.sweep import progress
from replay_rl.sweep import results

# Its own flags, so that other programs can be imported beside this one.
FLAGS = flags.FlagValues()
_SWEEP = flags.DEFINE_string(
  'sweep', None, 'Python file with get_cells.', flag_values=FLAGS
)
_OUT = flags.DEFINE_string(
  'out', None, 'Folder of the runs.', flag_values=FLAGS
)
_DRY_RUN = flags.DEFINE_bool(
  'dry_run', False, 'Only print what would run.', flag_values=FLAGS
)
_CELLS = flags.DEFINE_multi_string(
  'cells',
  [],
  'Run this cell alone, by its name, or the cells with these programs, by the '
  'number that --dry_run prints. May be given more than once.',
  flag_values=FLAGS,
)
_EXECUTOR = flags.DEFINE_enum(
  'executor',
  'local',
  list(executors.EXECUTORS),
  'What runs the cells; its settings follow --.',
  flag_values=FLAGS,
)
_COLLECT = flags.DEFINE_bool(
  'collect',
  False,
  'Run nothing; write evaluations.csv of the cells that have finished.',
  flag_values=FLAGS,
)
_ALLOW_CODE_CHANGE = flags.DEFINE_bool(
  'allow_code_change',
  False,
  'Continue cells although the code or the packages have changed since then; '
  'config.json records it.',
  flag_values=FLAGS,
)


def table(
  planned: Sequence[planning.PlannedCell], out: pathlib.Path
) -> rich.table.Table:
  """Returns what would run, a line per cell."""
  num_programs = len(planning.unfinished_groups(planned))
  costs = [progress.remaining(one, out) for one in planned]
  times = progress.seconds_remaining(planned, out)
  known = progress.in_words(sum(time for time in times if time is not None))
  expected = f'time at most {known}'
  if None in times:
    expected += f', unknown for {times.count(None)} cells'
  grid = rich.table.Table(
    title=f'{len(planned)} cells, {num_programs} sets of programs to compile, '
    f'at most {sum(costs):,.0f} cost units; {expected}',
    box=rich.box.SIMPLE_HEAD,
  )
  for name in ('cell', 'programs', 'cost units', 'time', ''):
    is_right = name in ('programs', 'cost units', 'time')
    justify = 'right' if is_right else 'left'
    grid.add_column(name, justify=justify, overflow='fold')
  for one, cost, time in zip(planned, costs, times, strict=True):
    words = ['unknown' if time is None else progress.in_words(time), '']
    if one.is_finished:
      words = ['', 'finished']
    grid.add_row(one.cell.name, str(one.program), f'{cost:,.0f}', *words)
  return grid


def main(argv: list[str]) -> None:
  """Runs the sweep that the flags name."""
  # Orbax prints a traceback before it raises the error.
  absl_logging.set_verbosity(absl_logging.FATAL)
  console = rich.console.Console()
  say = functools.partial(
    console.print, highlight=False, markup=False, soft_wrap=True
  )
  with command_line.lasting_output():
    try:
      file, out = _paths(argv[1:])
      planned = planning.plan(cells_lib.load(file), out)
      work = planning.Work(
        file=file,
        out=out,
        planned=planning.choose(planned, _CELLS.value),
        chosen=_CELLS.value,
        settings=argv[1:],
        say=say,
        allow_code_change=_ALLOW_CODE_CHANGE.value,
      )
      if _DRY_RUN.value:
        console.print(table(work.planned, out))
        return
      ended = []
      if not _COLLECT.value:
        ended = executors.EXECUTORS[_EXECUTOR.value](work)
      is_good = _write_table(work._replace(planned=planned), ended)
    except (ValueError, OSError) as error:
      print(command_line.last_line(error), file=sys.stderr)
      sys.exit(2)
    except KeyboardInterrupt:  # Between cells, or of the workers of Ray.
      print(
        'error: stopped by Ctrl-C; the same command continues', file=sys.stderr
      )
      sys.exit(130)
  if not is_good:
    sys.exit(1)


def _paths(settings: Sequence[str]) -> tuple[pathlib.Path, pathlib.Path]:
  """Returns the file and the folder of the sweep.

  Args:
    settings: of the executor.

  Raises:
    ValueError: a flag is missing, or cannot be with another.
  """
  words = [text for text in settings if not text.startswith('-')]
  if words:
    raise ValueError(f'arguments = {words}: must be flags')
  if _SWEEP.value is None or _OUT.value is None:
    name = '--sweep' if _SWEEP.value is None else '--out'
    raise ValueError(f'{name} = None: must be given')
  if _COLLECT.value and (_CELLS.value or _DRY_RUN.value or settings):
    raise ValueError(
      '--collect = True: must be without --cells, --dry_run and settings'
    )
  paths.check('--sweep', _SWEEP.value)
  paths.check('--out', _OUT.value)
  file, out = (
    pathlib.Path(path).expanduser().resolve()
    for path in (_SWEEP.value, _OUT.value)
  )
  return file, out


def _write_table(work: planning.Work, ended: Sequence[planning.Ended]) -> bool:
  """Writes evaluations.csv if no cell has still to run, or for --collect.

  Args:
    work: with all cells of the sweep.
    ended: the cells that this process has run or checked.

  Returns:
    Whether no cell failed, and none is missing for --collect.

  Raises:
    ValueError: --collect finds no cell that has finished.
    OSError: the file cannot be written.
  """
  names = {one.name for one in ended}
  # Other processes may have run them since this one began.
  others = [
    one._replace(
      is_finished=planning.is_finished(one.cell, work.out / one.cell.name)
    )
    for one in work.planned
    if one.cell.name not in names
  ]
  waiting = [one.cell.name for one in others if not one.is_finished]
  if waiting:
    work.say(
      f'{len(waiting)} of {len(work.planned)} cells have not finished'
      + f'; {results.EVALUATIONS} is written when all have'
      * (not _COLLECT.value)
    )
  if _COLLECT.value and len(waiting) == len(work.planned):
    raise ValueError(
      f"--out = '{work.out}': must have a cell that has finished"
    )
  failed = [one for one in ended if one.error is not None]
  if _COLLECT.value or not waiting:
    for one in local.check(work._replace(planned=others)):
      if one.error is not None:
        work.say(f'{one.name}: failed: {one.error}')
        failed.append(one)
    without = {*waiting, *(one.name for one in failed)}
    cells = [one.cell for one in work.planned if one.cell.name not in without]
    results.write(cells, work.out)
  if failed:
    work.say(f'{len(failed)} of {len(work.planned)} cells failed')
  return not failed and not (_COLLECT.value and waiting)


if __name__ == '__main__':
  app.run(
    main,
    flags_parser=functools.partial(
      command_line.parse, own=FLAGS, description=__doc__
    ),
  )
