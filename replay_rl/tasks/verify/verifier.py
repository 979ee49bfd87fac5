"""Judges the text of responses to mathematical problems.

A `Verifier` extracts the answer of each response (`extraction`), settles what a
comparison of strings and exact numbers can settle (`equality.compare`), and has
math-verify parse and compare the rest, in processes that may hang, crash or run
out of memory without harm (`pool`).
"""

import collections
import importlib.util
from collections.abc import Iterable
from collections.abc import Sequence
from typing import NamedTuple

from replay_rl.tasks.verify import equality
from replay_rl.tasks.verify import extraction
from replay_rl.tasks.verify import pool
from replay_rl.tasks.verify import worker

NO_ANSWER = 'no answer'
STATUSES = (
  worker.CORRECT,
  worker.WRONG,
  NO_ANSWER,
  worker.TIMEOUT,
  worker.CRASHED,
  worker.UNREADABLE,
)

_STATUS_OF = {True: worker.CORRECT, False: worker.WRONG, None: None}


class AnswerVerdict(NamedTuple):
  """The verdict on one response.

  is_correct: whether status is 'correct'. answer: the answer in the response;
  None if it has none. A longer one is cut to
    max_answer_chars, and unreadable.
  kind: the mark of the answer, see `extraction.extract`; '' if there is none.
  status: 'correct' or 'wrong'; 'no answer'; 'unreadable' if the answer is too
    long, cannot be parsed, or holds what no parser would end with (see `size`);
    'timeout'; 'crashed' if the process that judged it died or ran out of
    memory.
  """

  is_correct: bool
  answer: str | None
  kind: str
  status: str


class Verifier:
  """Judges responses in processes of their own.

  The same input gives the same verdicts with any number of workers, except for
  an answer that takes about as long as the limit. One thread at a time may use
  a verifier.
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
      num_workers: see `pool.Pool`; so are the next two.
      answer_timeout: seconds.
      memory_limit: bytes; about 2^30 is ample.
      max_answer_chars: longer answers are unreadable; at least 1.

    Raises:
      ImportError: math-verify is not installed.
      ValueError: an argument is not as above.
    """
    if max_answer_chars < 1:
      raise ValueError(
        f'max_answer_chars = {max_answer_chars}: must be in [1, inf)'
      )
    if importlib.util.find_spec('math_verify') is None:
      raise ImportError(equality.MISSING)
    self._max_answer_chars = max_answer_chars
    self._pool = pool.Pool(
      verify_fn=equality.verify,
      # This pair makes math-verify build the tables of its parser.
      warm_up=(r'\frac{x}{2}+\sqrt{3}', r'\sqrt{3}+\frac{1}{2}x'),
      num_workers=num_workers,
      answer_timeout=answer_timeout,
      memory_limit=memory_limit,
    )

  def __enter__(self) -> 'Verifier':
    """Returns itself."""
    return self

  def __exit__(self, *exception: object) -> None:
    """Closes the verifier."""
    self.close()

  def close(self) -> None:
    """Kills the workers. May be called again."""
    self._pool.close()

  def pids(self) -> list[int]:
    """Returns the process ids of the workers."""
    return self._pool.pids()

  @property
  def num_killed_starts(self) -> int:
    """Workers that something killed before they were ready, so far.

    Each was started again, with a warning; see `pool.Pool`.
    """
    return self._pool.num_killed_starts

  def judge(
    self, responses: Sequence[str], references: Sequence[str]
  ) -> list[AnswerVerdict]:
    """Returns a verdict for each response, in their order.

    Args:
      responses: any text.
      references: the right answer of each, without a box around it.

    Returns:
      Verdicts. The same answer to the same reference is judged once.

    Raises:
      ValueError: the numbers of responses and references differ, a reference is
        blank or longer than max_answer_chars, or the verifier is closed.
      RuntimeError: a worker cannot start; see `pool.Pool.run`.
    """
    if len(responses) != len(references):
      raise ValueError(
        f'len(references) = {len(references)}: must be the number of '
        f'responses, {len(responses)}'
      )
    limit = self._max_answer_chars
    for row, reference in enumerate(references):
      if not reference.strip() or len(reference) > limit:
        raise ValueError(
          f'references[{row}] = {reference[:80]!r}: must not be blank, nor '
          f'longer than max_answer_chars = {limit}; it has {len(reference)} '
          'characters'
        )
    answers = [extraction.extract(response) for response in responses]
    pairs = {
      (answer[0], reference): None
      for answer, reference in zip(answers, references, strict=True)
      if answer is not None and len(answer[0]) <= limit
    }
    statuses = {pair: _STATUS_OF[equality.compare(*pair)] for pair in pairs}
    unsettled = [pair for pair, status in statuses.items() if status is None]
    statuses |= zip(unsettled, self._pool.run(unsettled), strict=True)

    verdicts = []
    for extracted, reference in zip(answers, references, strict=True):
      if extracted is None:
        verdicts.append(AnswerVerdict(False, None, '', NO_ANSWER))
        continue
      answer, kind = extracted
      status = statuses.get((answer, reference), worker.UNREADABLE)
      is_correct = status == worker.CORRECT
      verdicts.append(AnswerVerdict(is_correct, answer[:limit], kind, status))
    return verdicts


def count(verdicts: Iterable[AnswerVerdict]) -> dict[str, int]:
  """Returns how many verdicts have each status, zeros included."""
  counts = collections.Counter(verdict.status for verdict in verdicts)
  return {status: counts[status] for status in STATUSES}
