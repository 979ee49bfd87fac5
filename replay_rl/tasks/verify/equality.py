r"""Whether two answers to a mathematical problem are equal.

`compare` settles what strings and exact numbers can settle. math-verify parses
and compares the rest; see https://github.com/huggingface/math-verify. The
reference decides the form. What is not obvious:

| reference             | answer                | verdict |
|-----------------------|-----------------------|---------|
| `1234`                | `1\,234`              | correct |
| `1234`                | `1 234`               | correct |
| `\emptyset`           | `\varnothing`         | correct |
| `\frac{1}{3}`         | `0.\overline{3}`      | correct |
| `2.5`                 | `2 1/2`               | correct |
| `(-\infty,3)`         | `x<3`                 | correct |
| `x>5`                 | `> 5`                 | correct |
| `5`                   | `> 5`                 | wrong   |
| `5`                   | `\ge 5`               | wrong   |
| `5`                   | `\ne 5`               | wrong   |
| `5`                   | `x>5`                 | wrong   |
| `5`                   | `5,5`                 | wrong   |
| `16,3,1,1`            | `16,3,1`              | wrong   |
| `11`                  | `5 6`                 | wrong   |
| `30`                  | `5 6`                 | wrong   |
| `x=5`                 | `y=5`                 | wrong   |
| `2x+y=1`              | `1`                   | wrong   |
| `5`                   | `5!`                  | wrong   |

Decimals may be rounded: a fraction or a root and a decimal are equal if they
agree in six places, and in four digits that count.

| reference             | answer                | verdict |
|-----------------------|-----------------------|---------|
| `\frac{1}{3}`         | `0.333333`            | correct |
| `\sqrt{2}`            | `1.414214`            | correct |
| `\frac{1}{3}`         | `0.33`                | wrong   |
| `0.333333`            | `0.333334`            | wrong   |
| `0.0000002`           | `1/10000000`          | wrong   |
| `\frac{1}{30000}`     | `0.000033`            | wrong   |

Held for equal, though one may see it otherwise:

| reference             | answer                | verdict |
|-----------------------|-----------------------|---------|
| `5`                   | `x=5`                 | correct |
| `x=5`                 | `5`                   | correct |
| `5`                   | `= 5`                 | correct |
| `5`                   | `\approx 5`           | correct |
| `5`                   | `2+3`                 | correct |
| `6`                   | `5=6`                 | correct |
| `50`                  | `50\%`                | correct |
| `50\%`                | `0.5`                 | correct |
| `5`                   | `5\text{ cm}`         | correct |
| `5\text{ cm}`         | `5\text{ km}`         | correct |
| `90^\circ`            | `90`                  | correct |
| `52_8`                | `52`                  | correct |
| `1,2`                 | `2,1`                 | correct |
| `1,2`                 | `(1,2)`               | correct |
| `(1,2)`               | `1,2`                 | correct |
| `(1,2)`               | `1<x<2`               | correct |
| `5`                   | `\{5,5\}`             | correct |
| `5/6`                 | `5:6`                 | correct |
| `5`                   | `x\to 5`              | correct |
| `5`                   | `?? 5`                | correct |

Of a text that it cannot parse, as the last two, math-verify takes the last
number that follows a space.
"""

import functools
import re
from collections.abc import Sequence
from typing import Any

from replay_rl.tasks.verify import notation
from replay_rl.tasks.verify import size
from replay_rl.tasks.verify import worker

MISSING = "package = 'math-verify': must be installed; pip install -e '.[math]'"

_PLACES = 6  # After the decimal point, of a decimal that may be rounded.
_DIGITS = 4  # From the first that is not 0.

_BRACKETED = re.compile(r'([(\[])([^()\[\]]*)([)\]])')
_BASED = re.compile(r'(?P<digits>[0-9]+)_\{?(?P<base>[0-9]+)\}?')


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
  """Returns what math-verify alone says; arguments and errors as `verify`.

  Raises:
    worker.UnreadableError: also if the answer holds a number or a nesting that
      nothing could compute with, see `size`, or if math-verify would drop a
      relation sign of it.
  """
  try:
    import math_verify
  except ImportError as error:
    raise ImportError(MISSING) from error
  parsed = _parse(answer)
  if not parsed:
    raise worker.UnreadableError
  expected = _parse_reference(reference)
  if not expected or _have_neighbors(answer, reference):
    return False
  lists = _repetitive(answer, parsed), _repetitive(reference, expected)
  if lists != (None, None):
    if None in lists:
      return False
    parsed, expected = ([one] for one in lists)
  return math_verify.verify(
    list(expected),
    list(parsed),
    float_rounding=_num_places(*parsed, *expected),
    # The pool limits the time. math-verify would use signals.
    timeout_seconds=None,
    allow_set_relation_comp=True,
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
  answer, reference = notation.plain(answer), notation.plain(reference)
  if answer == reference:
    return True
  first, second = notation.words(answer), notation.words(reference)
  if first is not None or second is not None:
    first = answer if first is None else first
    second = reference if second is None else second
    if first.casefold() == second.casefold():
      return True
  first, second = _BASED.fullmatch(answer), _BASED.fullmatch(reference)
  if first and second:
    return first['digits'].lstrip('0') == second['digits'].lstrip('0') and (
      first['base'] == second['base']
    )
  first, second = _BRACKETED.fullmatch(answer), _BRACKETED.fullmatch(reference)
  if first and second:
    return _compare_bracketed(first, second)
  one, other = notation.number(answer), notation.number(reference)
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


def _parse(text: str) -> tuple[Any, ...]:
  """Returns what math-verify makes of a text; empty if it is unreadable."""
  import math_verify
  import sympy

  text = notation.for_parser(text)
  if size.is_too_large(text):
    return ()
  parsed = math_verify.parse(
    rf'\boxed{{{text}}}',
    (
      math_verify.LatexExtractionConfig(boxed_match_priority=0),
      math_verify.ExprExtractionConfig(),
    ),
    parsing_timeout=None,  # pyright: ignore[reportArgumentType]
  )
  # math-verify returns a text that it cannot parse as a string.
  values = [value for value in parsed if not isinstance(value, str)]
  if not values:
    return ()
  # Of what it cannot parse, it takes a number: `x+ > 5` would be 5.
  if isinstance(values[0], sympy.Expr) and notation.has_relation(text):
    return ()
  return tuple(parsed)


# The answers of a group have the same reference and follow each other.
@functools.lru_cache(maxsize=128)
def _parse_reference(reference: str) -> tuple[Any, ...]:
  return _parse(reference)


def _have_neighbors(*texts: str) -> bool:
  # math-verify would add the two, or multiply them.
  return any(map(notation.has_neighbors, map(notation.for_parser, texts)))


def _repetitive(text: str, parsed: Sequence[Any]) -> Any:
  r"""Returns a list with repetitions, as a sorted tuple; None for others.

  math-verify makes a set of a list, so that `5,5` would be 5. What has braces
  is a set, and `\pm` makes two of zero.
  """
  import sympy
  from math_verify import grader

  listed = getattr(parsed[0], '_unsorted_args', ())
  if len(listed) == len(set(listed)) or re.search(r'\\[{}]|\\pm', text):
    return None
  return sympy.Tuple(
    *sympy.ordered(listed, keys=grader.sort_key, default=False)
  )


def _num_places(*values: Any) -> int:
  """Returns the places to round to, so that each decimal keeps `_DIGITS`."""
  import sympy

  places = _PLACES
  for value in values:
    if isinstance(value, str):
      continue
    for atom in value.atoms(sympy.Float):
      if atom:
        exponent = sympy.floor(sympy.log(abs(atom), 10))
        places = max(places, _DIGITS - 1 - int(exponent))
  return places
