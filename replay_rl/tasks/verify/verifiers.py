r"""Judges the text of responses to mathematical problems.

`Pool.judge` finds the answer of each response (`extraction`), settles what a
comparison of strings and exact numbers can settle (`compare`), and has the rest
parsed and compared by math-verify, in processes that may hang, crash or run out
of memory without harm (`verifier_pool`).

math-verify is https://github.com/huggingface/math-verify. Of a reference and an
answer it holds for equal: `x=5` and 5; 50% and 50, and 50% and 0.5; `1,2` and
`2,1`, and `(1,2)`, too; a fraction and a decimal that agree in six places; a
number with and without its base (`52_8` and 52), unit or degrees. It is not
symmetric: the reference decides the form, so `2x+y=1` is not answered by 1.
"""

import collections
import fractions
import functools
import importlib.util
import re
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

from replay_rl.tasks.verify import extraction
from replay_rl.tasks.verify import verifier_pool
from replay_rl.tasks.verify import verifier_worker

NO_ANSWER = 'no answer'
STATUSES = (
  verifier_worker.CORRECT,
  verifier_worker.WRONG,
  NO_ANSWER,
  verifier_worker.TIMEOUT,
  verifier_worker.CRASHED,
  verifier_worker.UNREADABLE,
)

# Longer numbers and larger exponents are left to math-verify.
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
# Cosmetic in LaTeX. `\\` is matched so that it does not start a command.
_COSMETIC = re.compile(
  r'(?P<kept>\\\\)|\\[!,:; ]|~|\\(?:left|right)(?![a-zA-Z])'
  r'|\\[dt](?=frac(?![a-zA-Z]))'
)
_WORDS = re.compile(
  r'\\(?:text|textbf|textit|textrm|mathrm|mbox) ?\{([^{}\\]*)\}'
)
_SPACE = re.compile(r'(?P<kept>(?<=[0-9a-zA-Z])\s+(?=[0-9a-zA-Z]))|\s+')


class Verdict(NamedTuple):
  """What is held of one response.

  is_correct: whether status is 'correct'.
  answer: what the response gave as its answer; None if it gave none. Cut to
    max_answer_chars if it is longer, and then unreadable.
  kind: how the answer was marked, see `extraction.extract`; '' if it is None.
  status: 'correct' or 'wrong'; 'no answer'; 'unreadable' if it is too long or
    cannot be parsed; 'timeout'; 'crashed' if the process that judged it died or
    ran out of memory.
  """

  is_correct: bool
  answer: str | None
  kind: str
  status: str


class Pool:
  """Judges responses in processes of their own.

  The same input gives the same verdicts, whatever the number of workers; only
  an answer that takes about as long as the limit may differ. Used by one thread
  at a time.
  """

  def __init__(
    self,
    *,
    num_workers: int,
    answer_timeout: float,
    memory_limit: int,
    max_answer_chars: int,
  ):
    """Starts the workers; they get ready while the caller goes on.

    Args:
      num_workers: processes, at least 1.
      answer_timeout: seconds of processor time for one answer, positive.
      memory_limit: bytes of address space of a worker; about 2^30 is ample.
      max_answer_chars: longer answers are unreadable; at least 1.

    Raises:
      ImportError: if math-verify is not installed.
      ValueError: if an argument is outside its range.
    """
    if max_answer_chars < 1:
      raise ValueError(
        f'max_answer_chars = {max_answer_chars}, must be at least 1.'
      )
    if importlib.util.find_spec('math_verify') is None:
      raise ImportError(_MISSING)
    self._max_answer_chars = max_answer_chars
    self._workers = verifier_pool.Workers(
      verify_fn=verify,
      # Builds the tables of the parser.
      warm_up=(r'\frac{x}{2}+\sqrt{3}', r'\sqrt{3}+\frac{1}{2}x'),
      num_workers=num_workers,
      answer_timeout=answer_timeout,
      memory_limit=memory_limit,
    )

  def __enter__(self) -> 'Pool':
    """Returns itself."""
    return self

  def __exit__(self, *exception: object) -> None:
    """Closes the pool."""
    self.close()

  def close(self) -> None:
    """Kills the workers. May be called again."""
    self._workers.close()

  def pids(self) -> list[int]:
    """Returns the process ids of the workers."""
    return self._workers.pids()

  def judge(
    self, responses: Sequence[str], references: Sequence[str]
  ) -> list[Verdict]:
    """Returns a verdict for each response, in their order.

    Args:
      responses: any text.
      references: the right answer of each, without a box around it.

    Returns:
      Verdicts. An answer that is given more than once to the same reference is
      judged once.

    Raises:
      ValueError: if the lengths differ, if a reference is blank or longer than
        max_answer_chars, or if the pool is closed.
      RuntimeError: if a worker cannot start.
    """
    if len(responses) != len(references):
      raise ValueError(
        f'{len(responses)} responses with {len(references)} references, must '
        'be as many.'
      )
    limit = self._max_answer_chars
    for row, reference in enumerate(references):
      if not reference.strip() or len(reference) > limit:
        raise ValueError(
          f'references[{row}] = {reference[:80]!r} has {len(reference)} '
          f'characters, must not be blank and have at most max_answer_chars = '
          f'{limit}.'
        )
    answers = [extraction.extract(response) for response in responses]
    statuses = {}
    for answer, reference in zip(answers, references, strict=True):
      if answer is not None and len(answer[0]) <= limit:
        statuses[answer[0], reference] = None
    for pair in statuses:
      is_correct = compare(*pair)
      if is_correct is not None:
        statuses[pair] = _STATUS_OF[is_correct]
    left = [pair for pair, status in statuses.items() if status is None]
    statuses.update(zip(left, self._workers.run(left), strict=True))

    verdicts = []
    for found, reference in zip(answers, references, strict=True):
      if found is None:
        verdicts.append(Verdict(False, None, '', NO_ANSWER))
        continue
      answer, kind = found
      status = statuses.get((answer, reference), verifier_worker.UNREADABLE)
      is_correct = status == verifier_worker.CORRECT
      verdicts.append(Verdict(is_correct, answer[:limit], kind, status))
    return verdicts


def count(verdicts: Iterable[Verdict]) -> dict[str, int]:
  """Returns how many verdicts there are of each status, zeros included."""
  counts = collections.Counter(verdict.status for verdict in verdicts)
  return {status: counts[status] for status in STATUSES}


def verify(answer: str, reference: str) -> bool:
  r"""Returns whether an answer equals the reference.

  Takes as long, and as much memory, as math-verify does: without bound, for
  text that is not trusted. Use a `Pool` for that.

  Args:
    answer: as `extraction.extract` returns it.
    reference: the right answer.

  Raises:
    verifier_worker.UnreadableError: if the answer cannot be parsed.
    ImportError: if math-verify is needed and not installed.
  """
  is_equal = compare(answer, reference)
  return verify_parsed(answer, reference) if is_equal is None else is_equal


def verify_parsed(answer: str, reference: str) -> bool:
  """Returns what math-verify alone says; otherwise as `verify`."""
  try:
    import math_verify
  except ImportError as error:
    raise ImportError(_MISSING) from error
  parsed = _parse(answer)
  # What math-verify cannot parse it returns as text, alone.
  if all(isinstance(value, str) for value in parsed):
    raise verifier_worker.UnreadableError
  # The pool limits the time, by other means than signals.
  return math_verify.verify(
    list(_parse_reference(reference)), parsed, timeout_seconds=None
  )


def compare(answer: str, reference: str) -> bool | None:
  r"""Returns whether two answers are equal if that is cheap to tell, else None.

  True for strings that differ only in spacing, in `\left` and `\right`, dollar
  signs, `\dfrac` for `\frac`, a full stop at the end, or in the case of words
  set as `\text{...}`. Otherwise integers (with or without thousands
  separators), decimals, powers of ten and fractions are compared exactly; so
  are numbers with a base (`52_8`), and tuples and intervals of all these,
  element by element. A decimal that is not exactly a fraction may be one that
  was rounded: None.

  Takes time linear in the length.

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
  # Tuples and intervals, which are slow to parse.
  if first[1] != second[1] or first[3] != second[3]:
    return None
  elements, others = first[2].split(','), second[2].split(',')
  if len(elements) != len(others):
    return None
  are_equal = [compare(*pair) for pair in zip(elements, others, strict=True)]
  return None if None in are_equal else all(are_equal)


class _Number(NamedTuple):
  """A number, and whether it is written as a decimal or as a fraction."""

  value: fractions.Fraction
  is_decimal: bool


_MISSING = "math-verify is not installed: pip install -e '.[math]'"
_STATUS_OF = {True: verifier_worker.CORRECT, False: verifier_worker.WRONG}


def _clean(text: str) -> str:
  text = text.replace('\u2212', '-')
  # Dollar signs only delimit; escaped they are money, which is dropped too.
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
  # `1e5` would be read as a product with Euler's number.
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


# A reference is asked about by a whole group, one answer after the other.
@functools.lru_cache(maxsize=128)
def _parse_reference(reference: str) -> tuple[Any, ...]:
  return tuple(_parse(reference))
