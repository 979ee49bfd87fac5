r"""Finds the answer of a response: text in, text out, in linear time.

A language model wrote the text, so no text may make these functions fail or
take
long: the patterns only move forward (possessive quantifiers), and one pass
matches the braces.
"""

import re

BOXED = 'boxed'
HASHED = 'hashed'
NUMBER = 'number'

# A backslash takes the next character with it, so that `\{` is no brace.
_TOKEN = re.compile(r'\\(?:boxed|fbox)\s*+|\\.|[{}]', re.DOTALL)
# Without braces TeX boxes one character, but people mean the number.
_UNBRACED = re.compile(r'[-+]?[0-9]++(?:[.,/][0-9]++)*+')

_DIGITS = (
  r'(?:[0-9]{1,3}+(?:,[0-9]{3})++(?![0-9])(?:\.[0-9]++)?+'
  r'|[0-9]++(?:\.[0-9]++)?+|\.[0-9]++)'
)
_NUMBER = re.compile(
  # A minus after an operand is an operator. Digits after a letter are a name.
  r'(?:(?<![0-9a-zA-Z)\]}])[-+\u2212])?+(?:'
  r'\\[dt]?frac\{[-+\u2212]?[0-9]++\}\{[0-9]++\}'
  rf'|(?<![0-9a-zA-Z_]){_DIGITS}(?:[eE][-+]?[0-9]++|/[0-9]++)?+'
  r')(?:[ ]?\\?%)?+'
)


def extract(response: str) -> tuple[str, str] | None:
  r"""Returns the answer of a response, and how it is marked.

  The first of these marks that the response has:

  * `'boxed'`: the content of the last complete `\boxed{...}` or `\fbox{...}`
    that is not empty. A complete box has balanced braces. The last box is the
    one that opens last, so the inner one of nested boxes. `\boxed 5` counts,
    for numbers only.
  * `'hashed'`: the rest of the line after the last `####`, if it is not blank.
  * `'number'`: the last number: an integer or decimal with an optional sign,
    thousands separators, an exponent, a denominator (`3/4`, `\frac{3}{4}`) or a
    percent sign. Digits are 0 to 9; digits of other scripts are text.

  Args:
    response: any text, of any length.

  Returns:
    (answer, kind) with a non-empty answer without surrounding white space;
    None if the response holds no answer.
  """
  if (answer := _last_box(response)) is not None:
    return answer, BOXED
  _, mark, tail = response.rpartition('####')
  if mark and (answer := tail.partition('\n')[0].strip()):
    return answer, HASHED
  answer = None
  for match in _NUMBER.finditer(response):
    answer = match[0]
  return None if answer is None else (answer, NUMBER)


def _last_box(text: str) -> str | None:
  last, start_of_last = None, -1
  open_braces = []  # Where each box's content starts; -1 for other braces.
  position = text.find('\\')
  while position >= 0 and (token := _TOKEN.search(text, position)):
    position = token.end()
    if token[0] == '{':
      open_braces.append(-1)
    elif token[0] == '}':
      start = open_braces.pop() if open_braces else -1
      # The slices never overlap, so that this takes linear time.
      if start > start_of_last:
        if content := text[start : token.start()].strip():
          last, start_of_last = content, start
    elif len(token[0]) > 2:
      if text.startswith('{', position):
        position += 1
        open_braces.append(position)
      elif number := _UNBRACED.match(text, position):
        last, start_of_last = number[0], position
  return last
