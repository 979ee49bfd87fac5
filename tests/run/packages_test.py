"""Tests of the packages that a config needs."""

import contextlib
import io
import pathlib
import subprocess
import sys
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized

from replay_rl import installed
from replay_rl import train
from replay_rl.evaluate import __main__ as evaluate
from replay_rl.run import packages
from replay_rl.sweep import planning
from tests import configs_test
from tests import tiny


def _without(*modules):
  """Hides modules, as if their packages were not installed."""
  return mock.patch.dict(sys.modules, dict.fromkeys(modules))


class PackagesTest(parameterized.TestCase):
  def test_the_first_field_that_lacks_packages_is_named_with_the_command(self):
    config = configs_test.experiment('gsm8k_qwen3_0_6b').get_config()
    for modules, message in (
      (
        ['tensorboardX', 'grain'],
        "logging.writers = 'tensorboard()': must have the packages "
        'tensorboardX; '
        'pip install tensorboardX',
      ),
      (
        ['grain', 'math_verify', 'safetensors'],
        "task = 'problems()': must have the packages grain, math-verify; "
        "pip install -e '.[math]'",
      ),
      (
        ['safetensors'],
        "model.checkpoint = 'checkpoints/Qwen3-0.6B-Base': must have the "
        "packages safetensors; pip install -e '.[math]'",
      ),
    ):
      with (
        _without(*modules),
        self.assertRaisesWithLiteralMatch(ValueError, message),
      ):
        packages.check(config)

  def test_what_a_config_does_not_use_may_be_missing(self):
    everything = [name for need in packages.NEEDS for name in need.modules]
    with _without(*everything):
      packages.check(tiny.config())

  def test_a_module_of_a_package_that_is_missing_is_missing(self):
    with self.assertRaisesWithLiteralMatch(
      ValueError, "field = 'x': must have the packages absent; command"
    ):
      installed.check(
        'field',
        'x',
        {'absent_package.module': 'absent', 'jax': 'jax'},
        'command',
      )

  def test_a_wrong_field_is_told_before_a_missing_package(self):
    config = tiny.config(logging__writers='yes')
    with (
      _without('tensorboardX'),
      self.assertRaisesRegex(ValueError, "^logging.writers = 'yes': "),
    ):
      packages.check(config)

  def test_evaluate_names_the_extra_that_it_lacks(self):
    message = (
      "error: program = 'evaluate': must have the packages grain, math-verify, "
      "safetensors; pip install -e '.[math]'\n"
    )
    with (
      _without('grain', 'math_verify', 'safetensors'),
      contextlib.redirect_stderr(io.StringIO()) as errors,
    ):
      self.assertEqual(evaluate.main(['--model=x']), 2)
    self.assertEqual(errors.getvalue(), message)

  def test_evaluate_is_imported_without_them(self):
    code = (
      'import sys; sys.modules.update(dict.fromkeys('
      "['grain', 'jinja2', 'tokenizers', 'math_verify', 'safetensors'])); "
      'from replay_rl.evaluate import __main__; sys.exit(__main__.main([]))'
    )
    done = subprocess.run(
      [sys.executable, '-c', code],
      cwd=configs_test.ROOT,
      capture_output=True,
      text=True,
    )
    self.assertEqual(done.returncode, 2, done.stderr)
    self.assertStartsWith(done.stderr, "error: program = 'evaluate': must have")
    self.assertLen(done.stderr.splitlines(), 1)

  @parameterized.parameters('train', 'sweep')
  def test_nothing_is_built_or_written_without_them(self, program):
    folder = pathlib.Path(self.create_tempdir().full_path) / 'run'
    config = tiny.config(logging__writers='tensorboard()')
    with (
      _without('tensorboardX'),
      mock.patch('replay_rl.run.build.task', side_effect=AssertionError),
      self.assertRaisesRegex(ValueError, 'pip install tensorboardX'),
    ):
      if program == 'train':
        train.train(config, folder)
      else:
        planning.built(config).__enter__()
    self.assertFalse(folder.exists())


if __name__ == '__main__':
  absltest.main()
