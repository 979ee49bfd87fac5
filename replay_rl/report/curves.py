"""Smooths curves, finds where they cross a value, and aligns them.

Arrays are `[S, I]`: one row per seed, one column per iteration.
"""

import numpy as np

from replay_rl import tolerances


def trailing_mean(values: np.ndarray, window: int) -> np.ndarray:
  """Averages each value with the `window - 1` before it.

  Args:
    values: `[S, I]` float64.
    window: iterations, at least 1 and at most I.

  Returns:
    `[S, I]`, NaN in the first `window - 1` columns, where the window is not
    full, and where a value in the window is NaN.
  """
  windows = np.lib.stride_tricks.sliding_window_view(values, window, axis=1)
  padding = np.full((values.shape[0], window - 1), np.nan)
  return np.concatenate([padding, windows.mean(axis=-1)], axis=1)


def crossings(values: np.ndarray, threshold: float) -> np.ndarray:
  """Finds the first column in which each row reaches a threshold.

  Args:
    values: `[S, I]` float64; NaN reaches nothing.
    threshold: the value to reach.

  Returns:
    `[S]` int64 column; -1 where a row does not reach it.
  """
  is_reached = values >= threshold - tolerances.SCORE
  return np.where(is_reached.any(axis=1), is_reached.argmax(axis=1), -1)


def at(values: np.ndarray, columns: np.ndarray) -> np.ndarray:
  """Reads one column of each row; infinity where the column is -1.

  Args:
    values: `[S, I]` float64.
    columns: `[S]` int64, as `crossings` returns them.

  Returns:
    `[S]` float64.
  """
  picked = np.take_along_axis(values, columns[:, None], axis=1)[:, 0]
  return np.where(columns < 0, np.inf, picked)


def on_common_axis(
  budgets: np.ndarray, values: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Interpolates seeds linearly onto budgets that all of them have spent.

  Seeds spend different numbers of tokens in an iteration. A median at equal
  iterations would compare unequal budgets.

  Args:
    budgets: `[S, I]` float64, not falling along a row.
    values: `[S, I]` float64.

  Returns:
    `[N]` increasing budgets, those of any seed within the range of all, and
    `[S, N]` values; N is 0 if nothing is common to all seeds. Points where the
    budget or the value is NaN are left out.
  """
  is_known = np.isfinite(budgets) & np.isfinite(values)
  num_seeds = len(values)
  if not is_known.any(axis=1).all():
    return np.zeros(0), np.zeros((num_seeds, 0))
  seeds = [
    (budgets[s, is_known[s]], values[s, is_known[s]]) for s in range(num_seeds)
  ]
  start = max(x[0] for x, _ in seeds)
  end = min(x[-1] for x, _ in seeds)
  grid = np.unique(np.concatenate([x for x, _ in seeds]))
  grid = grid[(grid >= start) & (grid <= end)]
  return grid, np.stack([np.interp(grid, x, y) for x, y in seeds])


def quartiles(values: np.ndarray) -> np.ndarray:
  """Returns the quartiles over seeds, `[3, N]`, of values `[S, N]`."""
  return np.quantile(values, [0.25, 0.5, 0.75], axis=0)
