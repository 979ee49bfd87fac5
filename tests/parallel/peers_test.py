"""Tests of how processes meet, and why they do not."""

import contextlib
import re
import socket
import threading
from concurrent import futures
from unittest import mock

from absl.testing import parameterized

from replay_rl.parallel import hub
from replay_rl.parallel import peers
from tests.parallel import played


class MeetTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.played = played.Played(self)

  # Processes that meet.

  def test_all_meet_and_end_without_a_word(self):
    started = [self.played.start(process_id, 3) for process_id in (2, 0, 1)]
    met = [one.result(played.SECONDS) for one in started]
    ended = [self.played.pool.submit(one.finish) for one in met]
    for one in ended:
      one.result(played.SECONDS)
    self.assertEmpty(self.played.last_words)

  def test_none_ends_before_all_are_done(self):
    process_0 = self.played.start(0)
    connection, lines = self.played.play(1)
    self.played.expect(lines, 'go')
    ended = self.played.pool.submit(process_0.result(played.SECONDS).finish)
    connection.sendall(hub.line('beat'))
    self.assertFalse(ended.done())
    connection.sendall(hub.line('end', 'done'))
    self.played.expect(lines, 'all done')
    ended.result(played.SECONDS)

  def test_process_1_does_not_end_before_process_0_says_so(self):
    process_1 = self.played.start(1)
    connection, lines = self.played.play_hub()
    connection.sendall(hub.line('go'))
    ended = self.played.pool.submit(process_1.result(played.SECONDS).finish)
    self.played.expect(lines, 'end', 'done')
    with self.assertRaises(futures.TimeoutError):
      ended.result(0.2)
    connection.sendall(hub.line('all done'))
    ended.result(played.SECONDS)

  def test_the_service_of_jax_is_there_before_others_go(self):
    process_0 = self.played.start(0, has_service=False)
    process_1 = self.played.start(1)
    process_0.result(played.SECONDS)
    with self.assertRaises(futures.TimeoutError):
      process_1.result(0.2)
    with socket.create_server(('', self.played.port)):
      process_1.result(played.SECONDS)

  def test_a_process_that_ends_while_it_waits_may_come_again(self):
    process_0 = self.played.start(0, 3)
    connection, lines = self.played.play(1, 3, seconds=0.3)
    connection.shutdown(socket.SHUT_WR)
    self.assertEqual(lines.read(), b'')
    again = self.played.start(1, 3)
    # Its patience ends with it.
    with self.assertRaises(futures.TimeoutError):
      again.result(0.5)
    for one in (self.played.start(2, 3), again, process_0):
      self.assertIsNotNone(one.result(played.SECONDS))

  def test_strangers_are_not_heard(self):
    self.enter_context(self.assertNoLogs('asyncio'))
    process_0 = self.played.start(0)
    for words in (
      b'GET / HTTP/1.1\r\n\r\n',
      b'[' * 60_000 + b'\n',
      b'x' * 2**17,
      b'["meet", ["a", 2, 1, ""]]\n',
      b'["meet", [null, 2, 1, ""]]\n',
      b'["meet", [1, 2]]\n',
      b'["meet", 1]\n',
      b'["beat", null]\n',
      b'',
    ):
      connection, _ = self.played.play()
      with contextlib.suppress(ConnectionError):
        connection.sendall(words)
    process_1 = self.played.start(1)
    self.assertIsNotNone(process_0.result(played.SECONDS))
    self.assertIsNotNone(process_1.result(played.SECONDS))

  # Processes that do not meet.

  @parameterized.parameters(([0, 1, 1], 1), ([0, 2, 2], 2), ([0, 0], 0))
  def test_two_of_one_id_end_all(self, process_ids, wrong):
    self.played.assert_refused(
      rf'^--process_id = {wrong}: must be given to one process only; two came '
      rf'with it to {self.played.address}$',
      *[self.played.start(process_id, 3) for process_id in process_ids],
    )

  def test_another_number_of_processes_ends_all(self):
    self.played.assert_refused(
      '^--num_processes = 3: must be the same for all processes; process 0 has '
      '2$',
      self.played.start(1, 3),
      self.played.start(0, 2),
    )

  @parameterized.parameters((1, 3, '--num_processes = 3'), (0, 2, '--process_'))
  def test_process_0_is_told_also_if_it_is_the_last(
    self, process_id, num_processes, message
  ):
    joined = peers._joined
    is_refused = threading.Event()

    def join_late(*arguments):
      is_refused.wait(played.SECONDS)
      return joined(*arguments)

    with mock.patch.object(peers, '_joined', join_late):
      process_0 = self.played.start(0)
      _, lines = self.played.play(process_id, num_processes)
      kind, refusal = hub.message(lines.readline())
      is_refused.set()
      self.assertEqual(kind, 'refused')
      self.assertStartsWith(refusal, message)
      self.played.assert_refused(re.escape(refusal), process_0)

  def test_missing_processes_are_named(self):
    self.played.assert_refused(
      '^--num_processes = 12: must be how many processes start; in 0.5 s 10 '
      f'did not come to {self.played.address}, with the process ids 1, 2, 4, '
      r'5, 6, 7, 8, 9, \.\.\.$',
      self.played.start(0, 12, 0.5),
      self.played.start(3, 12),
    )

  def test_the_least_patient_process_decides(self):
    self.played.assert_refused(
      '^--num_processes = 3: .* 1 did not come to .* ids 2$',
      self.played.start(0, 3),
      self.played.start(1, 3, 0.5),
    )

  @parameterized.parameters(
    ('127.0.0.1', 1, 'Connection refused'),
    ('no-such-host.invalid', 1, 'Name or service not known|Temporary failure'),
    ('no-such-host.invalid', 0, 'Name or service not known|Temporary failure'),
  )
  def test_nobody_at_the_address(self, host, process_id, reason):
    address = self.played.address = f'{host}:{self.played.port}'
    self.played.assert_refused(
      f"^--coordinator_address = '{address}': must be where process 0 waits "
      rf'for the others; in 0.3 s it was not there \(.*({reason})\)$',
      self.played.start(process_id, seconds=0.3),
    )

  def test_a_port_in_use_is_told(self):
    other = self.enter_context(socket.create_server(('', self.played.port)))
    with mock.patch.object(peers, '_SLACK', 0.1):
      self.played.assert_refused(
        f"^--coordinator_address = '{self.played.address}': must have a port "
        r'that is free on the host of process 0 \(.*already in use.*\)$',
        self.played.start(0),
      )
      # Who listens there says nothing.
      self.played.assert_refused(
        r'process 0 waits for the others; .* \(timed out\)$',
        self.played.start(1, seconds=0.2),
      )
    other.close()

  def test_who_came_is_told_why_process_0_ends(self):
    self.played.address = f'no-such-host.invalid:{self.played.port}'
    process_0 = self.played.start(0, seconds=0.5)
    self.played.address = f'127.0.0.1:{self.played.port}'
    started = self.played.start(1)
    self.played.assert_refused(
      "^--coordinator_address = 'no-such-host.inv", process_0, started
    )

  def test_who_comes_too_late_is_told_and_disturbs_nobody(self):
    met = [
      one.result(played.SECONDS)
      for one in (self.played.start(0), self.played.start(1))
    ]
    # What gRPC sends first. The played service of `meet` says nothing.
    service = self.enter_context(socket.create_server(('127.0.0.1', 0)))
    service.settimeout(played.SECONDS)
    self.played.address = f'127.0.0.1:{service.getsockname()[1]}'
    late = self.played.start(1, seconds=0.2)
    with service.accept()[0] as connection:
      connection.sendall(b'\0\0\6\4\0\0\0\0\0\0\5\0\0\n')
    service.close()
    self.played.assert_refused(
      '^--coordinator_address = .* in 0.2 s it was not', late
    )
    for one in [self.played.pool.submit(one.finish) for one in met]:
      one.result(played.SECONDS)
    self.assertEmpty(self.played.last_words)
