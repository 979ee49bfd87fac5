"""Numbers in words, for pages and the terminal."""

import math

import numpy as np

UNKNOWN = '–'


def amount(value: float) -> str:
  """Three figures with a unit prefix: 86.1k; 'not reached' if infinite."""
  if math.isinf(value):
    return 'not reached'
  if math.isnan(value):
    return UNKNOWN
  # Rounded to three figures first, so that 999.9k becomes 1M.
  rounded = float(f'{value:.3g}')
  for size, prefix in ((1e12, 'T'), (1e9, 'G'), (1e6, 'M'), (1e3, 'k')):
    if abs(rounded) >= size:
      return f'{rounded / size:g}{prefix}'
  return f'{rounded:g}'


def number(value: float) -> str:
  """Three figures, or a dash if the value is not finite."""
  return f'{value:.3g}' if math.isfinite(value) else UNKNOWN


def percent(share: float | None, decimals: int = 0) -> str:
  """A share in per cent with its sign; 'not reached' if it is -infinite.

  The space before the sign of per cent does not break.
  """
  if share is None or math.isnan(share):
    return UNKNOWN
  if math.isinf(share):
    return 'not reached'
  # Adding 0 turns -0 into 0.
  rounded = round(100 * share, decimals) + 0.0
  return f'{rounded:+.{decimals}f}\N{NO-BREAK SPACE}%'.replace('-', '−')


def median(values: np.ndarray) -> str:
  """The median over seeds in three figures; a dash if it is not finite."""
  return number(float(np.median(values)))
