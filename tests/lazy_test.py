"""Tests of `import replay_rl`, which imports what is used."""

import subprocess
import sys

from absl.testing import absltest

import replay_rl
import replay_rl.lm.hf

_PROGRAM = """
import sys
import replay_rl
assert 'jax' not in sys.modules
assert replay_rl.report.words.percent
assert 'jax' not in sys.modules
assert replay_rl.replay.buffer.init
assert replay_rl.configs.quickstart.get_config().name == 'reuse 2'
"""


class LazyTest(absltest.TestCase):
  def test_modules_are_imported_where_they_are_used(self):
    subprocess.run([sys.executable, '-c', _PROGRAM], check=True)

  def test_dir_has_the_modules(self):
    self.assertContainsSubset(
      {'replay', 'train', '__version__'}, dir(replay_rl)
    )
    self.assertIn('layout', dir(replay_rl.lm.hf))

  def test_a_module_that_is_not_there_is_named(self):
    with self.assertRaisesWithLiteralMatch(
      AttributeError, "module 'replay_rl.lm' has no attribute 'nosuch'"
    ):
      replay_rl.lm.nosuch  # noqa: B018


if __name__ == '__main__':
  absltest.main()
