"""Averages curves over equally many rollouts, reads levels, aligns seeds.

Arms whose iterations differ in size are compared over windows of equally many
rollouts, so that the same learning curve gives the same means and the same
noise, in however many pieces it was generated. A window may end within an
iteration; the part inside counts for its share. As a function of its centre,
a mean is linear between the centres at which an end of the window passes from
one iteration to the next, so its values at these centres are all of it.
"""

from collections.abc import Sequence

import numpy as np

from replay_rl import tolerances


def centers(counts: np.ndarray, window: int) -> np.ndarray:
  """Returns the centres between which all means are linear.

  Args:
    counts: `[I]` whole numbers, rollouts of each iteration of a seed.
    window: rollouts, at least 1.

  Returns:
    `[N]` increasing float64, rollouts before the centre; empty if the seed has
    fewer rollouts than the window.
  """
  ends = np.append(0.0, np.cumsum(counts))
  half = window / 2
  places = np.unique(np.concatenate([ends - half, ends + half]))
  return places[(places >= half) & (places <= ends[-1] - half)]


def centered_means(
  values: np.ndarray, counts: np.ndarray, window: int
) -> np.ndarray:
  """Averages over the rollouts of a window around each of the centres.

  Args:
    values: `[I]` float64, that of all rollouts of an iteration. An iteration
      without rollouts has no weight.
    counts: `[I]`, as in `centers`.
    window: rollouts.

  Returns:
    `[N]`, one for each centre; NaN where a value in the window is NaN.
  """
  middles = centers(counts, window)
  ends = np.append(0.0, np.cumsum(counts))

  def sums(of_iterations: np.ndarray) -> np.ndarray:
    total = np.append(0.0, np.cumsum(of_iterations * counts))
    high, low = (
      np.interp(middles + side * window / 2, ends, total) for side in (1, -1)
    )
    return high - low

  is_unknown = np.isnan(values)
  means = sums(np.where(is_unknown, 0, values)) / window
  return np.where(sums(is_unknown) > 0, np.nan, means)


def place_of_level(values: np.ndarray, level: float) -> float:
  """Finds where a curve first reaches a level.

  Args:
    values: `[N]` float64, between which the curve is linear; NaN reaches
      nothing.
    level: to reach.

  Returns:
    The place along N, such as 2.5 half-way between the third and the fourth;
    infinity if there is none.
  """
  is_reached = values >= level - tolerances.SCORE
  if not is_reached.any():
    return np.inf
  place = int(is_reached.argmax())
  if place == 0 or np.isnan(values[place - 1]):
    return float(place)
  low, high = values[place - 1 : place + 1]
  # At most 1: a value may be below the level by the tolerance.
  return place - 1 + min(1.0, (level - low) / (high - low))


def at(values: np.ndarray, place: float) -> float:
  """Reads a curve `[N]` at a place; infinity where that is infinite."""
  if np.isinf(place):
    return np.inf
  return float(np.interp(place, np.arange(len(values)), values))


def on_common_axis(
  budgets: Sequence[np.ndarray] | np.ndarray,
  values: Sequence[np.ndarray] | np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
  """Interpolates seeds linearly onto budgets that all of them have spent.

  Seeds spend different numbers of tokens in an iteration. A median at equal
  iterations would compare unequal budgets.

  Args:
    budgets: of each of S seeds `[N]` float64, not falling. Seeds may have
      different N.
    values: of each seed `[N]` float64.

  Returns:
    `[M]` increasing budgets, those of any seed within the range of all, and
    `[S, M]` values; M is 0 if nothing is common to all seeds. Points where the
    budget or the value is NaN are left out.
  """
  seeds = []
  for x, y in zip(budgets, values, strict=True):
    is_known = np.isfinite(x) & np.isfinite(y)
    if not is_known.any():
      return np.zeros(0), np.zeros((len(values), 0))
    seeds.append((x[is_known], y[is_known]))
  start = max(x[0] for x, _ in seeds)
  end = min(x[-1] for x, _ in seeds)
  grid = np.unique(np.concatenate([x for x, _ in seeds]))
  grid = grid[(grid >= start) & (grid <= end)]
  return grid, np.stack([np.interp(grid, x, y) for x, y in seeds])


def quartiles(values: np.ndarray) -> np.ndarray:
  """Returns the quartiles over seeds, `[3, N]`, of values `[S, N]`."""
  return np.quantile(values, [0.25, 0.5, 0.75], axis=0)
