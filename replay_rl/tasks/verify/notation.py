r"""The ways to write one answer, read in linear time.

`plain` and `number` serve a comparison of strings and exact numbers;
`for_parser` rewrites what math-verify would misread.
"""

import fractions
import re
from typing import NamedTuple

# `number` leaves longer numbers and larger exponents to math-verify.
_MAX_NUMBER_CHARS = 1000
_MAX_EXPONENT = 1000

_PLAIN_NUMBER = r'(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)?(?:\.[0-9]*)?'
_SPACED_NUMBER = r'[0-9]{1,3}(?: [0-9]{3})+(?:\.[0-9]*)?'
_POWER = r'10\^(?P<power>[0-9]|\{[-+]?[0-9]+\})'
_DECIMAL = re.compile(
  rf'(?P<mantissa>[-+]?(?:{_SPACED_NUMBER}|{_PLAIN_NUMBER}))'
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
# 0.1\overline{6}. No more digits may follow.
_REPEATING = re.compile(
  r'(?P<whole>(?<![0-9.,])[0-9]*+)\.(?P<fixed>[0-9]*+)'
  r'\\(?:overline|bar) ?(?:\{(?P<braced>[0-9]+)\}|(?P<single>[0-9]))(?![0-9])'
)

_DOLLAR = re.compile(r'(\\.)|\$', re.DOTALL)
# Other names of a sign. The first is a command of its own in each.
_SYNONYMS = {
  r'\le ': (r'\le', r'\leq', r'\leqq', r'\leqslant', '\u2264', '<='),
  r'\ge ': (r'\ge', r'\geq', r'\geqq', r'\geqslant', '\u2265', '>='),
  r'\ne ': (r'\ne', r'\neq', r'\not=', '\u2260'),
  '<': (r'\lt',),
  '>': (r'\gt',),
  r'\emptyset ': (r'\emptyset', r'\varnothing', '\u2205'),
}
_NAMES = {name: sign for sign, names in _SYNONYMS.items() for name in names}
_SYNONYM = re.compile(
  r'(?P<kept>\\\\)|(?:'
  + '|'.join(
    re.escape(name) + (r'(?![a-zA-Z])' if name[-1].isalpha() else '')
    for name in sorted(_NAMES, key=len, reverse=True)
  )
  + r')\s*'
)
# Commands of spacing and size. `\\` is here so that it does not start a
# command.
_COSMETIC = re.compile(
  r'(?P<kept>\\\\)|\\[!,:; ]|~|\\(?:left|right)(?![a-zA-Z])'
  r'|\\[dt](?=frac(?![a-zA-Z]))'
)
_SPACE = re.compile(r'(?P<kept>(?<=[0-9a-zA-Z])\s+(?=[0-9a-zA-Z]))|\s+')
_WORDS = re.compile(
  r'\\(?:text|textbf|textit|textrm|mathrm|mbox) ?\{([^{}\\]*)\}'
)

# A number that starts here is no argument, index or exponent of something.
_START = r'(?<![0-9.,_^a-zA-Z])(?<!frac )(?<!binom )(?<!sqrt )(?<!bar )'
_GAP = r'(?:\\[,:;! ]|\\q?quad(?![a-zA-Z])|~|\s)++'
_MIXED = re.compile(
  rf'(?<!/){_START}(?P<whole>[0-9]++){_GAP}(?P<top>[0-9]++)/(?P<bottom>[0-9]++)'
  r'(?![0-9.])'
)
_GROUPED = re.compile(
  rf'(?<!/){_START}[0-9]{{1,3}}(?:{_GAP}[0-9]{{3}})++(?![0-9])'
)
_GAPS = re.compile(_GAP)
_NEIGHBORS = re.compile(rf'{_START}[0-9]++(?:\.[0-9]*+)?{_GAP}\.?[0-9]')

_SIGN = r'(?:[<>]|\\(?:le|ge|ne)(?![a-zA-Z]))'
_STARTS_WITH_SIGN = re.compile(rf'\s*(?={_SIGN})|\s*!=')
_ENDS_WITH_SIGN = re.compile(rf'{_SIGN}\s*\Z')
_RELATION = re.compile(
  r'[<>]|\\(?:le|ge|ne|not|ll|gg|nless|ngtr|nleq|ngeq|equiv)(?![a-zA-Z])'
)


class Number(NamedTuple):
  """A number, and whether its text is a decimal, which may be rounded."""

  value: fractions.Fraction
  is_decimal: bool


def clean(text: str) -> str:
  """Returns a text without dollars and final stops, with one name per sign."""
  text = text.replace('\u2212', '-')
  # A dollar sign is a delimiter. An escaped one is a currency, dropped as well.
  text = _DOLLAR.sub(
    lambda match: '' if match[0] in ('$', r'\$') else match[0], text
  )
  text = _SYNONYM.sub(
    lambda match: match['kept'] or _NAMES[match[0].rstrip()], text
  )
  return text.strip().rstrip('.,;').rstrip()


def plain(text: str) -> str:
  """Returns a clean text without spacing and commands of size."""
  text = _COSMETIC.sub(
    lambda match: (
      match['kept'] or ('\\' if match[0] in (r'\d', r'\t') else ' ')
    ),
    clean(text),
  )
  return _SPACE.sub(lambda match: ' ' if match['kept'] else '', text)


def words(text: str) -> str | None:
  r"""Returns the words of a text that is one `\text{...}`, else None."""
  match = _WORDS.fullmatch(text)
  return match[1] if match else None


def number(text: str) -> Number | None:
  """Returns the number that a plain text is; None if it is none.

  Args:
    text: as `plain` returns it: an integer, with commas or spaces between
      thousands or without; a decimal; a fraction; a power of ten or a multiple
      of one; a repeating decimal.
  """
  if len(text) > _MAX_NUMBER_CHARS:
    return None
  text = text.replace('{,}', ',')
  if match := _POWER_OF_TEN.fullmatch(text):
    text = f'{match["sign"]}1e{match["power"].strip("{}")}'
  if match := _DECIMAL.fullmatch(text):
    value = _decimal(match['mantissa'])
    exponent = int((match['e'] or match['power'] or '0').strip('{}'))
    if value is None or abs(exponent) > _MAX_EXPONENT:
      return None
    return Number(value * fractions.Fraction(10) ** exponent, True)
  if match := _FRACTION.fullmatch(text):
    parts = match.groupdict()
    top = _decimal(parts['top'] or parts['one'] or parts['left'] or '')
    bottom = _decimal(parts['bottom'] or parts['other'] or parts['right'] or '')
    if top is None or not bottom:
      return None
    value = (-top if parts['sign'] == '-' else top) / bottom
    return Number(value, False)
  sign = text[:1] if text[:1] in ('-', '+') else ''
  if match := _REPEATING.fullmatch(text, len(sign)):
    value = _repeating(match)
    return Number(-value if sign == '-' else value, False)
  return None


def for_parser(text: str) -> str:
  r"""Returns a text that math-verify reads as people do.

  * `1e5` is no product with Euler's number.
  * `2 1/2` is a mixed number, and `1\,234` a number, not sums.
  * A repeating decimal is a fraction.
  * A relation without a left or right side is one of x.
  """
  text = clean(text).replace('~', ' ')
  if match := _DECIMAL.fullmatch(text):
    if match['e']:
      text = rf'{match["mantissa"]}\times 10^{{{match["e"]}}}'
  text = _MIXED.sub(r'\g<whole>\\frac{\g<top>}{\g<bottom>}', text)
  text = _GROUPED.sub(lambda match: _GAPS.sub('', match[0]), text)
  if len(text) <= _MAX_NUMBER_CHARS:
    text = _REPEATING.sub(_as_fraction, text)
  if match := _STARTS_WITH_SIGN.match(text):
    text = ('x \\ne ' if '!' in match[0] else 'x ') + text[match.end() :]
  if _ENDS_WITH_SIGN.search(text):
    text += ' x'
  return text


def has_neighbors(text: str) -> bool:
  """Returns whether two numbers stand side by side in a text for the parser."""
  return _NEIGHBORS.search(text) is not None


def has_relation(text: str) -> bool:
  r"""Returns whether a text for the parser has one, not only in `\text{}`."""
  return _RELATION.search(_WORDS.sub('', text)) is not None


def _decimal(text: str) -> fractions.Fraction | None:
  text = text.replace(',', '').replace(' ', '')
  if not text.strip('+-.'):
    return None
  return fractions.Fraction(text)


def _repeating(match: re.Match) -> fractions.Fraction:
  whole, fixed = match['whole'], match['fixed']
  repeating = match['braced'] or match['single']
  # 0.1666... = (16 - 1) / (100 - 10)
  before = int(whole + fixed or '0')
  after = int(whole + fixed + repeating)
  scale = 10 ** len(fixed) * (10 ** len(repeating) - 1)
  return fractions.Fraction(after - before, scale)


def _as_fraction(match: re.Match) -> str:
  value = _repeating(match)
  return rf'\frac{{{value.numerator}}}{{{value.denominator}}}'
