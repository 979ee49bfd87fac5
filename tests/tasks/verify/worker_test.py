"""Tests of replay_rl.tasks.verify.worker; see also those of the pool."""

import fcntl
import os
import signal
import subprocess
import sys

import pytest
from absl.testing import parameterized

IS_LINUX = hasattr(fcntl, 'F_SETSIG')
PROGRAM = """
import sys, time
from replay_rl.tasks.verify import worker
worker.watch(int(sys.argv[1]), by_signal=sys.argv[2] == 'True')
print('watching', flush=True)
time.sleep(100)
"""


class WatchTest(parameterized.TestCase):
  def start(self, by_signal, reader):
    process = subprocess.Popen(
      [sys.executable, '-c', PROGRAM, str(reader), str(by_signal)],
      pass_fds=[reader],
      stdout=subprocess.PIPE,
      text=True,
    )
    self.addCleanup(process.stdout.close)
    os.close(reader)
    return process

  @parameterized.parameters(True, False)
  def test_a_process_ends_when_the_pipe_closes(self, by_signal):
    if by_signal and not IS_LINUX:
      pytest.skip('Linux only: the kernel sends a signal')
    reader, writer = os.pipe()
    process = self.start(by_signal, reader)
    self.assertEqual(process.stdout.readline(), 'watching\n')
    self.assertIsNone(process.poll())
    os.close(writer)
    expected = -signal.SIGKILL if by_signal else 1
    self.assertEqual(process.wait(timeout=30), expected)

  @parameterized.parameters(True, False)
  def test_a_pipe_that_has_closed_before_ends_it_too(self, by_signal):
    if by_signal and not IS_LINUX:
      pytest.skip('Linux only: the kernel sends a signal')
    reader, writer = os.pipe()
    os.close(writer)
    process = self.start(by_signal, reader)
    self.assertEqual(process.wait(timeout=30), 1)
