"""Tests of how processes meet and miss each other, in threads of one process.

A process that is played speaks over a socket of the test.
"""

import contextlib
import re
import socket
import threading
from concurrent import futures
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized

from replay_rl.parallel import hub
from replay_rl.parallel import peers
from tests import processes

_SECONDS = 10  # For what must come; no test waits so long.


class PeersTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.port = processes.many_processes.free_port()
    self.address = f'127.0.0.1:{self.port}'
    self.met, self.last_words = [], []
    self.has_left = threading.Semaphore(0)
    self.enter_context(mock.patch.object(peers, 'leave', self._leave))
    self.enter_context(mock.patch.object(peers, '_GRACE', 0.1))
    self.pool = self.enter_context(futures.ThreadPoolExecutor(8))

    self.addCleanup(self._close)

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
    seconds=_SECONDS,
    heartbeat_timeout=_SECONDS,
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
      self.enter_context(socket.create_server(('', self.port)))
    return met

  def start(self, *arguments, **changes):
    return self.pool.submit(self.meet, *arguments, **changes)

  def play(self, process_id=None, num_processes=2, seconds=_SECONDS):
    """Returns a connection to process 0 and its lines, after a first word."""
    while True:
      with contextlib.suppress(ConnectionRefusedError):
        connection = socket.create_connection(('127.0.0.1', self.port))
        break
    self.enter_context(connection)
    lines = self.enter_context(connection.makefile('rb'))
    if process_id is not None:
      hello = hub.Hello(process_id, num_processes, seconds, '')
      connection.sendall(hub.line('meet', hello))
    return connection, lines

  def play_hub(self):
    """Returns a connection to a process, as process 0 has it, and its lines."""
    with socket.create_server(('127.0.0.1', self.port)) as listener:
      connection, _ = listener.accept()
    self.enter_context(connection)
    lines = self.enter_context(connection.makefile('rb'))
    self.assertEqual(hub.message(lines.readline())[0], 'meet')
    return connection, lines

  def expect(self, lines, kind, value=None):
    """Reads on until a message that is no beat, which must be this one."""
    actual = ('beat', None)
    while actual[0] == 'beat':
      actual = hub.message(lines.readline())
    self.assertEqual(actual, (kind, value))

  def assert_left(self, *last_words):
    for _ in last_words:
      self.assertTrue(self.has_left.acquire(timeout=_SECONDS))
    self.assertLen(self.last_words, len(last_words))
    for actual, expected in zip(
      sorted(self.last_words), sorted(last_words), strict=True
    ):
      self.assertStartsWith(actual, expected)

  def assert_refused(self, message, *started):
    for one in started:
      with self.assertRaisesRegex(ValueError, message):
        one.result(_SECONDS)

  # Processes that meet.

  def test_all_meet_and_end_without_a_word(self):
    started = [self.start(process_id, 3) for process_id in (2, 0, 1)]
    met = [one.result(_SECONDS) for one in started]
    ended = [self.pool.submit(one.finish) for one in met]
    for one in ended:
      one.result(_SECONDS)
    self.assertEmpty(self.last_words)

  def test_none_ends_before_all_are_done(self):
    process_0 = self.start(0)
    connection, lines = self.play(1)
    self.expect(lines, 'go')
    ended = self.pool.submit(process_0.result(_SECONDS).finish)
    connection.sendall(hub.line('beat'))
    self.assertFalse(ended.done())
    connection.sendall(hub.line('end', 'done'))
    self.expect(lines, 'all done')
    ended.result(_SECONDS)

  def test_the_service_of_jax_is_there_before_others_go(self):
    process_0, process_1 = self.start(0, has_service=False), self.start(1)
    process_0.result(_SECONDS)
    with self.assertRaises(futures.TimeoutError):
      process_1.result(0.2)
    with socket.create_server(('', self.port)):
      process_1.result(_SECONDS)

  def test_a_process_that_ends_while_it_waits_may_come_again(self):
    process_0 = self.start(0, 3)
    connection, lines = self.play(1, 3, seconds=0.3)
    connection.shutdown(socket.SHUT_WR)
    self.assertEqual(lines.read(), b'')
    again = self.start(1, 3)
    # Its patience ends with it.
    with self.assertRaises(futures.TimeoutError):
      again.result(0.5)
    for one in (self.start(2, 3), again, process_0):
      self.assertIsNotNone(one.result(_SECONDS))

  def test_strangers_are_not_heard(self):
    process_0 = self.start(0)
    for words in (
      b'GET / HTTP/1.1\r\n\r\n',
      b'[' * 60_000 + b'\n',
      b'x' * 2**17,
      b'["meet", ["a", 2, 1, ""]]\n',
      b'["meet", [1, 2]]\n',
      b'["meet", 1]\n',
      b'["beat", null]\n',
      b'',
    ):
      connection, _ = self.play()
      with contextlib.suppress(ConnectionError):
        connection.sendall(words)
    process_1 = self.start(1)
    self.assertIsNotNone(process_0.result(_SECONDS))
    self.assertIsNotNone(process_1.result(_SECONDS))

  # Processes that do not meet.

  @parameterized.parameters(([0, 1, 1], 1), ([0, 2, 2], 2), ([0, 0], 0))
  def test_two_of_one_id_end_all(self, process_ids, wrong):
    self.assert_refused(
      rf'^--process_id = {wrong}: must be given to one process only; two came '
      rf'with it to {self.address}$',
      *[self.start(process_id, 3) for process_id in process_ids],
    )

  def test_another_number_of_processes_ends_all(self):
    self.assert_refused(
      '^--num_processes = 3: must be the same for all processes; process 0 has '
      '2$',
      self.start(1, 3),
      self.start(0, 2),
    )

  def test_missing_processes_are_named(self):
    self.assert_refused(
      rf'^--num_processes = 12: must be how many processes start; in 0.5 s 10 '
      rf'did not come to {self.address}, with the process ids 1, 2, 4, 5, 6, '
      r'7, 8, 9, \.\.\.$',
      self.start(0, 12, 0.5),
      self.start(3, 12),
    )

  def test_the_least_patient_process_decides(self):
    self.assert_refused(
      '^--num_processes = 3: .* 1 did not come to .* ids 2$',
      self.start(0, 3),
      self.start(1, 3, 0.5),
    )

  @parameterized.parameters(
    ('127.0.0.1', 1, 'Connection refused'),
    ('no-such-host.invalid', 1, 'Name or service not known|Temporary failure'),
    ('no-such-host.invalid', 0, 'Name or service not known|Temporary failure'),
  )
  def test_nobody_at_the_address(self, host, process_id, reason):
    self.address = f'{host}:{self.port}'
    self.assert_refused(
      f"^--coordinator_address = '{self.address}': must be where process 0 "
      rf'waits for the others; in 0.3 s it was not there \(.*({reason})\)$',
      self.start(process_id, seconds=0.3),
    )

  def test_a_port_in_use_is_told(self):
    other = self.enter_context(socket.create_server(('', self.port)))
    with mock.patch.object(peers, '_SLACK', 0.1):
      self.assert_refused(
        f"^--coordinator_address = '{self.address}': must have a port that is "
        r'free on the host of process 0 \(.*Address already in use.*\)$',
        self.start(0),
      )
      # Who listens there says nothing.
      self.assert_refused(
        r'process 0 waits for the others; .* \(timed out\)$',
        self.start(1, seconds=0.2),
      )
    other.close()

  def test_who_came_is_told_why_process_0_ends(self):
    self.address = f'no-such-host.invalid:{self.port}'
    process_0 = self.start(0, seconds=0.5)
    self.address = f'127.0.0.1:{self.port}'
    started = self.start(1)
    self.assert_refused(
      "^--coordinator_address = 'no-such-host.inv", process_0, started
    )

  def test_who_comes_too_late_is_told_and_disturbs_nobody(self):
    met = [one.result(_SECONDS) for one in (self.start(0), self.start(1))]
    # What gRPC sends first. The played service of `meet` says nothing.
    service = self.enter_context(socket.create_server(('127.0.0.1', 0)))
    service.settimeout(_SECONDS)
    self.address = f'127.0.0.1:{service.getsockname()[1]}'
    late = self.start(1, seconds=0.2)
    with service.accept()[0] as connection:
      connection.sendall(b'\0\0\6\4\0\0\0\0\0\0\5\0\0\n')
    service.close()
    self.assert_refused('^--coordinator_address = .* in 0.2 s it was not', late)
    for one in [self.pool.submit(one.finish) for one in met]:
      one.result(_SECONDS)
    self.assertEmpty(self.last_words)

  # Processes that are lost.

  def test_all_others_end_if_one_dies(self):
    started = [self.start(0, 3), self.start(1, 3)]
    connection, lines = self.play(2, 3)
    self.expect(lines, 'go')
    for one in started:
      one.result(_SECONDS)
    connection.shutdown(socket.SHUT_RDWR)
    self.assert_left(*['error: lost processes = [2]: must be none of 3; '] * 2)

  def test_all_others_end_if_process_0_dies(self):
    started = self.start(1)
    connection, lines = self.play_hub()
    connection.sendall(hub.line('go') + hub.line('beat'))
    started.result(_SECONDS)
    connection.shutdown(socket.SHUT_RDWR)
    self.assert_left('error: lost processes = [0]: must be none of 2; ')

  def test_one_that_does_not_answer_is_lost(self):
    process_0 = self.start(0, heartbeat_timeout=1)
    connection, lines = self.play(1)
    self.expect(lines, 'go')
    process_0.result(_SECONDS)
    for _ in range(10):  # Longer than the timeout.
      self.assertEqual(hub.message(lines.readline()), ('beat', None))
      connection.sendall(hub.line('beat'))
    self.assertEmpty(self.last_words)
    self.assert_left('error: lost processes = [1]: must be none of 2; ')

  def test_process_0_is_lost_if_it_does_not_beat(self):
    started = self.start(1, heartbeat_timeout=0.2)
    connection, lines = self.play_hub()
    connection.sendall(hub.line('go'))
    started.result(_SECONDS)
    # Before the first beat there is no limit: JAX connects.
    self.assertFalse(self.has_left.acquire(timeout=0.4))
    connection.sendall(hub.line('beat'))
    self.assertEqual(hub.message(lines.readline()), ('beat', None))
    self.assert_left('error: lost processes = [0]: must be none of 2; ')

  def test_one_that_dies_before_it_goes_ends_the_start(self):
    process_0 = self.start(0, 3, has_service=False)
    process_1 = self.start(1, 3)
    connection, _ = self.play(2, 3)
    process_0.result(_SECONDS)
    connection.shutdown(socket.SHUT_RDWR)
    loss = 'lost processes = [2]: must be none of 3'
    self.assert_refused(f'^{re.escape(loss)}', process_1)
    self.assert_left(f'error: {loss}')
    # The thread of process 0 still waits for the service.
    self.enter_context(socket.create_server(('', self.port)))

  def test_one_that_is_done_must_not_die_before_the_others_are(self):
    process_0 = self.start(0)
    connection, lines = self.play(1)
    self.expect(lines, 'go')
    connection.sendall(hub.line('end', 'done'))
    process_0.result(_SECONDS)
    connection.shutdown(socket.SHUT_RDWR)
    self.assert_left('error: lost processes = [1]: ')

  # Processes that fail.

  def test_all_others_end_if_one_fails(self):
    process_0 = self.start(0)
    met = self.start(1).result(_SECONDS)
    process_0.result(_SECONDS)
    met.take_last_word(0)
    met.fail()
    self.assert_left(
      'error: failed processes = [1]: must be none of 2; the output of that '
    )

  def test_process_0_fails_after_the_others_have_ended(self):
    process_0 = self.start(0)
    connection, lines = self.play(1)
    self.expect(lines, 'go')
    with mock.patch.object(peers, '_GRACE', _SECONDS):
      ended = self.pool.submit(process_0.result(_SECONDS).fail)
      self.expect(lines, 'failed', [0])
      self.assertFalse(ended.done())
      connection.shutdown(socket.SHUT_RDWR)
      ended.result(_SECONDS)

  def test_an_error_of_its_own_is_told_instead(self):
    process_0 = self.start(0)
    connection, lines = self.play(1)
    self.expect(lines, 'go')
    met = process_0.result(_SECONDS)
    with mock.patch.object(peers, '_GRACE', _SECONDS):
      connection.sendall(hub.line('end', 'failed'))
      self.assertTrue(met._news.wait(_SECONDS))
      met.take_last_word(0)
    self.assertEmpty(self.last_words)

  def test_who_is_lost_is_told_instead_of_an_error_that_it_caused(self):
    process_0 = self.start(0)
    connection, lines = self.play(1)
    self.expect(lines, 'go')
    met = process_0.result(_SECONDS)
    connection.shutdown(socket.SHUT_RDWR)
    waits = threading.Thread(
      target=met.take_last_word, args=(_SECONDS,), daemon=True
    )
    waits.start()
    self.assert_left('error: lost processes = [1]: ')
    self.assertTrue(waits.is_alive())


class LeaveTest(absltest.TestCase):
  def test_the_process_ends_with_a_line_if_the_time_is_up(self):
    is_over = threading.Event()
    with mock.patch.object(peers, 'leave') as leave:
      leave.side_effect = lambda _: is_over.set()
      with peers.limited(0.01, 'a line'):
        self.assertTrue(is_over.wait(_SECONDS))
      with peers.limited(_SECONDS, 'no line'):
        pass
    leave.assert_called_once_with('a line')
