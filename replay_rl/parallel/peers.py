"""Processes of a run that meet before JAX connects them, and miss the lost.

JAX's own service waits in C++ for a process that never comes, and ends with a
stack trace, as it does when a process is gone. So every process first connects
over TCP to process 0, at the address that JAX's service gets afterwards.
Process 0 tells all of them why a run cannot start. The connections stay open: a
process that dies closes its own, one that is frozen or cut off does not answer,
and process 0 tells the others. No result of a run passes here.
"""

import contextlib
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any
from typing import BinaryIO
from typing import NoReturn

from replay_rl.parallel import hub as hub_lib

_RETRY = 0.1  # Seconds between attempts to connect.
_SLACK = 2  # Seconds for process 0 to say that time is up.
_GRACE = 2  # Seconds for this process to find the error of another itself.


def leave(text: str) -> NoReturn:
  """Ends this process at once, with a last line, from any thread.

  An orderly end would wait for the other processes. An empty line comes first,
  because another thread may be writing a line, such as the progress, that has
  no end yet.
  """
  sys.stdout.flush()
  print(f'\n{text}', file=sys.stderr)
  sys.stderr.flush()
  os._exit(1)


@contextlib.contextmanager
def limited(seconds: float, text: str) -> Iterator[None]:
  """Ends this process with a line if the body takes longer, also if in C++."""
  timer = threading.Timer(seconds, leave, [text])
  timer.daemon = True
  timer.start()
  try:
    yield
  finally:
    timer.cancel()


class Peers:
  """The other processes of a run, as this one sees them.

  A thread ends this process if one of them is lost or fails. `meet` makes it.
  """

  def __init__(
    self,
    connection: socket.socket,
    lines: BinaryIO,
    hub: hub_lib.Hub | None,
    num_processes: int,
    heartbeat_timeout: float,
  ):
    """Starts the thread."""
    self._connection = connection
    self._lines = lines
    self._hub = hub
    self._num_processes = num_processes
    self._heartbeat_timeout = heartbeat_timeout
    self._news = threading.Event()  # A process is lost, or failed.
    self._all_done = threading.Event()
    self._last_word = threading.Lock()
    connection.settimeout(None)  # Until the first beat.
    self._thread = threading.Thread(target=self._watch, daemon=True)
    self._thread.start()

  def take_last_word(self, seconds: float) -> None:
    """Returns if this process may end with a word of its own.

    Else it does not return, because the thread ends the process.

    Args:
      seconds: to wait for news of another process, which say more.
    """
    if seconds and self._news.wait(seconds):
      threading.Event().wait()
    self._last_word.acquire()

  def fail(self) -> None:
    """Says that this process fails, and lets the others end before process 0.

    Without process 0, JAX ends the others from C++.
    """
    self._say('end', 'failed')
    if self._hub is not None:
      self._hub.thread.join(2 * _GRACE)

  def finish(self) -> None:
    """Says that this process is done, and waits for the others."""
    self._say('end', 'done')
    self._all_done.wait()
    if self._hub is not None:
      self._hub.thread.join()

  def _say(self, kind: str, value: Any = None) -> None:
    with contextlib.suppress(OSError):  # The thread sees it too.
      self._connection.sendall(hub_lib.line(kind, value))

  def _watch(self) -> None:
    how, lost = 'lost', [0]
    with contextlib.suppress(OSError, ValueError):
      while True:
        kind, value = hub_lib.message(self._lines.readline(hub_lib.MAX_LINE))
        if kind == 'beat':
          self._connection.settimeout(self._heartbeat_timeout)
          self._say('beat')
        elif kind == 'all done':
          self._all_done.set()
          self._lines.close()
          self._connection.close()
          return
        elif kind in ('lost', 'failed'):
          how, lost = kind, value
          break
    self._news.set()
    if how == 'failed':
      time.sleep(_GRACE)
    self._last_word.acquire()  # Waits for the end if another thread has it.
    leave(f'error: {_loss(how, lost, self._num_processes)}')


def _loss(how: str, process_ids: list[int], num_processes: int) -> str:
  why = {
    'failed': 'the output of that process says why',
    'lost': 'that process was killed, or its host is frozen or cut off; the '
    'same command continues the run',
  }
  return (
    f'{how} processes = {process_ids}: must be none of {num_processes}; '
    f'{why[how]}'
  )


def meet(
  address: str,
  num_processes: int,
  process_id: int,
  *,
  initialization_timeout: float,
  heartbeat_timeout: float,
) -> Peers:
  """Returns once all processes are here, and JAX's service may have the port.

  Elsewhere than in process 0, JAX's service is there already.

  Args:
    address: HOST:PORT of process 0. Like JAX's service, process 0 binds
      `JAX_COORDINATOR_BIND_ADDRESS` of the environment instead, if it is set.
    num_processes: of the run.
    process_id: of this process, from 0.
    initialization_timeout: seconds in which all must come.
    heartbeat_timeout: seconds without a sign of a process, after which it is
      lost.

  Raises:
    ValueError: they do not find each other, or are not these processes.
  """
  hub, in_use, token = None, None, ''
  if process_id == 0:
    token = secrets.token_hex()
    timeouts = initialization_timeout, heartbeat_timeout
    try:
      listener = hub_lib.listen(address)
    except OSError as error:
      in_use = error
    else:
      hub = hub_lib.Hub(listener, address, num_processes, token, timeouts)
  # If the port is in use by a first process 0, that one says so at once.
  seconds = initialization_timeout if in_use is None else _SLACK
  try:
    connection, lines = _joined(
      address, hub_lib.Hello(process_id, num_processes, seconds, token)
    )
  except _NobodyError as error:
    if hub is not None:
      hub.refuse(str(error))
    if in_use is not None:
      raise ValueError(
        f'--coordinator_address = {address!r}: must have a port that is free '
        f'on the host of process 0 ({in_use})'
      ) from error
    raise
  return Peers(connection, lines, hub, num_processes, heartbeat_timeout)


class _NobodyError(ValueError):
  """Process 0 was not there."""


def _joined(
  address: str, hello: hub_lib.Hello
) -> tuple[socket.socket, BinaryIO]:
  """Returns the connection to process 0, once process 0 says go."""
  deadline = time.monotonic() + hello.seconds
  reason = None
  while (left := deadline - time.monotonic()) > 0:
    with contextlib.ExitStack() as stack:
      try:
        connection = socket.create_connection(hub_lib.split(address), left)
        stack.enter_context(connection)
        connection.sendall(hub_lib.line('meet', hello._replace(seconds=left)))
        connection.settimeout(left + _SLACK)
        lines = stack.enter_context(connection.makefile('rb'))
        kind, value = hub_lib.message(lines.readline(hub_lib.MAX_LINE))
      except OSError as error:
        reason = error
      except ValueError:
        reason = 'what answers is another program, or a run that has started'
      else:
        if kind == 'refused':
          raise ValueError(value)
        if kind in ('lost', 'failed'):
          raise ValueError(_loss(kind, value, hello.num_processes))
        if kind == 'go':
          stack.pop_all()
          return connection, lines
    time.sleep(min(_RETRY, left))
  raise _NobodyError(
    f'--coordinator_address = {address!r}: must be where process 0 waits for '
    f'the others; in {hello.seconds:g} s it was not there ({reason})'
  )
