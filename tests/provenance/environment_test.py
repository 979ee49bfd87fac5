"""Tests of the record of versions and settings."""

import os
from importlib import metadata
from unittest import mock

import jax
from absl.testing import parameterized

from replay_rl.provenance import environment


class EnvironmentTest(parameterized.TestCase):
  def test_versions_are_those_installed_and_none_if_missing(self):
    versions = environment.versions(is_in_text=False)
    self.assertEqual(versions['jax'], jax.__version__)
    self.assertNotIn('math-verify', versions)
    with mock.patch.object(
      metadata, 'version', side_effect=metadata.PackageNotFoundError
    ):
      self.assertIsNone(environment.versions(is_in_text=False)['jax'])

  def test_a_task_in_text_adds_what_decides_prompts_and_verdicts(self):
    versions = environment.versions(is_in_text=True)
    self.assertContainsSubset(
      ['math-verify', 'sympy', 'tokenizers', 'jinja2'], versions
    )

  @parameterized.parameters(*environment.REQUIRED)
  def test_each_required_setting_is_one_of_jax_and_has_its_default(self, name):
    self.assertEqual(
      getattr(jax.config, name), environment.REQUIRED[name], name
    )

  def test_settings_that_change_numbers_are_recorded(self):
    before = environment.numerics()
    with mock.patch.dict(os.environ, {'XLA_FLAGS': '--a=b'}):
      self.assertEqual(environment.numerics(), before | {'XLA_FLAGS': '--a=b'})
    with jax.default_matmul_precision('float32'):
      self.assertEqual(
        environment.numerics(),
        before | {'jax_default_matmul_precision': 'float32'},
      )

  def test_the_hardware_is_named(self):
    self.assertRegex(environment.hardware(), r'^\d+ x cpu, \d+ CPU cores, ')
