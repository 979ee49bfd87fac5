"""Problems with answers: reads and checks them, and compares two sets."""

import collections
import gzip
import hashlib
import json
import pathlib
import re
import zlib
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

from replay_rl import constants
from replay_rl import json_files
from replay_rl.tasks import task

# (line, default_id=) -> its problem, and what of it became text
ParseFn = Callable[..., tuple['Problem', tuple[str, ...]]]
# Kinds of lines that `check` refuses or, if that is allowed, drops.
KINDS = (
  'broken_line',
  'empty_problem',
  'empty_answer',
  'duplicate_id',
  'duplicate_problem',
)
# An error names at most so many lines of a kind.
_NUM_NAMED = 5

# Spacing and sizes change how LaTeX looks, not what it says.
_LATEX_SPACING = re.compile(
  r'\\!|\\(?:quad|qquad|left|right|[bB]igg?[lr]?)(?![a-zA-Z])'
)
# A run of letters and digits, or a sign that changes a formula.
_WORD = re.compile(r'[^\W_]+|[-+*/=<>^%!|]')


class Problem(NamedTuple):
  """A problem.

  id: unique in its set.
  problem: the question, in LaTeX.
  answer: the right answer, which a verifier compares with.
  """

  id: str
  problem: str
  answer: str


class Report(NamedTuple):
  """How many lines `check` kept, and which ones it did not.

  num_lines: lines read.
  num_kept: problems kept.
  dropped: the line numbers, from 1 on, by kind; kinds of `KINDS` without a line
    are absent.
  reason: why the first broken line is broken; empty if none is.
  converted: how many of the problems kept had something that became text, by
    what it was.
  """

  num_lines: int
  num_kept: int
  dropped: dict[str, tuple[int, ...]]
  reason: str
  converted: dict[str, int]


class Overlap(NamedTuple):
  """A problem of a benchmark that the training set has too.

  benchmark_id, train_id: the two problems.
  is_exact: True if they are the same after normalization.
  num_shared: n-grams that both have; 0 if exact.
  """

  benchmark_id: str
  train_id: str
  is_exact: bool
  num_shared: int


def parse(line: str | bytes, *, default_id: str) -> Problem:
  """Returns the problem of a line of JSON, stripped of outer blanks.

  The line has one of two forms: `{id, problem, answer}`, all strings, or the
  form of GSM8K (https://github.com/openai/grade-school-math), `{question,
  answer}`, where the answer follows '####'; the commas in it are removed.

  Args:
    line: text, or bytes in UTF-8.
    default_id: the id of a problem in the form of GSM8K.

  Raises:
    ValueError: the line has neither form.
  """
  row = json_files.parse(line)
  if not isinstance(row, dict):
    raise ValueError(f'line = {line!r:.40}: must be a JSON object')
  return of_object(row, default_id=default_id)


def is_gsm8k(row: Mapping[str, Any]) -> bool:
  """Returns whether an object has the form of GSM8K."""
  return 'question' in row and 'problem' not in row


def of_object(row: Mapping[str, Any], *, default_id: str) -> Problem:
  """Returns the problem of an object of one of the forms of `parse`.

  Raises:
    ValueError: the object has neither form.
  """
  is_original = is_gsm8k(row)
  names = ('question', 'answer') if is_original else Problem._fields
  for name in names:
    if not isinstance(row.get(name), str):
      value = constants.shown(row.get(name))
      raise ValueError(f'{name} = {value}: must be a string')
    row[name].encode()  # Raises ValueError for a single surrogate.
  if not is_original:
    return Problem(*(row[name].strip() for name in names))
  if row['answer'].count('####') != 1:
    value = constants.shown(row['answer'])
    raise ValueError(f"answer = {value}: must contain '####' once")
  answer = row['answer'].split('####')[1].strip().replace(',', '')
  return Problem(default_id, row['question'].strip(), answer)


def _strict(
  line: str | bytes, *, default_id: str
) -> tuple[Problem, tuple[str, ...]]:
  return parse(line, default_id=default_id), ()


def check(
  lines: Iterable[Any],
  *,
  source: str,
  allowed: frozenset[str],
  drop_flag: str | None = None,
  parse_fn: ParseFn = _strict,
) -> tuple[list[Problem], Report]:
  """Returns the problems of lines of JSON, and a report on the other lines.

  A line is dropped if it is broken, if its problem or answer is empty, or if a
  line that was kept has the same id, or the same problem up to blanks. The
  report counts it under the first of these kinds that applies.

  Args:
    lines: see `parse`.
    source: names the lines in errors. Where a line has no id, it is part of the
      id: 'source-00000' for the first line.
    allowed: those of `KINDS` that may be dropped.
    drop_flag: the flag with which a user of the calling program sets `allowed`,
      for errors; None if it has none.
    parse_fn: reads a line; by default `parse`, which converts nothing.

  Raises:
    ValueError: a line is of a kind that is not allowed (the message has counts
      and line numbers), nothing is left, or `allowed` names an unknown kind.
  """
  if unknown := allowed - set(KINDS):
    raise ValueError(
      f'allowed = {sorted(unknown)}: must be among {", ".join(KINDS)}'
    )
  dropped = collections.defaultdict(list)
  kept, ids, texts = [], set(), set()
  converted = collections.Counter()
  reason = ''
  number = 0
  for number, line in enumerate(lines, start=1):
    try:
      problem, conversions = parse_fn(
        line, default_id=f'{source}-{number - 1:05d}'
      )
    except ValueError as error:
      dropped['broken_line'].append(number)
      reason = reason or str(error)
      continue
    text = ' '.join(problem.problem.split())
    if not problem.problem:
      dropped['empty_problem'].append(number)
    elif not problem.answer:
      dropped['empty_answer'].append(number)
    elif problem.id in ids:
      dropped['duplicate_id'].append(number)
    elif text in texts:
      dropped['duplicate_problem'].append(number)
    else:
      kept.append(problem)
      converted.update(conversions)
      ids.add(problem.id)
      texts.add(text)
  report = Report(
    num_lines=number,
    num_kept=len(kept),
    dropped={kind: tuple(dropped[kind]) for kind in KINDS if kind in dropped},
    reason=reason,
    converted=dict(converted),
  )
  if refused := [kind for kind in report.dropped if kind not in allowed]:
    how = ''
    if drop_flag is not None:
      kinds = (kind for kind in KINDS if kind in allowed or kind in refused)
      how = f', or dropped with {drop_flag}={",".join(kinds)}'
    raise ValueError(
      f'lines of {source} = {describe(report, refused)}: must be corrected{how}'
    )
  if not kept:
    raise ValueError(f'lines of {source} = {number}: must hold a problem')
  return kept, report


def describe(report: Report, kinds: Iterable[str]) -> str:
  """Returns the count and the first line numbers of each kind, as text."""
  parts = []
  for kind in kinds:
    numbers = report.dropped[kind]
    named = ', '.join(str(number) for number in numbers[:_NUM_NAMED])
    more = ', ...' if len(numbers) > _NUM_NAMED else ''
    why = f'; the first: {report.reason}' if kind == 'broken_line' else ''
    parts.append(f'{len(numbers)} {kind} (lines {named}{more}{why})')
  return ', '.join(parts)


def read(
  path: str | pathlib.Path,
  *,
  source: str,
  allowed: frozenset[str],
  drop_flag: str | None = None,
) -> tuple[list[Problem], Report]:
  """Returns `check` of a file of JSON Lines, plain or `.gz`.

  Raises:
    ValueError: see `check` and `lines`.
  """
  return check(lines(path), source=source, allowed=allowed, drop_flag=drop_flag)


def lines(path: str | pathlib.Path) -> list[bytes]:
  """Returns the lines of a file, plain or `.gz`, without blank ones at its end.

  Raises:
    ValueError: the file is missing, or a `.gz` file is damaged.
  """
  result = unpacked(pathlib.Path(path)).split(b'\n')
  # Editors and shells end a file with any number of line breaks.
  while result and not result[-1].strip():
    result.pop()
  return result


def unpacked(path: pathlib.Path) -> bytes:
  """Returns the content of a file, plain or `.gz`; see `lines`."""
  if not path.is_file():
    raise ValueError(f'path = {str(path)!r}: must be a file')
  content = path.read_bytes()
  if path.suffix != '.gz':
    return content
  try:
    return gzip.decompress(content)
  except (OSError, EOFError, zlib.error) as error:
    raise ValueError(
      f'path = {str(path)!r}: must be a gzip file ({error})'
    ) from error


def check_answers(
  problems: Sequence[Problem], *, name: str, max_answer_chars: int
) -> None:
  """Raises ValueError if the verifier would refuse an answer.

  Args:
    problems: whose answers are references of the verifier.
    name: of the set, for errors.
    max_answer_chars: see `verifier.Verifier`.
  """
  long = [p for p in problems if len(p.answer) > max_answer_chars]
  if long:
    longest = max(len(problem.answer) for problem in long)
    raise ValueError(
      f'max_answer_chars = {max_answer_chars}: must be at least {longest}, the '
      f'longest answer of {name}; {len(long)} of {len(problems)} answers are '
      f'longer than allowed: {_named(long)}'
    )
  if blank := [problem for problem in problems if not problem.answer.strip()]:
    raise ValueError(
      f'blank answers of {name} = {len(blank)} ({_named(blank)}): must be none'
    )


def content_hash(problems: Sequence[Problem]) -> str:
  """Returns the SHA-256 of ids, problems and answers, in order, as hex."""
  text = json.dumps([list(problem) for problem in problems])
  return hashlib.sha256(text.encode()).hexdigest()


def words(text: str) -> tuple[str, ...]:
  """Returns the words of a text, in lower case, for comparison.

  A word is a run of letters and digits, or one of the signs + - * / = < > ^ % !
  and |, which change a formula. Other punctuation, blanks, and LaTeX commands
  of spacing or size are left out.
  """
  return tuple(_WORD.findall(_LATEX_SPACING.sub(' ', text).casefold()))


@constants.checked
def overlap(
  train: Sequence[Problem],
  benchmark: Sequence[Problem],
  *,
  num_words: task.Size,
) -> list[Overlap]:
  """Returns the problems of a benchmark that also occur in a training set.

  A problem occurs exactly if all its `words` are the same, and nearly if the
  two share a run of `num_words` words. Brown et al., 'Language Models are
  Few-Shot Learners', https://arxiv.org/abs/2005.14165, appendix C, compare runs
  of 13 words of plain text. Of several matches the list has the exact one, else
  the one of most shared runs, else the first in the training set.

  Args:
    train: the training set.
    benchmark: the problems to look for.
    num_words: n of the n-grams. A shorter problem can only occur exactly.

  Returns:
    At most one entry for each problem of the benchmark, in its order.

  Raises:
    ValueError: `num_words` is outside its interval.
  """
  exact = collections.defaultdict(list)
  by_gram = collections.defaultdict(list)
  for index, problem in enumerate(benchmark):
    text = words(problem.problem)
    exact[text].append(index)
    for gram in _grams(text, num_words):
      by_gram[gram].append(index)
  best: dict[int, Overlap] = {}
  for problem in train:
    text = words(problem.problem)
    shared = collections.Counter()
    for gram in _grams(text, num_words):
      shared.update(by_gram.get(gram, ()))
    same = exact.get(text, ()) if text else ()
    for index in {*shared, *same}:
      is_exact = index in same
      entry = Overlap(
        benchmark_id=benchmark[index].id,
        train_id=problem.id,
        is_exact=is_exact,
        num_shared=0 if is_exact else shared[index],
      )
      if index not in best or _rank(entry) > _rank(best[index]):
        best[index] = entry
  return [best[index] for index in sorted(best)]


def _named(problems: Sequence[Problem]) -> str:
  """Returns the first ids, as text."""
  ids = [constants.shown(problem.id) for problem in problems[:_NUM_NAMED]]
  return ', '.join(ids + ['...'] * (len(problems) > _NUM_NAMED))


def _rank(entry: Overlap) -> tuple[bool, int]:
  return entry.is_exact, entry.num_shared


def _grams(text: tuple[str, ...], n: int) -> set[tuple[str, ...]]:
  return {text[i : i + n] for i in range(len(text) - n + 1)}
