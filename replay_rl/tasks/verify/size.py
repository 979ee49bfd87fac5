r"""Recognises answers that no parser or calculation would come to an end with.

`is_too_large` reads a text once, from left to right, and bounds every number in
it from above. It knows powers (`9^{9^9}`, `9**9`), factorials, binomial
coefficients, the limits of sums and products, and how deep brackets nest. What
it does not know (functions, integrals, matrices) it takes for products. A bound
may be too high: `2^{1/3 + 10^6}` is bounded as `2^{1 + 10^6}`.
"""

import math
import re
from typing import NamedTuple

# math-verify handles numbers of this size in less than a second. The largest
# number in the answers of six benchmarks, 2^1009, has 304 digits.
MAX_DIGITS = 100_000
# Terms that an expansion or a loop may have. (x+1)^1000 takes 20 s.
MAX_TERMS = 1000
# Brackets in brackets, and powers, factorials or bars in a row. The parser
# takes about a second for 12, and several for 25. The benchmarks have 4.
MAX_DEPTH = 12

_TOKEN = re.compile(
  rf'(?P<nested>\|{{{MAX_DEPTH + 1}}}|!{{{MAX_DEPTH + 1}}})'
  r'|(?P<number>(?:[0-9]{1,3}(?:,[0-9]{3})++(?![0-9])|[0-9]++)(?:\.[0-9]++)?'
  r'|\.[0-9]++)'
  r'|(?P<power>\^|\*\*)|(?P<factorial>!)|(?P<subscript>_)|(?P<divide>/|÷|\\div(?![a-zA-Z]))'
  r'|(?P<fraction>\\[dtc]?frac(?![a-zA-Z]))'
  r'|(?P<binomial>\\[dt]?binom(?![a-zA-Z]))'
  r'|(?P<loop>\\(?:sum|prod)(?![a-zA-Z]))'
  r'|(?P<open>[({\[]|\\\{)|(?P<close>[)}\]]|\\\})'
  r'|(?P<sign>[-+])|(?P<separator>[,;=<>&]|\\\\)'
  r'|(?P<cosmetic>\\(?:left|right)(?![a-zA-Z])|\\[!,:; ]|\s++)'
  r'|(?P<symbol>\\[a-zA-Z]++|.)',
  re.DOTALL,
)


def is_too_large(text: str) -> bool:
  """Returns whether a text holds a number or a nesting beyond the limits above.

  The time is linear in the length.

  Args:
    text: any text.
  """
  groups = [_Group()]
  try:
    for match in _TOKEN.finditer(text):
      kind, token = match.lastgroup, match[0]
      if kind == 'nested':
        return True
      if kind == 'open':
        groups.append(_Group())
        if len(groups) > MAX_DEPTH + 1:
          return True
      elif kind == 'close':
        if len(groups) > 1:
          inner = groups.pop().value()
          groups[-1].operand(inner)
      else:
        groups[-1].read(kind or '', token)
    while groups:
      inner = groups.pop().value()
      if groups:
        groups[-1].operand(inner)
  except _TooLargeError:
    return True
  return False


class _TooLargeError(Exception):
  """Ends the reading."""


class _Value(NamedTuple):
  """Bounds of an expression.

  magnitude: of its absolute value; symbols but Euler's number count as 1.
  digits: of its numerator and denominator together, in exact numbers.
  has_symbol: whether it is no number.
  has_sum: whether it has a sum with a symbol, which a power would expand.
  is_loop: whether it is the sign of a sum or product, whose power is a limit.
  """

  magnitude: float
  digits: float
  has_symbol: bool = False
  has_sum: bool = False
  is_loop: bool = False


_ONE = _Value(1.0, 0.0)
_SYMBOL = _ONE._replace(has_symbol=True)
# sympy computes with it as with a number, if there are no other symbols.
_E = _Value(math.e, math.log10(math.e), has_symbol=True)


class _Group:
  """What stands between two brackets, as far as it is read."""

  def __init__(self):
    self._sum = _Value(0.0, 0.0)
    self._term: _Value | None = None
    self._last: _Value | None = None  # What a `!` or `^` would apply to.
    self._bases: list[_Value] = []  # Powers that wait for their exponent.
    self._waiting: list[str] = []  # What the next operands are.
    self._has_symbol = self._has_sign = self._has_sum = False

  def read(self, kind: str, token: str) -> None:
    if kind == 'number':
      self.operand(_number(token))
    elif kind == 'symbol':
      self.operand(_E if token == 'e' else _SYMBOL)
    elif kind == 'loop':
      self.operand(_ONE._replace(is_loop=True))
    elif kind == 'factorial':
      if self._last is not None:
        self._last = _factorial(self._last)
    elif kind == 'power':
      if self._last is not None:
        self._bases.append(self._last)
        self._last = None
        if len(self._bases) > MAX_DEPTH:
          raise _TooLargeError
    elif kind == 'subscript':
      self._waiting = ['index']
    elif kind == 'divide':
      self._flush()
      self._waiting = ['divisor']
    elif kind == 'fraction':
      self._flush()
      self._waiting = ['factor', 'divisor']
    elif kind == 'binomial':
      self._flush()
      self._waiting = ['upper', 'lower']
    elif kind in ('sign', 'separator'):
      self._end_term()
      self._has_sign |= kind == 'sign'

  def operand(self, value: _Value) -> None:
    """Reads a number, a symbol or a group."""
    if self._waiting[:1] == ['index']:
      self._waiting = []
      return
    self._flush()
    self._last = value
    self._has_symbol |= value.has_symbol
    self._has_sum |= value.has_sum

  def value(self) -> _Value:
    """Returns the bounds of the whole group."""
    self._end_term()
    return self._sum._replace(
      has_symbol=self._has_symbol,
      has_sum=self._has_sum or (self._has_sign and self._has_symbol),
    )

  def _end_term(self) -> None:
    self._flush()
    term, self._term, self._waiting = self._term, None, []
    if term is not None:
      magnitude = self._sum.magnitude + term.magnitude
      digits = self._sum.digits + term.digits
      self._sum = _checked(magnitude, max(digits, _log10(magnitude)))

  def _flush(self) -> None:
    """Multiplies the term by the last operand, or by the power that it ends."""
    value, self._last = self._last, None
    if value is None:
      return
    while self._bases:
      value = _power(self._bases.pop(), value)
    role = self._waiting.pop(0) if self._waiting else 'factor'
    if role == 'upper':
      self._upper = value
      return
    if role == 'lower':
      value = _binomial(self._upper, value)
    magnitude = value.magnitude
    if role == 'divisor':
      # What is less than 1 makes the quotient greater.
      magnitude = 1 / magnitude if 0 < magnitude < 1 else 1.0
    term = self._term or _ONE
    self._term = _checked(
      term.magnitude * magnitude, term.digits + value.digits
    )


def _number(token: str) -> _Value:
  token = token.replace(',', '')
  # Decimals are inexact; their powers are no longer than they are.
  digits = 0.0 if '.' in token else float(len(token.lstrip('0')))
  if len(token) > 300:
    return _checked(math.inf, digits)
  # A bound of 0 times an infinite one would be no bound.
  magnitude = float(token) or 1.0
  return _Value(magnitude, _log10(magnitude) if digits else 0.0)


def _power(base: _Value, exponent: _Value) -> _Value:
  if base.is_loop:
    if exponent.magnitude > MAX_TERMS:
      raise _TooLargeError
    return _ONE
  if base.has_sum and exponent.magnitude > MAX_TERMS:
    raise _TooLargeError
  if not base.digits:  # A symbol, a decimal or 1.
    return _ONE
  digits = base.digits * exponent.magnitude
  return _checked(_exp10(digits), digits)


def _factorial(value: _Value) -> _Value:
  digits = math.lgamma(value.magnitude + 1) / math.log(10)
  return _checked(_exp10(digits), max(digits, 0.0))


def _binomial(upper: _Value, lower: _Value) -> _Value:
  # At most 2^n, and at most n^k.
  digits = min(upper.magnitude * math.log10(2), lower.magnitude * upper.digits)
  return _checked(_exp10(digits), digits)


def _checked(magnitude: float, digits: float) -> _Value:
  if digits > MAX_DIGITS:
    raise _TooLargeError
  return _Value(magnitude, digits)


def _log10(magnitude: float) -> float:
  # The digits of an infinite bound are known otherwise.
  return math.log10(magnitude) if 1 < magnitude < math.inf else 0.0


def _exp10(digits: float) -> float:
  return 10.0**digits if digits < 300 else math.inf
