"""Tests of how processes miss each other, and end."""

import re
import socket
import subprocess
import sys
import threading
from concurrent import futures
from unittest import mock

from absl.testing import absltest

from replay_rl.parallel import hub
from replay_rl.parallel import peers
from tests.parallel import played


class LostTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.played = played.Played(self)

  # Processes that are lost.

  def test_all_others_end_if_one_dies(self):
    started = [self.played.start(0, 3), self.played.start(1, 3)]
    connection, lines = self.played.play(2, 3)
    self.played.expect(lines, 'go')
    for one in started:
      one.result(played.SECONDS)
    connection.shutdown(socket.SHUT_RDWR)
    self.played.assert_left(
      *['error: lost processes = [2]: must be none of 3; '] * 2
    )

  def test_all_others_end_if_process_0_dies(self):
    started = self.played.start(1)
    connection, lines = self.played.play_hub()
    connection.sendall(hub.line('go') + hub.line('beat'))
    started.result(played.SECONDS)
    connection.shutdown(socket.SHUT_RDWR)
    self.played.assert_left('error: lost processes = [0]: must be none of 2; ')

  def test_one_that_does_not_answer_is_lost(self):
    process_0 = self.played.start(0, heartbeat_timeout=1)
    connection, lines = self.played.play(1)
    self.played.expect(lines, 'go')
    process_0.result(played.SECONDS)
    for _ in range(10):  # Longer than the timeout.
      self.assertEqual(hub.message(lines.readline()), ('beat', None))
      connection.sendall(hub.line('beat'))
    self.assertEmpty(self.played.last_words)
    self.played.assert_left('error: lost processes = [1]: must be none of 2; ')

  def test_process_0_is_lost_if_it_does_not_beat(self):
    with mock.patch.object(peers, '_SLACK', 0):
      started = self.played.start(1, seconds=1, heartbeat_timeout=0.2)
      connection, lines = self.played.play_hub()
      connection.sendall(hub.line('go'))
      started.result(played.SECONDS)
    # Before the first beat there is no limit: JAX connects.
    self.assertFalse(self.played.has_left.acquire(timeout=1.2))
    connection.sendall(hub.line('beat'))
    self.assertEqual(hub.message(lines.readline()), ('beat', None))
    self.played.assert_left('error: lost processes = [0]: must be none of 2; ')

  def test_one_that_dies_before_it_goes_ends_the_start(self):
    process_0 = self.played.start(0, 3, has_service=False)
    process_1 = self.played.start(1, 3)
    connection, _ = self.played.play(2, 3)
    process_0.result(played.SECONDS)
    connection.shutdown(socket.SHUT_RDWR)
    loss = 'lost processes = [2]: must be none of 3'
    self.played.assert_refused(f'^{re.escape(loss)}', process_1)
    self.played.assert_left(f'error: {loss}')
    # The thread of process 0 still waits for the service.
    self.enter_context(socket.create_server(('', self.played.port)))

  def test_one_that_is_done_must_not_die_before_the_others_are(self):
    process_0 = self.played.start(0)
    connection, lines = self.played.play(1)
    self.played.expect(lines, 'go')
    connection.sendall(hub.line('end', 'done'))
    process_0.result(played.SECONDS)
    connection.shutdown(socket.SHUT_RDWR)
    self.played.assert_left('error: lost processes = [1]: ')

  # Processes that fail.

  def test_all_others_end_if_one_fails(self):
    process_0 = self.played.start(0)
    met = self.played.start(1).result(played.SECONDS)
    process_0.result(played.SECONDS)
    met.take_last_word(0)
    met.fail()
    self.played.assert_left(
      'error: failed processes = [1]: must be none of 2; the output of that '
    )

  def test_process_0_fails_after_the_others_have_ended(self):
    process_0 = self.played.start(0)
    connection, lines = self.played.play(1)
    self.played.expect(lines, 'go')
    with mock.patch.object(peers, '_GRACE', played.SECONDS):
      ended = self.played.pool.submit(process_0.result(played.SECONDS).fail)
      self.played.expect(lines, 'failed', [0])
      with self.assertRaises(futures.TimeoutError):
        ended.result(0.3)
      connection.shutdown(socket.SHUT_RDWR)
      ended.result(played.SECONDS)

  def test_each_end_is_told_once(self):
    process_0 = self.played.start(0, 3)
    one, lines = self.played.play(1, 3)
    other, _ = self.played.play(2, 3)
    process_0.result(played.SECONDS)
    self.played.expect(lines, 'go')
    other.sendall(hub.line('end', 'failed'))
    self.played.expect(lines, 'failed', [2])
    other.shutdown(socket.SHUT_RDWR)
    one.shutdown(socket.SHUT_WR)
    self.assertNotIn(b'lost', lines.read())

  def test_process_0_is_told_last(self):
    # Its end is that of the thread that tells the others.
    told = []
    members = {i: mock.Mock() for i in (0, 2, 1)}
    for i, writer in members.items():
      writer.write.side_effect = lambda _, i=i: told.append(i)
    hub.Hub._tell(mock.Mock(_members=members, _gone={2}), 'lost', [2])
    self.assertEqual(told, [1, 0])

  def test_an_error_of_its_own_is_told_instead(self):
    process_0 = self.played.start(0)
    connection, lines = self.played.play(1)
    self.played.expect(lines, 'go')
    met = process_0.result(played.SECONDS)
    with mock.patch.object(peers, '_GRACE', 1):
      connection.sendall(hub.line('end', 'failed'))
      self.assertTrue(met._news.wait(played.SECONDS))
      met.take_last_word(0)
    self.assertEmpty(self.played.last_words)

  def test_who_is_lost_is_told_instead_of_an_error_that_it_caused(self):
    process_0 = self.played.start(0)
    connection, lines = self.played.play(1)
    self.played.expect(lines, 'go')
    met = process_0.result(played.SECONDS)
    connection.shutdown(socket.SHUT_RDWR)
    waits = threading.Thread(
      target=met.take_last_word, args=(played.SECONDS,), daemon=True
    )
    waits.start()
    self.played.assert_left('error: lost processes = [1]: ')
    self.assertTrue(waits.is_alive())


class LeaveTest(absltest.TestCase):
  def test_the_last_words_are_a_line_even_after_a_line_without_an_end(self):
    program = (
      'import sys\n'
      'from replay_rl.parallel import peers\n'
      'sys.stdout.write("3/4 reward")\n'
      'peers.leave("error: a process is lost")\n'
    )
    ended = subprocess.run(
      [sys.executable, '-c', program],
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )
    self.assertEqual(ended.returncode, 1)
    self.assertEqual(ended.stdout, '3/4 reward\nerror: a process is lost\n')

  def test_the_process_ends_with_a_line_if_the_time_is_up(self):
    is_over = threading.Event()
    with mock.patch.object(peers, 'leave') as leave:
      leave.side_effect = lambda _: is_over.set()
      with peers.limited(0.01, 'a line'):
        self.assertTrue(is_over.wait(played.SECONDS))
      is_over.clear()
      with peers.limited(0.1, 'no line'):
        pass
      self.assertFalse(is_over.wait(0.3))
    leave.assert_called_once_with('a line')
