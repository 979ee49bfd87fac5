"""The evaluations of a sweep as one table."""

import csv
import io
import pathlib
from collections.abc import Sequence
from typing import Any

from replay_rl.disk import durable
from replay_rl.run import budget
from replay_rl.run import logs
from replay_rl.sweep import cells as cells_lib

EVALUATIONS = 'evaluations.csv'
_SPENT = (
  'seed',
  'iteration',
  'learner_step',
  'ledger/generated_tokens',
  'ledger/rollouts',
  'ledger/trained_rollouts',
  budget.COST,
)


def write(cells: Sequence[cells_lib.Cell], out: pathlib.Path) -> None:
  """Writes a line for each evaluation of each seed of the finished cells.

  The columns are the cell, the fields in which cells differ, the seed, what the
  seed had spent, and the scores. A seed that was never evaluated has one line,
  of its end, without scores. The same runs give the same bytes.

  Args:
    cells: those that have finished.
    out: folder of the sweep.
  """
  rows: list[dict[str, Any]] = []
  scores: dict[str, None] = {}
  for cell in cells:
    lines = list(logs.read(out / cell.name))
    evaluated = [line for line in lines if budget.SCORE in line]
    seeds = {line['seed'] for line in evaluated}
    ends = {x['seed']: x for x in lines if x['seed'] not in seeds}
    for line in (*evaluated, *ends.values()):
      of_line = {x: line[x] for x in line if x.startswith('eval/')}
      scores |= dict.fromkeys(of_line)
      spent = {name: line[name] for name in _SPENT}
      rows.append({'cell': cell.name, **cell.fields} | spent | of_line)
  fields = dict.fromkeys(field for cell in cells for field in cell.fields)
  fields.pop('seed', None)  # Each line has its own.
  text = io.StringIO()
  writer = csv.DictWriter(
    text, ['cell', *fields, *_SPENT, *scores], lineterminator='\n'
  )
  writer.writeheader()
  writer.writerows(rows)
  durable.write(out / EVALUATIONS, text.getvalue().encode())
