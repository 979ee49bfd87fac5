"""Tests of the relay between this process and a played process 0."""

import socket
from unittest import mock

from absl.testing import absltest

from replay_rl.parallel import relay
from tests import processes


class RelayTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.far = self.enter_context(socket.create_server(('127.0.0.1', 0)))
    self.far.settimeout(10)

  def connect(self):
    """Returns this end of a relayed connection, and the far end."""
    host, _, port = relay.start(*self.far.getsockname()).rpartition(':')
    self.assertEqual(host, '127.0.0.1')
    near = self.enter_context(socket.create_connection((host, int(port)), 10))
    far = self.enter_context(self.far.accept()[0])
    far.settimeout(10)
    return near, far

  def test_bytes_pass_both_ways(self):
    near, far = self.connect()
    for one, other in (near, far), (far, near):
      sent = bytes(range(256)) * 1000
      one.sendall(sent)
      received = b''
      while len(received) < len(sent):
        received += other.recv(2**16)
      self.assertEqual(received, sent)

  def test_the_end_of_process_0_comes_late(self):
    near, far = self.connect()
    far.sendall(b'last')
    far.close()
    self.assertEqual(near.recv(9), b'last')
    near.settimeout(0.3)
    with self.assertRaises(TimeoutError):
      near.recv(9)
    with mock.patch.object(relay, '_DELAY', 0.1):
      near, far = self.connect()
      far.close()
      self.assertEqual(near.recv(9), b'')

  def test_the_end_of_this_process_comes_at_once(self):
    near, far = self.connect()
    near.close()
    self.assertEqual(far.recv(9), b'')

  def test_without_process_0_the_connection_closes(self):
    port = processes.many_processes.free_port()
    host, _, own = relay.start('127.0.0.1', port).rpartition(':')
    with socket.create_connection((host, int(own)), 10) as near:
      self.assertEqual(near.recv(9), b'')
