"""Numbers in words, for the page and the terminal."""

import math

import numpy as np

UNKNOWN = '–'


def amount(value: float) -> str:
  """Three figures with a unit prefix: 86.1k; 'not reached' if infinite."""
  if math.isnan(value):
    return UNKNOWN
  if math.isinf(value):
    return 'not reached'
  for size, prefix in ((1e12, 'T'), (1e9, 'G'), (1e6, 'M'), (1e3, 'k')):
    # Rounded to three figures first, so that 999.9k becomes 1M.
    if abs(float(f'{value:.3g}')) >= size:
      return f'{float(f"{value:.3g}") / size:g}{prefix}'
  return f'{value:.3g}'


def number(value: float) -> str:
  """Three figures, or a dash if not finite."""
  return f'{value:.3g}' if math.isfinite(value) else UNKNOWN


def percent(share: float) -> str:
  """A share with its sign, in whole per cent; 'not reached' if -infinite.

  No line breaks before the sign of per cent.
  """
  if math.isnan(share):
    return UNKNOWN
  if math.isinf(share):
    return 'not reached'
  rounded = f'{100 * share:+.0f}'.replace('-', '−').replace('−0', '+0')
  return f'{rounded}\N{NO-BREAK SPACE}%'


def median(values: np.ndarray) -> str:
  """Median over seeds, three figures; a dash if it is not finite."""
  return number(float(np.median(values)))
