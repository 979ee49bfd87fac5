r"""Whether two answers to a mathematical problem are equal.

`compare` settles what strings and exact numbers can settle. math-verify parses
and compares the rest.

math-verify is https://github.com/huggingface/math-verify. It takes a reference
and an answer for equal in these cases: `x=5` and 5; 50% and 50, and 50% and
0.5; `1,2` and `2,1`, and `1,2` and `(1,2)`; a fraction and a decimal that agree
in six places; a number with and without its base (`52_8` and 52), unit or
degrees. It is not symmetric: the reference decides the form, so 1 does not
answer `2x+y=1`.
"""

import fractions
import functools
import re
from typing import Any
from typing import NamedTuple

from replay_rl.tasks.verify import worker

MISSING = "package = 'math-verify': must be installed; pip install -e '.[math]'"

# `compare` leaves longer numbers and larger exponents to math-verify.
_MAX_NUMBER_CHARS = 1000
_MAX_EXPONENT = 1000

_PLAIN_NUMBER = r'(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)?(?:\.[0-9]*)?'
_POWER = r'10\^(?P<power>[0-9]|\{[-+]?[0-9]+\})'
_DECIMAL = re.compile(
  rf'(?P<mantissa>[-+]?{_PLAIN_NUMBER})'
  r'(?:[eE](?P<e>[-+]?[0-9]+)'
  rf'|(?:\\times|\\cdot|\*|×) ?{_POWER})?'
)
_POWER_OF_TEN = re.compile(rf'(?P<sign>[-+]?){_POWER}')
_FRACTION = re.compile(
  rf'(?P<sign>[-+]?)(?:\\frac\{{(?P<top>-?{_PLAIN_NUMBER})\}}'
  rf'\{{(?P<bottom>{_PLAIN_NUMBER})\}}'
  r'|\\frac ?(?P<one>[0-9])(?P<other>[0-9])'
  rf'|(?P<left>{_PLAIN_NUMBER})/(?P<right>{_PLAIN_NUMBER}))'
)
_BRACKETED = re.compile(r'([(\[])([^()\[\]]*)([)\]])')
_BASED = re.compile(r'(?P<digits>[0-9]+)_\{?(?P<base>[0-9]+)\}?')

_DOLLAR = re.compile(r'(\\.)|\$', re.DOTALL)
# Commands of spacing and size. `\\` is here so that it does not start a
# command.
_COSMETIC = re.compile(
  r'(?P<kept>\\\\)|\\[!,:; ]|~|\\(?:left|right)(?![a-zA-Z])'
  r'|\\[dt](?=frac(?![a-zA-Z]))'
)
_WORDS = re.compile(
  r'\\(?:text|textbf|textit|textrm|mathrm|mbox) ?\{([^{}\\]*)\}'
)
_SPACE = re.compile(r'(?P<kept>(?<=[0-9a-zA-Z])\s+(?=[0-9a-zA-Z]))|\s+')


def verify(answer: str, reference: str) -> bool:
  r"""Returns whether an answer equals the reference.

  math-verify may take any time and memory. Use a `pool.Pool` for text that is
  not trusted.

  Args:
    answer: as `extraction.extract` returns it.
    reference: the right answer.

  Raises:
    worker.UnreadableError: math-verify cannot parse the answer.
    ImportError: math-verify is needed and not installed.
  """
  is_equal = compare(answer, reference)
  return verify_parsed(answer, reference) if is_equal is None else is_equal


def verify_parsed(answer: str, reference: str) -> bool:
  """Returns what math-verify alone says; arguments and errors as `verify`."""
  try:
    import math_verify
  except ImportError as error:
    raise ImportError(MISSING) from error
  parsed = _parse(answer)
  # math-verify returns a text that it cannot parse as a string.
  if all(isinstance(value, str) for value in parsed):
    raise worker.UnreadableError
  # The pool limits the time. math-verify would use signals.
  return math_verify.verify(
    list(_parse_reference(reference)), parsed, timeout_seconds=None
  )


def compare(answer: str, reference: str) -> bool | None:
  r"""Returns whether two answers are equal if that is cheap to tell, else None.

  Strings are equal if they differ only in spacing, in `\left` and `\right`,
  dollar signs, `\dfrac` for `\frac`, a full stop at the end, or in the case of
  words in `\text{...}`. Otherwise this function compares integers (with or
  without thousands separators), decimals, powers of ten and fractions exactly;
  also numbers with a base (`52_8`), and tuples and intervals of all these,
  element by element. It returns None for a decimal and a fraction that differ,
  since the decimal may be rounded.

  The time is linear in the length.

  Args:
    answer: any text.
    reference: any text.
  """
  answer, reference = _plain(answer), _plain(reference)
  if answer == reference:
    return True
  first, second = _WORDS.fullmatch(answer), _WORDS.fullmatch(reference)
  if first or second:
    words = (first[1] if first else answer, second[1] if second else reference)
    if words[0].casefold() == words[1].casefold():
      return True
  first, second = _BASED.fullmatch(answer), _BASED.fullmatch(reference)
  if first and second:
    return first['digits'].lstrip('0') == second['digits'].lstrip('0') and (
      first['base'] == second['base']
    )
  first, second = _BRACKETED.fullmatch(answer), _BRACKETED.fullmatch(reference)
  if first and second:
    return _compare_bracketed(first, second)
  one, other = _number(answer), _number(reference)
  if one is None or other is None:
    return None
  if one.value == other.value:
    return True
  is_whole = one.value.denominator == 1 or other.value.denominator == 1
  return False if one.is_decimal == other.is_decimal or is_whole else None


def _compare_bracketed(first: re.Match, second: re.Match) -> bool | None:
  # math-verify is slow to parse tuples and intervals.
  if first[1] != second[1] or first[3] != second[3]:
    return None
  elements, others = first[2].split(','), second[2].split(',')
  if len(elements) != len(others):
    return None
  are_equal = [compare(*pair) for pair in zip(elements, others, strict=True)]
  return None if None in are_equal else all(are_equal)


class _Number(NamedTuple):
  """A number, and whether its text is a decimal, not a fraction."""

  value: fractions.Fraction
  is_decimal: bool


def _clean(text: str) -> str:
  text = text.replace('\u2212', '-')
  # A dollar sign is a delimiter. An escaped one is a currency, dropped as well.
  text = _DOLLAR.sub(
    lambda match: '' if match[0] in ('$', r'\$') else match[0], text
  )
  return text.strip().rstrip('.,;').rstrip()


def _plain(text: str) -> str:
  text = _COSMETIC.sub(
    lambda match: match['kept'] or ('\\' if match[0][1:] in 'dt' else ' '),
    _clean(text),
  )
  return _SPACE.sub(lambda match: ' ' if match['kept'] else '', text)


def _number(plain: str) -> _Number | None:
  if len(plain) > _MAX_NUMBER_CHARS:
    return None
  plain = plain.replace('{,}', ',')
  if match := _POWER_OF_TEN.fullmatch(plain):
    plain = f'{match["sign"]}1e{match["power"].strip("{}")}'
  if match := _DECIMAL.fullmatch(plain):
    value = _decimal(match['mantissa'])
    exponent = int((match['e'] or match['power'] or '0').strip('{}'))
    if value is None or abs(exponent) > _MAX_EXPONENT:
      return None
    return _Number(value * fractions.Fraction(10) ** exponent, True)
  if match := _FRACTION.fullmatch(plain):
    parts = match.groupdict()
    top = _decimal(parts['top'] or parts['one'] or parts['left'] or '')
    bottom = _decimal(parts['bottom'] or parts['other'] or parts['right'] or '')
    if top is None or not bottom:
      return None
    value = (-top if parts['sign'] == '-' else top) / bottom
    return _Number(value, False)
  return None


def _decimal(text: str) -> fractions.Fraction | None:
  text = text.replace(',', '')
  if not text.strip('+-.'):
    return None
  return fractions.Fraction(text)


def _parse(text: str) -> list[Any]:
  import math_verify

  text = _clean(text)
  # math-verify would read `1e5` as a product with Euler's number.
  if match := _DECIMAL.fullmatch(text):
    if match['e']:
      text = rf'{match["mantissa"]}\times 10^{{{match["e"]}}}'
  return math_verify.parse(
    rf'\boxed{{{text}}}',
    (
      math_verify.LatexExtractionConfig(boxed_match_priority=0),
      math_verify.ExprExtractionConfig(),
    ),
    parsing_timeout=None,  # pyright: ignore[reportArgumentType]
  )


# The answers of a group have the same reference and follow each other.
@functools.lru_cache(maxsize=128)
def _parse_reference(reference: str) -> tuple[Any, ...]:
  return tuple(_parse(reference))
