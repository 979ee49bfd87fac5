"""Problems with answers: reading, checking, and finding what two sets share."""

import collections
import gzip
import json
import pathlib
import re
import zlib
from collections.abc import Iterable
from collections.abc import Sequence
from typing import NamedTuple

from replay_rl import constants
from replay_rl.tasks import task

# What `check` refuses or, if allowed to, drops.
KINDS = (
  'broken_line',
  'empty_problem',
  'empty_answer',
  'duplicate_id',
  'duplicate_problem',
)
# Line numbers that an error names of each kind.
_NUM_NAMED = 5

# Spacing and sizes change how LaTeX looks, not what it says.
_LATEX_SPACING = re.compile(
  r'\\!|\\(?:quad|qquad|left|right|[bB]igg?[lr]?)(?![a-zA-Z])'
)
# A run of letters and digits, or a sign that makes another formula.
_WORD = re.compile(r'[^\W_]+|[-+*/=<>^%!|]')


class Problem(NamedTuple):
  """A problem. id: unique in its set. answer: what a verifier compares with."""

  id: str
  problem: str
  answer: str


class Report(NamedTuple):
  """What `check` found.

  num_lines: lines read.
  num_kept: problems among them that passed.
  dropped: of each kind in `KINDS` that was met, the numbers of the lines, the
    first being 1.
  reason: why the first broken line is broken; empty if none is.
  """

  num_lines: int
  num_kept: int
  dropped: dict[str, tuple[int, ...]]
  reason: str


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

  Two forms are read: `{id, problem, answer}`, all strings, and that of GSM8K
  (https://github.com/openai/grade-school-math), `{question, answer}`, where the
  answer is what follows '####', without the commas in numbers.

  Args:
    line: text, or bytes in UTF-8.
    default_id: for the form without one.

  Raises:
    ValueError: if it is of neither form.
  """
  row = json.loads(line)
  if not isinstance(row, dict):
    raise ValueError('not a JSON object')
  is_gsm8k = 'question' in row and 'problem' not in row
  names = ('question', 'answer') if is_gsm8k else Problem._fields
  for name in names:
    if not isinstance(row.get(name), str):
      raise ValueError(f'{name} = {row.get(name)!r}, must be a string')
    row[name].encode()  # A surrogate on its own is no text.
  if not is_gsm8k:
    return Problem(*(row[name].strip() for name in names))
  if row['answer'].count('####') != 1:
    raise ValueError("answer must contain '####' once")
  answer = row['answer'].split('####')[1].strip().replace(',', '')
  return Problem(default_id, row['question'].strip(), answer)


def check(
  lines: Iterable[str | bytes],
  *,
  source: str,
  allowed: frozenset[str],
) -> tuple[list[Problem], Report]:
  """Returns the problems of lines of JSON, and what is wrong with the others.

  A line is broken, or its problem or answer is empty, or a line that was kept
  has the same id, or the same problem up to blanks. It counts as the first of
  these that applies.

  Args:
    lines: see `parse`.
    source: a name for errors, and for ids where a line has none:
      'source-00000' for the first line.
    allowed: the `KINDS` to drop; they are counted in the report.

  Raises:
    ValueError: if a kind that is not allowed is met, with counts and the first
      line numbers; if nothing is left; or if `allowed` names no kind.
  """
  if unknown := allowed - set(KINDS):
    raise ValueError(
      f'allowed = {sorted(unknown)}, must be among {", ".join(KINDS)}.'
    )
  found = collections.defaultdict(list)
  kept, ids, texts = [], set(), set()
  reason = ''
  number = 0
  for number, line in enumerate(lines, start=1):
    try:
      problem = parse(line, default_id=f'{source}-{number - 1:05d}')
    except ValueError as error:
      found['broken_line'].append(number)
      reason = reason or str(error)
      continue
    text = ' '.join(problem.problem.split())
    if not problem.problem:
      found['empty_problem'].append(number)
    elif not problem.answer:
      found['empty_answer'].append(number)
    elif problem.id in ids:
      found['duplicate_id'].append(number)
    elif text in texts:
      found['duplicate_problem'].append(number)
    else:
      kept.append(problem)
      ids.add(problem.id)
      texts.add(text)
  report = Report(
    num_lines=number,
    num_kept=len(kept),
    dropped={kind: tuple(found[kind]) for kind in KINDS if kind in found},
    reason=reason,
  )
  if refused := [kind for kind in report.dropped if kind not in allowed]:
    raise ValueError(
      f'{source}: {describe(report, refused)}. Correct these lines, or allow '
      'what should be dropped.'
    )
  if not kept:
    raise ValueError(f'{source}: no problems in {number} lines.')
  return kept, report


def describe(report: Report, kinds: Iterable[str]) -> str:
  """Returns the counts of some kinds and their first line numbers, as text."""
  parts = []
  for kind in kinds:
    numbers = report.dropped[kind]
    named = ', '.join(str(number) for number in numbers[:_NUM_NAMED])
    more = ', ...' if len(numbers) > _NUM_NAMED else ''
    why = f'; the first: {report.reason}' if kind == 'broken_line' else ''
    parts.append(f'{len(numbers)} {kind} (lines {named}{more}{why})')
  return ', '.join(parts)


def read(
  path: str | pathlib.Path, *, source: str, allowed: frozenset[str]
) -> tuple[list[Problem], Report]:
  """Returns `check` of a file of JSON Lines, plain or `.gz`.

  Raises:
    ValueError: as `check` and `unpacked`.
  """
  content = unpacked(path)
  lines = content.removesuffix(b'\n').split(b'\n') if content else []
  return check(lines, source=source, allowed=allowed)


def unpacked(path: str | pathlib.Path) -> bytes:
  """Returns the content of a file, plain or `.gz`.

  Raises:
    ValueError: if the file is not there, or is no gzip file.
  """
  path = pathlib.Path(path)
  if not path.is_file():
    raise ValueError(f'{path}: no such file.')
  content = path.read_bytes()
  if path.suffix != '.gz':
    return content
  try:
    return gzip.decompress(content)
  except (OSError, EOFError, zlib.error) as error:
    raise ValueError(f'{path}: not a gzip file: {error}') from error


def words(text: str) -> tuple[str, ...]:
  """Returns what is compared of a text: its words, in lower case.

  A word is a run of letters and digits, or one of the signs + - * / = < > ^ % !
  and |, which make another formula. Other punctuation, blanks, and LaTeX that
  only spaces or sizes are dropped.
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
  two share a run of `num_words` words. So does GPT-3 look for contamination,
  with 13 words and plain text: https://arxiv.org/abs/2005.14165, appendix C.
  Of several matches the exact one is reported, else that of most shared runs,
  else the first of the training set.

  Args:
    train: the training set.
    benchmark: the problems to look for.
    num_words: n of the n-grams. A shorter problem can only occur
      exactly.

  Returns:
    At most one entry for each problem of the benchmark, in their order.

  Raises:
    ValueError: `num_words` is outside its interval.
  """
  exact = collections.defaultdict(list)
  by_gram = collections.defaultdict(list)
  for index, problem in enumerate(benchmark):
    found = words(problem.problem)
    exact[found].append(index)
    for gram in _grams(found, num_words):
      by_gram[gram].append(index)
  best: dict[int, Overlap] = {}
  for problem in train:
    found = words(problem.problem)
    shared = collections.Counter()
    for gram in _grams(found, num_words):
      shared.update(by_gram.get(gram, ()))
    same = exact.get(found, ()) if found else ()
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


def _rank(entry: Overlap) -> tuple[bool, int]:
  return entry.is_exact, entry.num_shared


def _grams(found: tuple[str, ...], n: int) -> set[tuple[str, ...]]:
  return {found[i : i + n] for i in range(len(found) - n + 1)}
