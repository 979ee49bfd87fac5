"""Processes that judge answers, any of which may hang, crash or eat memory.

A worker is a plain subprocess at the other end of a pipe. It is not forked,
since the parent runs the threads of jax, nor started by `multiprocessing`,
which would import the parent's main module, and jax with it, in each worker.

A worker gets several answers in one message and replies after each. So when one
dies, the answer to blame is known, and the rest goes to others.
"""

import collections
import math
import multiprocessing
import os
import pickle
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from collections.abc import Sequence
from multiprocessing import connection

from replay_rl.tasks.verify import worker as worker_lib

VerifyFn = Callable[[str, str], bool]  # (answer, reference) -> is correct

_CHUNK = 16  # Answers in a message: enough to hide the pipe.
# Processor time is limited, which no other load on the machine disturbs. An
# answer that waits instead of computing is stopped after so many times more.
_WALL_FACTOR = 10
_START_SECONDS = 120  # By the clock, for a worker to import its modules.
_MAIN = 'from replay_rl.tasks.verify import worker; worker.main()'


class Pool:
  """Judges pairs of answer and reference in processes of their own.

  Verdicts do not depend on the number of workers, nor on what else was judged:
  an answer whose worker crashes after others is tried again in a fresh one.
  Used by one thread at a time. POSIX only; macOS does not enforce memory
  limits.
  """

  def __init__(
    self,
    *,
    verify_fn: VerifyFn,
    warm_up: tuple[str, str],
    num_workers: int,
    answer_timeout: float,
    memory_limit: int,
  ):
    """Starts the workers; they get ready while the caller goes on.

    Args:
      verify_fn: a function of a module (it is pickled by name). May raise
        `worker_lib.UnreadableError`.
      warm_up: (answer, reference) that each worker judges first, unseen.
      num_workers: processes, at least 1.
      answer_timeout: seconds of processor time for one answer, positive. One
        that sleeps is stopped after ten times as long by the clock.
      memory_limit: bytes of address space of a worker. Those that keep more
        than half of it after an answer are replaced.

    Raises:
      ValueError: if an argument is outside its range.
    """
    if num_workers < 1:
      raise ValueError(f'num_workers = {num_workers}, must be at least 1.')
    if not 0 < answer_timeout < math.inf:
      raise ValueError(
        f'answer_timeout = {answer_timeout}, must be positive and finite.'
      )
    if memory_limit < 1:
      raise ValueError(f'memory_limit = {memory_limit}, must be at least 1.')
    self._settings = worker_lib.Settings(
      verify_fn=pickle.dumps(verify_fn),
      warm_up=warm_up,
      answer_timeout=answer_timeout,
      wall_timeout=_WALL_FACTOR * answer_timeout,
      memory_limit=memory_limit,
    )
    # The finalizer holds the list, not self; it also runs at exit.
    self._workers: list[_Worker] = []
    self._finalizer = weakref.finalize(self, _stop, self._workers)
    for _ in range(num_workers):
      self._workers.append(_Worker(self._settings, None))

  def close(self) -> None:
    """Kills the workers. May be called again."""
    self._finalizer()

  def pids(self) -> list[int]:
    """Returns the process ids of the workers."""
    return [worker.process.pid for worker in self._workers]

  def run(self, pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Returns the status of each (answer, reference), in their order.

    Args:
      pairs: what to judge.

    Returns:
      For each 'correct', 'wrong', 'unreadable', 'timeout' or 'crashed'; the
      last for any other exception of the verify function, too.

    Raises:
      ValueError: if the pool is closed.
      RuntimeError: if a worker cannot start. The pool is closed then, as after
        any exception.
    """
    if not self._finalizer.alive:
      raise ValueError('The pool is closed.')
    try:
      return self._run(pairs)
    except BaseException:
      self.close()
      raise

  def _run(self, pairs: Sequence[tuple[str, str]]) -> list[str]:
    statuses = [''] * len(pairs)
    pending = collections.deque(range(len(pairs)))
    num_left = len(pairs)
    while num_left:
      for worker in self._workers:
        if worker.is_idle():
          worker.give(pairs, pending, self._chunk(len(pending)))
      for place, worker in self._wait():
        message = worker.receive()
        if message == worker_lib.READY:
          continue
        if message is not None:
          statuses[worker.tasks.popleft()] = message
          num_left -= 1
          continue
        retry = worker.retry
        if worker.tasks:
          index = worker.tasks.popleft()
          status = worker.cause_of_death()
          if status == worker_lib.CRASHED and worker.num_judged:
            retry = index  # What came before may be to blame.
          else:
            statuses[index] = status
            num_left -= 1
        worker.stop()
        pending.extendleft(reversed(worker.tasks))
        self._workers[place] = _Worker(self._settings, retry)
    return statuses

  def _chunk(self, num_pending: int) -> int:
    # Small towards the end, so that the workers finish together.
    return max(1, min(_CHUNK, num_pending // (2 * len(self._workers))))

  def _wait(self) -> list[tuple[int, '_Worker']]:
    # With their places, the workers that replied, died or are overdue.
    deadline = min(worker.deadline for worker in self._workers)
    seconds = deadline - time.monotonic()
    readable = connection.wait(
      [worker.pipe for worker in self._workers],
      None if deadline == math.inf else max(0.0, seconds),
    )
    now = time.monotonic()
    return [
      (place, worker)
      for place, worker in enumerate(self._workers)
      if worker.pipe in readable or now > worker.deadline
    ]


class _Worker:
  """The parent's end of one process.

  tasks: the pairs it was given and has not judged, first the one it is at.
  retry: the pair that it has to judge first and alone, if any.
  num_judged: replies so far.
  deadline: when to give up on it, on the monotonic clock.
  """

  def __init__(self, settings: worker_lib.Settings, retry: int | None):
    self.pipe, other = multiprocessing.Pipe()
    paths = [path or os.getcwd() for path in sys.path]
    with other:
      self.process = subprocess.Popen(
        # -P: the paths of the parent and no other.
        [sys.executable, '-P', '-W', 'ignore', '-c', _MAIN]
        + [str(other.fileno())],
        pass_fds=[other.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # The order of sets, and so of terms, may depend on hashes.
        env=os.environ
        | {'PYTHONPATH': os.pathsep.join(paths), 'PYTHONHASHSEED': '0'},
      )
      self.pipe.send(tuple(settings))
    self.tasks: collections.deque[int] = collections.deque()
    self.retry = retry
    self.num_judged = 0
    self.deadline = time.monotonic() + _START_SECONDS
    self._wall_seconds = settings.wall_timeout
    self._is_ready = False
    self._is_overdue = False

  def is_idle(self) -> bool:
    return self._is_ready and not self.tasks

  def give(
    self,
    pairs: Sequence[tuple[str, str]],
    pending: collections.deque[int],
    num_tasks: int,
  ) -> None:
    """Sends what to retry, or else the first pairs that are pending."""
    if self.retry is not None:
      tasks = [self.retry]
    else:
      tasks = [pending.popleft() for _ in range(min(num_tasks, len(pending)))]
    if not tasks:
      return
    try:
      self.pipe.send([pairs[index] for index in tasks])
    except OSError:  # Died while it was idle; `receive` will see it.
      if self.retry is None:
        pending.extendleft(reversed(tasks))
      return
    self.retry = None
    self.tasks.extend(tasks)
    self.deadline = time.monotonic() + self._wall_seconds

  def receive(self) -> str | None:
    """Returns its message, None if it has died or is overdue.

    Raises:
      RuntimeError: if it died or was overdue before it was ready.
    """
    message = None
    try:
      if self.pipe.poll():
        message = self.pipe.recv_bytes().decode()
      else:
        self._is_overdue = True
    except (EOFError, ConnectionError):
      pass
    if not self._is_ready and message != worker_lib.READY:
      self.stop()
      reason = message or f'exit code {self.process.returncode}'
      raise RuntimeError(
        f'A verifier worker could not start ({reason}). Is memory_limit enough?'
      )
    if message is not None:
      self.num_judged += self._is_ready
      self._is_ready = True
      is_busy = len(self.tasks) > (message != worker_lib.READY)
      self.deadline = (
        time.monotonic() + self._wall_seconds if is_busy else math.inf
      )
    return message

  def cause_of_death(self) -> str:
    """Returns 'timeout' or 'crashed'."""
    self.stop()
    is_timeout = self._is_overdue or (
      -(self.process.returncode or 0) in worker_lib.TIMERS
    )
    return worker_lib.TIMEOUT if is_timeout else worker_lib.CRASHED

  def stop(self) -> None:
    """Kills the process if it has not ended by itself."""
    self.process.kill()
    self.process.wait()
    self.pipe.close()


def _stop(workers: list[_Worker]) -> None:
  for worker in workers:
    worker.stop()
