"""The side of process 0, where the processes of a run meet; see `peers`.

Messages are lines of JSON, [kind, value]. Process 0 sends refused, go, beat,
lost, failed, all done; the others send meet, beat, end.
"""

import asyncio
import contextlib
import itertools
import json
import os
import socket
import threading
from collections.abc import Iterable
from typing import Any
from typing import NamedTuple

from replay_rl import json_files

MAX_LINE = 2**16  # Bytes.
_POLL = 0.02  # Seconds.
_STRANGER = 5  # Seconds, after which one who says nothing has to go.
_BEATS = 8  # Per heartbeat timeout.
_SHOWN = 8  # Process ids in a message.


class Hello(NamedTuple):
  """What a process says first; `token` is known to process 0 alone."""

  process_id: int
  num_processes: int
  seconds: float  # That it still waits.
  token: str


def line(kind: str, value: Any = None) -> bytes:
  """Returns a message."""
  return json.dumps([kind, value]).encode() + b'\n'


def message(line: bytes) -> tuple[str, Any]:
  """Returns kind and value; raises ValueError if it is none of ours."""
  parsed = json_files.parse(line)
  if not isinstance(parsed, list) or len(parsed) != 2:
    raise ValueError(f'message = {parsed!r}: must be [kind, value]')
  return str(parsed[0]), parsed[1]


def _hello(line: bytes) -> Hello:
  kind, value = message(line)
  if kind != 'meet' or not isinstance(value, list):
    raise ValueError(f'message = {kind!r}: must be meet')
  process_id, num_processes, seconds, token = value
  return Hello(int(process_id), int(num_processes), float(seconds), str(token))


def split(address: str) -> tuple[str, int]:
  """Returns host and port of HOST:PORT; raises ValueError if it is not that."""
  host, _, port = address.rpartition(':')
  if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
    raise ValueError(f'--coordinator_address = {address!r}: must be HOST:PORT')
  return host.removeprefix('[').removesuffix(']'), int(port)


def listen(address: str) -> socket.socket:
  """Returns a socket that listens where JAX's service will for this address.

  Raises:
    OSError: the port is in use.
  """
  host, port = split(os.environ.get('JAX_COORDINATOR_BIND_ADDRESS', address))
  if 'JAX_COORDINATOR_BIND_ADDRESS' not in os.environ:
    host = '::'
  if host == '::' and not socket.has_dualstack_ipv6():
    host = '0.0.0.0'
  return socket.create_server(
    (host, port),
    family=socket.AF_INET6 if ':' in host else socket.AF_INET,
    dualstack_ipv6=host == '::',
  )


class Hub:
  """Process 0's thread that admits all, and tells them who is gone."""

  def __init__(
    self,
    listener: socket.socket,
    address: str,
    num_processes: int,
    token: str,
    timeouts: tuple[float, float],
  ):
    """Starts the thread.

    Args:
      listener: that all processes can reach.
      address: HOST:PORT by which they reach it.
      num_processes: of the run.
      token: by which process 0 is known.
      timeouts: seconds to wait for all, and without a sign of one.
    """
    self._listener = listener
    self._address = address
    self._num_processes = num_processes
    self._token = token
    self._initialization_timeout, self._heartbeat_timeout = timeouts
    self._members: dict[int, asyncio.StreamWriter] = {}
    self._heard: dict[int, float] = {}
    self._done: set[int] = set()
    self._gone: set[int] = set()
    self._refusal: str | None = None
    self._connections: dict[asyncio.Task, asyncio.StreamWriter] = {}
    self._loop = asyncio.new_event_loop()
    self._own = asyncio.Event()  # Process 0 itself is here.
    self._met = asyncio.Event()  # All are here, or refused.
    self._over = asyncio.Event()  # All are done, or gone.
    self.thread = threading.Thread(target=self._run, daemon=True)
    self.thread.start()

  def refuse(self, text: str) -> None:
    """Tells all that came why the run cannot start; from any thread."""
    with contextlib.suppress(RuntimeError):  # The loop has ended.
      self._loop.call_soon_threadsafe(self._refuse, text)
      self._loop.call_soon_threadsafe(self._own.set)

  def _run(self) -> None:
    with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
      runner.run(self._serve())

  async def _serve(self) -> None:
    server = await asyncio.start_server(
      self._attend, sock=self._listener, limit=MAX_LINE
    )
    await self._met.wait()
    await self._own.wait()
    server.close()
    if self._refusal is None:
      # JAX's service gets the port.
      self._tell('go', None, [0])
      await self._until_service_is_up()
      self._tell('go', None, self._members.keys() - self._gone - {0})
      await self._beat()
    self._over.set()
    for writer in self._connections.values():
      writer.close()
    if self._connections:
      await asyncio.wait(self._connections)

  async def _until_service_is_up(self) -> None:
    while not self._over.is_set():
      try:
        _, writer = await asyncio.open_connection(*split(self._address))
      except OSError:
        await asyncio.sleep(_POLL)
        continue
      writer.close()
      return

  async def _beat(self) -> None:
    self._heard = dict.fromkeys(self._members, self._loop.time())
    while not self._over.is_set():
      self._tell('beat')
      # Before the wait: if this process is frozen in it, all are heard first.
      now = self._loop.time()
      with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(self._heartbeat_timeout / _BEATS):
          await self._over.wait()
      for process_id, heard in self._heard.items():
        if now - heard > self._heartbeat_timeout:
          self._part(process_id, 'lost')

  async def _attend(
    self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
  ) -> None:
    task = asyncio.current_task()
    assert task is not None
    self._connections[task] = writer
    try:
      async with asyncio.timeout(_STRANGER):
        hello = _hello(await reader.readline())
      if self._admit(hello, writer):
        await self._hear(hello.process_id, reader)
    except (OSError, TypeError, ValueError):
      pass  # A stranger.
    finally:
      del self._connections[task]
      writer.close()

  async def _hear(self, process_id: int, reader: asyncio.StreamReader) -> None:
    try:
      while True:
        kind, value = message(await reader.readline())
        self._heard[process_id] = self._loop.time()
        if kind == 'end':
          self._end(process_id, value)
    except (OSError, TypeError, ValueError):
      self._part(process_id, 'lost')

  def _admit(self, hello: Hello, writer: asyncio.StreamWriter) -> bool:
    if hello.token == self._token:
      self._own.set()
    refusal = self._refusal or self._refusal_of(hello)
    if refusal is not None:
      writer.write(line('refused', refusal))
      self._refuse(refusal)  # Unless all others are here.
      return False
    self._members[hello.process_id] = writer
    self._loop.call_later(hello.seconds, self._give_up, writer)
    if len(self._members) == self._num_processes:
      self._met.set()
    return True

  def _refusal_of(self, hello: Hello) -> str | None:
    if hello.num_processes != self._num_processes:
      return (
        f'--num_processes = {hello.num_processes}: must be the same for all '
        f'processes; process 0 has {self._num_processes}'
      )
    is_other = hello.process_id == 0 and hello.token != self._token
    if is_other or hello.process_id in self._members:
      return (
        f'--process_id = {hello.process_id}: must be given to one process '
        f'only; two came with it to {self._address}'
      )
    return None

  def _give_up(self, writer: asyncio.StreamWriter) -> None:
    if writer not in self._members.values():
      return  # That process has ended, and another may have its id.
    num_missing = self._num_processes - len(self._members)
    ids = (i for i in range(self._num_processes) if i not in self._members)
    self._refuse(
      f'--num_processes = {self._num_processes}: must be how many processes '
      f'start; in {self._initialization_timeout:g} s {num_missing} did not '
      f'come to {self._address}, with the process ids '
      f'{", ".join(map(str, itertools.islice(ids, _SHOWN)))}'
      f'{", ..." if num_missing > _SHOWN else ""}'
    )

  def _refuse(self, text: str) -> None:
    if not self._met.is_set():
      self._refusal = text
      self._tell('refused', text)
      self._met.set()

  def _end(self, process_id: int, how: str) -> None:
    if how == 'failed':
      self._part(process_id, 'failed')
      return
    self._done.add(process_id)
    if len(self._done) == self._num_processes:
      self._tell('all done')
      self._over.set()

  def _part(self, process_id: int, how: str) -> None:
    if not self._met.is_set():
      del self._members[process_id]  # It may start again.
    elif not self._over.is_set() and process_id not in self._gone:
      self._gone.add(process_id)
      self._tell(how, [process_id])
      if self._gone >= self._members.keys() - {0}:
        self._over.set()

  def _tell(
    self, kind: str, value: Any = None, to: Iterable[int] | None = None
  ) -> None:
    if to is None:
      to = self._members.keys() - self._gone
    # Process 0 is the last, because its end is that of this thread.
    for process_id in sorted(to, reverse=True):
      self._members[process_id].write(line(kind, value))
