"""The tables that `python -m replay_rl.evaluate` prints."""

import collections
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

import rich.box
import rich.table
from rich import text

from replay_rl.report import words


def tables(results: Mapping[str, Any]) -> list[rich.table.Table]:
  """Returns scores, what the verifier said, and the comparison if there is one.

  Args:
    results: what `results.json` holds.
  """
  found = [_scores(results), _samples(results)]
  if 'comparison' in results:
    found.append(_comparison(results['comparison']))
  return found


def _grid(
  title: str, columns: Iterable[str], caption: str | None = None
) -> rich.table.Table:
  grid = rich.table.Table(
    title=text.Text(title), caption=caption, box=rich.box.SIMPLE_HEAD
  )
  grid.add_column('benchmark', overflow='fold')
  for column in columns:
    grid.add_column(column, justify='right', no_wrap=True)
  return grid


def _scores(results: Mapping[str, Any]) -> rich.table.Table:
  settings, benchmarks = results['settings'], results['benchmarks']
  grid = _grid(
    f'%, n = {settings["n"]}, temperature {settings["temperature"]:g}; '
    f'{100 * results["intervals"]["confidence"]:g} % bootstrap over problems',
    [f'pass@{k}' for k in results['average']['pass_at_k']],
  )
  for name, scores in benchmarks.items():
    grid.add_row(text.Text(name), *_cells(scores))
  if len(benchmarks) > 1:
    grid.add_row('average', *_cells(results['average']))
  return grid


def _cells(scores: Mapping[str, Any]) -> list[str]:
  cells = []
  for found in scores['pass_at_k'].values():
    cells.append(f'{100 * found["mean"]:.1f}')
    if found['interval'] is not None:
      low, high = found['interval']
      cells[-1] += f'\n{100 * low:.1f}–{100 * high:.1f}'
  return cells


def _samples(results: Mapping[str, Any]) -> rich.table.Table:
  benchmarks = results['benchmarks']
  totals = collections.Counter()
  for scores in benchmarks.values():
    totals.update(scores['statuses'])
  shown = [name for name, total in totals.items() if total]
  grid = _grid(
    'responses, and how many the verifier found to be what',
    ['problems', 'tokens', 'cut off', *shown],
  )
  rows = dict(benchmarks)
  if len(rows) > 1:
    rows['average'] = results['average']
  for name, scores in rows.items():
    counts = scores.get('statuses', {})
    grid.add_row(
      text.Text(name),
      str(scores.get('num_problems', '')),
      f'{scores["response_length"]:.1f}',
      f'{100 * scores["truncated_fraction"]:.1f} %',
      *(str(counts.get(status, '')) for status in shown),
    )
  return grid


def _comparison(comparison: Mapping[str, Any]) -> rich.table.Table:
  constants = ', '.join(
    f'{name} {value:g}' for name, value in comparison['constants'].items()
  )
  differing = ', '.join(comparison['differing_settings'])
  grid = _grid(
    f'against {comparison["baseline"]} ({constants})',
    ['accuracy', 'length', 'AES'],
    f'The baseline has other settings: {differing}' if differing else None,
  )
  rows = dict(comparison['benchmarks'])
  if len(rows) > 1:
    rows['average'] = comparison['average']
  for name, found in rows.items():
    grid.add_row(
      text.Text(name),
      _percent(found['accuracy_gain']),
      # Of the length, not of what is saved.
      _percent(-found['length_reduction']),
      words.UNKNOWN if found['aes'] is None else f'{found["aes"]:+.3f}',
    )
  return grid


def _percent(share: float | None) -> str:
  return words.UNKNOWN if share is None else f'{100 * share:+.1f} %'
