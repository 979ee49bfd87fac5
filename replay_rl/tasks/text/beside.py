"""Judging beside generation: a thread judges what has ended.

The verifier is other processes, so the thread mostly waits for them. What ends
while it judges is judged together, next. A verdict does not depend on when, or
beside which others, a response is judged, so the rewards are those of judging
all of them at the end.
"""

import queue
import threading
from collections.abc import Callable

import jax
import numpy as np

from replay_rl import base
from replay_rl.parallel import processes
from replay_rl.tasks import task as task_lib
from replay_rl.tasks.text import judging

# What a thread that is to end gets in place of responses.
_END = None


class Beside:
  """Judges the responses of one generation, in any order.

  With many processes, each judges its share and `result` joins the verdicts.
  """

  def __init__(
    self,
    task: task_lib.TextTask,
    *,
    num_seeds: int,
    num_rows: int,
    timed: Callable[[Callable], Callable] = lambda call: call,
  ):
    """Starts the thread, which no other use of the verifier may overlap.

    Args:
      task: the task.
      num_seeds: S.
      num_rows: F of each seed.
      timed: may time a function of the thread.
    """
    self._task = task
    self._verify = timed(judging.verify)
    self._verdicts = judging.no_verdicts(num_seeds, num_rows)
    self._num_given = 0
    self._is_left = False
    self._failure: BaseException | None = None
    self._queue: queue.SimpleQueue = queue.SimpleQueue()
    self._thread = threading.Thread(target=self._judge, name='judge')
    self._thread.start()

  def give(
    self,
    is_valid: np.ndarray,
    rows: np.ndarray,
    responses: tuple[np.ndarray, np.ndarray, np.ndarray],
    references: np.ndarray,
  ) -> None:
    """Has responses judged; all processes give the same ones.

    Args:
      is_valid: `[S, M]` bool, which of M rows of each seed have a response.
      rows: `[S, M]` int32, which of the F responses each is.
      responses: tokens `[S, M, R]`, lengths and is_finished `[S, M]`.
      references: `[S, M]` int32.
    """
    seeds, places = np.nonzero(is_valid)
    self._num_given += len(seeds)
    # This process's share, in the order of the rows.
    shares = np.array_split(np.arange(len(seeds)), jax.process_count())
    own = shares[jax.process_index()]
    if len(own):
      at = seeds[own], places[own]
      self._queue.put(
        (seeds[own], rows[at], *(x[at] for x in responses), references[at])
      )

  def result(self) -> tuple[np.ndarray, base.Metrics]:
    """Waits for all verdicts; returns rewards `[S, F]` and metrics `[S]`.

    Raises:
      Exception: what the verifier raised.
    """
    with processes.together('the verifier'):
      self._end()
      if self._failure is not None:
        raise self._failure
      assert self._num_given == self._verdicts[0].size, self._num_given
    judgement = judging.together(self._task, self._verdicts)
    return judgement.rewards, judging.measure(judgement, self._task.statuses)

  def close(self) -> None:
    """Ends the thread, once it has judged what it is at."""
    self._is_left = True
    self._end()

  def _end(self) -> None:
    """Waits until the thread has judged all that waits, and has ended."""
    self._queue.put(_END)
    self._thread.join()

  def _judge(self) -> None:
    try:
      while True:
        waiting = [self._queue.get()]
        while not self._queue.empty():
          waiting.append(self._queue.get())
        given = [one for one in waiting if one is not _END]
        if given and not self._is_left:
          seeds, rows, *fields = (
            np.concatenate(parts) for parts in zip(*given, strict=True)
          )
          self._verdicts[:, seeds, rows] = self._verify(self._task, *fields)
        if len(given) < len(waiting):
          return
    except BaseException as failure:
      self._failure = failure
