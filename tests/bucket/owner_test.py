"""Tests of whether the owner of a run is gone."""

import json
import subprocess
import sys
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized

from replay_rl.bucket import owner

_TELL = (
  'import json, sys; from replay_rl.bucket import owner; '
  'print(json.dumps(owner.identity()), flush=True); sys.stdin.read()'
)


class OwnerTest(parameterized.TestCase):
  def test_a_process_is_gone_when_it_is_killed(self):
    with subprocess.Popen(
      [sys.executable, '-c', _TELL],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
    ) as process:
      assert process.stdout is not None
      identity = json.loads(process.stdout.readline())
      self.assertEqual(identity['process'], process.pid)
      self.assertFalse(owner.is_gone(identity))
      process.kill()
      # This process, its parent, has not read its status yet.
      while not owner.is_gone(identity):
        self.assertIsNone(process.returncode)
      process.wait()
      self.assertTrue(owner.is_gone(identity))

  def test_this_process_is_not_gone(self):
    identity = owner.identity()
    self.assertEqual(identity, owner.identity())
    self.assertEqual(json.loads(json.dumps(identity)), identity)
    self.assertFalse(owner.is_gone(identity))
    self.assertIn(f'process {identity["process"]} of ', owner.shown(identity))

  def test_another_process_with_its_number_is_not_it(self):
    identity = owner.identity()
    self.assertTrue(owner.is_gone(identity | {'began': identity['began'] - 1}))

  @parameterized.parameters('host', 'boot', 'namespace', 'process', 'began')
  def test_what_is_not_known_for_certain_is_not_gone(self, name):
    gone = owner.identity() | {'process': 2**22 + 1}  # Above all numbers.
    self.assertTrue(owner.is_gone(gone))
    self.assertFalse(owner.is_gone(gone | {name: None}))
    if name not in ('process', 'began'):
      self.assertFalse(owner.is_gone(gone | {name: 'another'}))
    self.assertFalse(owner.is_gone({}))

  def test_a_process_of_another_user_is_not_gone(self):
    identity = owner.identity()
    with mock.patch.object(owner.os, 'kill', side_effect=PermissionError):
      self.assertFalse(owner.is_gone(identity))


if __name__ == '__main__':
  absltest.main()
