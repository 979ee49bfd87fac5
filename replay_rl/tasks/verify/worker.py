"""A process that judges answers for a `pool.Pool`.

The pool runs `python -P -c 'import ...; main()' FD LIFELINE`, with a pipe at
descriptor FD, and one at LIFELINE that nobody writes to: it closes when the
parent ends. This module imports nothing heavy; the verify function may.
"""

import fcntl
import logging
import os
import pickle
import resource
import select
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing import connection
from typing import NamedTuple

# Messages to the pool are READY, FAILED with a reason, or the status of one
# answer. They are plain text, never pickles, as a worker that parsed an answer
# cannot be trusted.
READY = 'ready'
FAILED = 'failed: '
# The signals of two timers: processor time, and time by the clock.
TIMERS = (signal.SIGPROF, signal.SIGALRM)
# Statuses of one answer.
CORRECT = 'correct'
WRONG = 'wrong'
UNREADABLE = 'unreadable'
CRASHED = 'crashed'
TIMEOUT = 'timeout'  # From the pool: a worker that takes too long is dead.


class UnreadableError(ValueError):
  """Raised by a verify function for an answer that it cannot parse."""


class WorkerSettings(NamedTuple):
  """The first message to a worker.

  verify_fn: pickled `pool.VerifyFn`.
  warm_up: texts to judge first, so that no answer pays for imports.
  answer_timeout: seconds of processor time for an answer.
  wall_timeout: seconds by the clock for an answer.
  memory_limit: bytes of address space.
  """

  verify_fn: bytes
  warm_up: tuple[str, ...]
  answer_timeout: float
  wall_timeout: float
  memory_limit: int


def main() -> None:
  """Judges until the pipe closes, or until the parent ends."""
  watch(int(sys.argv[2]), by_signal=hasattr(fcntl, 'F_SETSIG'))
  # Ctrl-C reaches every process of a terminal, and a launcher may signal them
  # all. The parent decides what to do.
  for asked_to_stop in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
    signal.signal(asked_to_stop, signal.SIG_IGN)
  # The default actions kill the process, even if it runs C code.
  for timer in TIMERS:
    signal.signal(timer, signal.SIG_DFL)
  logging.disable(logging.CRITICAL)
  pipe = connection.Connection(int(sys.argv[1]))
  try:
    _serve(pipe)
  except (EOFError, ConnectionError):
    pass


def watch(lifeline: int, *, by_signal: bool) -> None:
  """Has this process end when the other end of a pipe closes.

  The kernel closes it however the parent ends, unless another process has a
  copy, as after a fork without exec. PR_SET_PDEATHSIG would not do: it fires
  when the thread ends that started this process.

  Args:
    lifeline: descriptor of the end that reads; nobody writes to the other.
    by_signal: have Linux send SIGKILL, which also ends a process that computes
      in C. If False, a thread waits, which such a computation holds up.
  """
  if by_signal:
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    flags = fcntl.fcntl(lifeline, fcntl.F_GETFL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, flags | os.O_ASYNC)
    # The parent may have ended before the signal was asked for.
    if select.select([lifeline], [], [], 0)[0]:
      os._exit(1)
  else:
    threading.Thread(target=_exit_after, args=(lifeline,), daemon=True).start()


def _exit_after(lifeline: int) -> None:
  os.read(lifeline, 1)
  os._exit(1)


def _serve(pipe: connection.Connection) -> None:
  settings = WorkerSettings(*pipe.recv())
  limit = settings.memory_limit
  try:
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    verify_fn = pickle.loads(settings.verify_fn)
    verify_fn(*settings.warm_up)
    if _is_half_used(limit):
      raise MemoryError('half of memory_limit is in use before any answer')
  except Exception as error:
    pipe.send_bytes(f'{FAILED}{type(error).__name__}: {error}'.encode())
    return
  pipe.send_bytes(READY.encode())
  while True:
    for texts in pipe.recv():
      signal.setitimer(signal.ITIMER_PROF, settings.answer_timeout)
      signal.setitimer(signal.ITIMER_REAL, settings.wall_timeout)
      status = _judge(verify_fn, texts)
      signal.setitimer(signal.ITIMER_PROF, 0)
      signal.setitimer(signal.ITIMER_REAL, 0)
      pipe.send_bytes(status.encode())
      # Otherwise the memory that earlier answers use could fail a later one.
      # The pool sees the end and gives the remaining answers to another worker.
      if _is_half_used(limit):
        return


def _judge(verify_fn: Callable[..., bool | str], texts: tuple[str, ...]) -> str:
  try:
    verdict = verify_fn(*texts)
    if isinstance(verdict, str):
      return verdict
    return CORRECT if verdict else WRONG
  except UnreadableError:
    return UNREADABLE
  except MemoryError:
    raise  # The process cannot be trusted now.
  except Exception:
    return CRASHED


def _is_half_used(limit: int) -> bool:
  # The limit counts address space. `ru_maxrss` would not do: on Linux a child
  # inherits the peak of its parent, which holds a model.
  try:
    with open('/proc/self/statm') as statm:
      num_pages = int(statm.read().split()[0])
  except FileNotFoundError:  # macOS, where the limit has no effect either.
    return False
  return num_pages * resource.getpagesize() > limit / 2
