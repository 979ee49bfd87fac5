"""Processes that judge answers, any of which may hang, crash or eat memory.

A worker is a plain subprocess at the other end of a pipe. A fork would copy the
threads of jax, and `multiprocessing` would import the main module of the
parent, and jax with it, in each worker.

A worker gets several answers in one message and replies after each. When it
dies, the pool knows which answer killed it, and gives the rest to others.
"""

import collections
import math
import multiprocessing
import os
import pickle
import subprocess
import sys
import time
import warnings
import weakref
from collections.abc import Callable
from collections.abc import Sequence
from multiprocessing import connection

from replay_rl.tasks.verify import restarts
from replay_rl.tasks.verify import worker as worker_lib

# (answer, reference) -> is correct; or any texts -> a text for the caller
VerifyFn = Callable[..., bool | str]

_CHUNK = 16  # Answers in a message: enough to hide the pipe.
# The limit counts processor time, which other programs do not disturb. An
# answer that does not compute is stopped after so many times the limit by the
# clock.
_WALL_FACTOR = 10
_START_SECONDS = 120  # By the clock, until a worker must be ready.
# Starts that may be killed within a minute, for each worker: a machine that
# runs out of memory kills several processes at once.
_KILLED_STARTS = 3
_MAIN = 'from replay_rl.tasks.verify import worker; worker.main()'


class Pool:
  """Judges pairs of answer and reference in processes of their own.

  Verdicts do not depend on the number of workers, nor on the other answers: if
  a worker crashes that has judged others before, a new one tries the answer
  again. One thread at a time may use a pool. POSIX only; macOS does not enforce
  memory limits.
  """

  def __init__(
    self,
    *,
    verify_fn: VerifyFn,
    warm_up: tuple[str, ...],
    num_workers: int,
    answer_timeout: float,
    memory_limit: int,
  ):
    """Starts the workers; they get ready while the caller goes on.

    Args:
      verify_fn: a function of a module, since it is pickled by name. It may
        raise `worker.UnreadableError`.
      warm_up: the texts that each worker judges first, without reply.
      num_workers: processes, at least 1.
      answer_timeout: seconds of processor time for one answer, positive. An
        answer that sleeps is stopped after ten times as long by the clock.
      memory_limit: bytes of address space of a worker, at least 1. A worker
      that
        uses more than half of it after an answer is replaced.

    Raises:
      ValueError: an argument is not as above.
    """
    # `constants.checked` would refuse a memory limit of 2^31 bytes.
    for name, value, is_allowed, allowed in (
      ('num_workers', num_workers, num_workers >= 1, '[1, inf)'),
      (
        'answer_timeout',
        answer_timeout,
        0 < answer_timeout < math.inf,
        '(0, inf)',
      ),
      ('memory_limit', memory_limit, memory_limit >= 1, '[1, inf)'),
    ):
      if not is_allowed:
        raise ValueError(f'{name} = {value}: must be in {allowed}')
    self._settings = worker_lib.WorkerSettings(
      verify_fn=pickle.dumps(verify_fn),
      warm_up=warm_up,
      answer_timeout=answer_timeout,
      wall_timeout=_WALL_FACTOR * answer_timeout,
      memory_limit=memory_limit,
    )
    self._killed_starts = restarts.Restarts(
      _KILLED_STARTS * num_workers, time.monotonic
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

  @property
  def num_killed_starts(self) -> int:
    """Workers that something killed before they were ready, so far."""
    return self._killed_starts.num

  def run(self, pairs: Sequence[tuple[str, ...]]) -> list[str]:
    """Returns the status of each pair, in their order.

    Args:
      pairs: (answer, reference) each, or what else the verify function takes.

    Returns:
      'correct', 'wrong', 'unreadable', 'timeout' or 'crashed' for each pair.
      'crashed' also stands for any other exception of the verify function. If
      that returns a text, it is that text.

    Raises:
      ValueError: the pool is closed.
      RuntimeError: a worker cannot start, or too many were killed within a
        minute while they started. Any exception closes the pool.
    """
    if not self._finalizer.alive:
      raise ValueError('pool = closed: must be open')
    try:
      return self._run(pairs)
    except BaseException:
      self.close()
      raise

  def _run(self, pairs: Sequence[tuple[str, ...]]) -> list[str]:
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
        if not worker.is_ready:
          self._count_killed_start(worker)
        elif worker.tasks:
          index = worker.tasks.popleft()
          status = worker.cause_of_death()
          if status == worker_lib.CRASHED and worker.num_judged:
            retry = index  # An earlier answer may be the cause.
          else:
            statuses[index] = status
            num_left -= 1
        worker.stop()
        pending.extendleft(reversed(worker.tasks))
        self._workers[place] = _Worker(self._settings, retry)
    return statuses

  def _count_killed_start(self, worker: '_Worker') -> None:
    reason = f'exit code {worker.process.returncode}'
    if not self._killed_starts.add():
      raise RuntimeError(
        f'worker = {reason!r}: must start; too many were killed within a '
        'minute; the machine may have too little memory'
      )
    warnings.warn(
      f'a verifier process was killed while it started ({reason}; '
      f'{self.num_killed_starts} so far); another one is started',
      stacklevel=2,
    )

  def _chunk(self, num_pending: int) -> int:
    # The last chunks are small, so that the workers finish together.
    return max(1, min(_CHUNK, num_pending // (2 * len(self._workers))))

  def _wait(self) -> list[tuple[int, '_Worker']]:
    # Returns the workers that replied, died or are overdue, with their places.
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

  tasks: the pairs that it has and did not judge yet; it is at the first.
  retry: the pair that it must judge first and alone; None if there is none.
  num_judged: replies so far.
  deadline: on the monotonic clock; the worker is overdue after it.
  is_ready: whether it has judged the warm-up.
  """

  def __init__(self, settings: worker_lib.WorkerSettings, retry: int | None):
    self.pipe, other = multiprocessing.Pipe()
    # See `worker.watch`. No other process inherits the end that is kept.
    lifeline, self._lifeline = multiprocessing.Pipe(duplex=False)
    paths = [path or os.getcwd() for path in sys.path]
    with other, lifeline:
      self.process = subprocess.Popen(
        # -P: no paths other than those of the parent.
        [sys.executable, '-P', '-W', 'ignore', '-c', _MAIN]
        + [str(other.fileno()), str(lifeline.fileno())],
        pass_fds=[other.fileno(), lifeline.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # The order of sets, and so of terms, depends on hashes.
        env=os.environ
        | {'PYTHONPATH': os.pathsep.join(paths), 'PYTHONHASHSEED': '0'},
      )
      self.pipe.send(tuple(settings))
    self.tasks: collections.deque[int] = collections.deque()
    self.retry = retry
    self.num_judged = 0
    self.deadline = time.monotonic() + _START_SECONDS
    self._wall_seconds = settings.wall_timeout
    self.is_ready = False
    self._is_overdue = False

  def is_idle(self) -> bool:
    return self.is_ready and not self.tasks

  def give(
    self,
    pairs: Sequence[tuple[str, ...]],
    pending: collections.deque[int],
    num_tasks: int,
  ) -> None:
    """Sends the pair to retry, or else the first of the pending pairs."""
    if self.retry is not None:
      tasks = [self.retry]
    else:
      tasks = [pending.popleft() for _ in range(min(num_tasks, len(pending)))]
    if not tasks:
      return
    try:
      self.pipe.send([pairs[index] for index in tasks])
    except OSError:  # The worker died while it was idle; see `receive`.
      if self.retry is None:
        pending.extendleft(reversed(tasks))
      return
    self.retry = None
    self.tasks.extend(tasks)
    self.deadline = time.monotonic() + self._wall_seconds

  def receive(self) -> str | None:
    """Returns the worker's message; None if it died or is overdue.

    Raises:
      RuntimeError: it was overdue or ended by itself before it was ready. A
        signal is no such end: another worker may start.
    """
    message = None
    try:
      if self.pipe.poll():
        message = self.pipe.recv_bytes().decode()
      else:
        self._is_overdue = True
    except (EOFError, ConnectionError):
      pass
    if not self.is_ready and message != worker_lib.READY:
      if self._is_overdue:
        reason = f'not ready after {_START_SECONDS} s'
      elif message is None:
        # It has closed its pipe, so it is at its end.
        if self.process.wait() < 0:
          return None
        reason = f'exit code {self.process.returncode}'
      else:
        reason = message
      self.stop()
      raise RuntimeError(
        f'worker = {reason!r}: must start; memory_limit may be too low'
      )
    if message is not None:
      self.num_judged += self.is_ready
      self.is_ready = True
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
    """Kills the process if it still runs."""
    self.process.kill()
    self.process.wait()
    self.pipe.close()
    self._lifeline.close()


def _stop(workers: list[_Worker]) -> None:
  for worker in workers:
    worker.stop()
