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
  seed had spent, and the scores. The same runs give the same bytes.

  Args:
    cells: those that have finished.
    out: folder of the sweep.
  """
  rows: list[dict[str, Any]] = []
  for cell in cells:
    for line in logs.read(out / cell.name):
      if budget.SCORE in line:
        scores = {x: line[x] for x in line if x.startswith('eval/')}
        spent = {name: line[name] for name in _SPENT}
        rows.append(
          {'cell': cell.name, **cell.fields, 'seed': line['seed']}
          | spent
          | scores
        )
  columns = list(dict.fromkeys(name for row in rows for name in row))
  text = io.StringIO()
  writer = csv.DictWriter(text, columns, lineterminator='\n')
  writer.writeheader()
  writer.writerows(rows)
  durable.write(out / EVALUATIONS, text.getvalue().encode())
