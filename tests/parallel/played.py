"""Processes that meet in threads of one test, and played ones among them."""

import contextlib
import socket
import threading
from concurrent import futures
from unittest import mock

from absl.testing import absltest

from replay_rl.parallel import hub
from replay_rl.parallel import peers
from tests import processes

SECONDS = 10  # For what must come; no test waits so long.


class Played:
  """The processes of a test, at one address. None of them really ends.

  A process that is played speaks over a socket of the test.
  """

  def __init__(self, test: absltest.TestCase):
    self._test = test
    self.port = processes.many_processes.free_port()
    self.address = f'127.0.0.1:{self.port}'
    self.met, self.last_words = [], []
    self.has_left = threading.Semaphore(0)
    test.enter_context(mock.patch.object(peers, 'leave', self._leave))
    test.enter_context(mock.patch.object(peers, '_GRACE', 0.1))
    self.pool = test.enter_context(futures.ThreadPoolExecutor(8))
    test.addCleanup(self._close)

  def _close(self):
    for one in self.met:
      with contextlib.suppress(OSError):
        one._connection.shutdown(socket.SHUT_RDWR)
      if one._last_word.locked():
        one._last_word.release()
    for one in self.met:
      one._thread.join()
      one._lines.close()
      one._connection.close()
      if one._hub is not None:
        one._hub.thread.join()

  def _leave(self, text):
    self.last_words.append(text)
    self.has_left.release()

  def meet(
    self,
    process_id,
    num_processes=2,
    seconds=SECONDS,
    heartbeat_timeout=SECONDS,
    has_service=True,
  ):
    """Returns the peers; in process 0, with a service of JAX that is played."""
    met = peers.meet(
      self.address,
      num_processes,
      process_id,
      initialization_timeout=seconds,
      heartbeat_timeout=heartbeat_timeout,
    )
    self.met.append(met)
    if process_id == 0 and has_service:
      self._test.enter_context(socket.create_server(('', self.port)))
    return met

  def start(self, *arguments, **changes):
    return self.pool.submit(self.meet, *arguments, **changes)

  def play(self, process_id=None, num_processes=2, seconds=SECONDS):
    """Returns a connection to process 0 and its lines, after a first word."""
    while True:
      with contextlib.suppress(ConnectionRefusedError):
        connection = socket.create_connection(('127.0.0.1', self.port))
        break
    self._test.enter_context(connection)
    lines = self._test.enter_context(connection.makefile('rb'))
    if process_id is not None:
      hello = hub.Hello(process_id, num_processes, seconds, '')
      connection.sendall(hub.line('meet', hello))
    return connection, lines

  def play_hub(self):
    """Returns a connection to a process, as process 0 has it, and its lines."""
    with socket.create_server(('127.0.0.1', self.port)) as listener:
      connection, _ = listener.accept()
    self._test.enter_context(connection)
    lines = self._test.enter_context(connection.makefile('rb'))
    self._test.assertEqual(hub.message(lines.readline())[0], 'meet')
    return connection, lines

  def expect(self, lines, kind, value=None):
    """Reads on until a message that is no beat, which must be this one."""
    actual = ('beat', None)
    while actual[0] == 'beat':
      actual = hub.message(lines.readline())
    self._test.assertEqual(actual, (kind, value))

  def assert_left(self, *last_words):
    for _ in last_words:
      self._test.assertTrue(self.has_left.acquire(timeout=SECONDS))
    self._test.assertLen(self.last_words, len(last_words))
    for actual, expected in zip(
      sorted(self.last_words), sorted(last_words), strict=True
    ):
      self._test.assertStartsWith(actual, expected)

  def assert_refused(self, message, *started):
    for one in started:
      with self._test.assertRaisesRegex(ValueError, message):
        one.result(SECONDS)
