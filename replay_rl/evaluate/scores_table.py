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
  grids = [_scores(results), _samples(results)]
  if 'comparison' in results:
    grids.append(_comparison(results['comparison']))
  return grids


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
  settings = results['settings']
  grid = _grid(
    f'%, n = {settings["n"]}, temperature {settings["temperature"]:g}; '
    f'{100 * results["intervals"]["confidence"]:g} % interval over problems '
    '(Wilson)',
    [f'pass@{k}' for k in results['average']['pass_at_k']],
  )
  for name, scores in _with_average(results).items():
    grid.add_row(text.Text(name), *map(_cell, scores['pass_at_k'].values()))
  return grid


def _with_average(results: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the benchmarks and, if there are several, their average."""
  rows = dict(results['benchmarks'])
  return rows | {'average': results['average']} if len(rows) > 1 else rows


def _cell(score: Mapping[str, Any]) -> str:
  cell = f'{100 * score["mean"]:.1f}'
  if score['interval'] is None:
    return cell
  low, high = score['interval']
  return f'{cell}\n{100 * low:.1f}–{100 * high:.1f}'


def _samples(results: Mapping[str, Any]) -> rich.table.Table:
  totals = collections.Counter()
  for scores in results['benchmarks'].values():
    totals.update(scores['statuses'])
  shown = [name for name, total in totals.items() if total]
  grid = _grid(
    'responses, and how many have which status of the verifier',
    ['problems', 'tokens', 'cut off', *shown],
  )
  for name, scores in _with_average(results).items():
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
  for name, change in _with_average(comparison).items():
    grid.add_row(
      text.Text(name),
      words.percent(change['accuracy_gain'], decimals=1),
      # The change of the length, not the share saved.
      words.percent(-change['length_reduction'], decimals=1),
      words.UNKNOWN if change['aes'] is None else f'{change["aes"]:+.3f}',
    )
  return grid
