"""Runs a sweep: `python -m replay_rl.sweep --sweep=FILE --out=FOLDER`.

The file has a function `get_cells`, see `cells`. Each cell is a run in a folder
of its own below FOLDER; the same command, given again, skips the cells that
have finished and continues the others. `--dry_run` prints what would run. At
the end FOLDER/evaluations.csv has a line for each evaluation of each seed. The
exit status is 1 if a cell failed, and 2 if a flag or a setting is wrong.
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
from replay_rl.sweep import cells as cells_lib
from replay_rl.sweep import local
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
_ALLOW_CODE_CHANGE = flags.DEFINE_bool(
  'allow_code_change',
  False,
  'Continue cells although the code or the packages have changed since then; '
  'config.json records it.',
  flag_values=FLAGS,
)


def table(planned: Sequence[local.PlannedCell]) -> rich.table.Table:
  """Returns what would run, a line per cell."""
  num_programs = len({one.program for one in planned})
  total = sum(one.cost_units for one in planned if not one.is_finished)
  grid = rich.table.Table(
    title=f'{len(planned)} cells, {num_programs} sets of programs to compile, '
    f'at most {total:,.0f} cost units',
    box=rich.box.SIMPLE_HEAD,
  )
  for name in ('cell', 'programs', 'cost units', ''):
    right = name in ('programs', 'cost units')
    grid.add_column(name, justify='right' if right else 'left', overflow='fold')
  for one in planned:
    state = 'finished' if one.is_finished else ''
    grid.add_row(
      one.cell.name, str(one.program), f'{one.cost_units:,.0f}', state
    )
  return grid


def main(argv: list[str]) -> None:
  """Runs the sweep that the flags name."""
  if len(argv) > 1:
    print(f'error: arguments = {argv[1:]}: must be flags', file=sys.stderr)
    sys.exit(2)
  # Orbax prints a traceback before it raises the error.
  absl_logging.set_verbosity(absl_logging.FATAL)
  console = rich.console.Console()
  with command_line.lasting_output():
    try:
      if _SWEEP.value is None or _OUT.value is None:
        name = '--sweep' if _SWEEP.value is None else '--out'
        raise ValueError(f'{name} = None: must be given')
      cells = cells_lib.load(pathlib.Path(_SWEEP.value))
      out = pathlib.Path(_OUT.value).expanduser().resolve()
      if _DRY_RUN.value:
        console.print(table(local.plan(cells, out)))
        return
      ended = local.run(
        cells,
        out,
        say=functools.partial(
          console.print, highlight=False, markup=False, soft_wrap=True
        ),
        allow_code_change=_ALLOW_CODE_CHANGE.value,
      )
    except ValueError as error:
      print(command_line.last_line(error), file=sys.stderr)
      sys.exit(2)
    failed = [one for one in ended if one.error is not None]
    results.write(
      [cell for cell in cells if cell.name not in {x.name for x in failed}], out
    )
    if failed:
      console.print(f'{len(failed)} of {len(ended)} cells failed')
      sys.exit(1)


if __name__ == '__main__':
  app.run(
    main,
    flags_parser=functools.partial(
      command_line.parse, own=FLAGS, description=__doc__
    ),
  )
