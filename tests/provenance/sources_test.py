"""Tests of the hashes of source code."""

import hashlib
import importlib
import pathlib
import sys
import types

import numpy as np
from absl.testing import absltest

from replay_rl.provenance import sources
from replay_rl.rl import losses
from tests import user_functions

PACKAGE = pathlib.Path(sources.__file__).parents[1]


class OfPackageTest(absltest.TestCase):
  def test_the_hashes_are_of_the_files(self):
    hashes = sources.of_package()
    for name, digest in hashes.items():
      content = (PACKAGE / name).read_bytes()
      self.assertEqual(digest, hashlib.sha256(content).hexdigest())

  def test_only_parts_that_no_run_uses_are_left_out(self):
    names = {path.relative_to(PACKAGE) for path in PACKAGE.rglob('*.py')}
    left_out = {x.as_posix() for x in names} - sources.of_package().keys()
    of_replay = {name for name in left_out if name.startswith('replay/')}
    self.assertEqual(
      {name.removeprefix('replay/') for name in of_replay},
      {'gradient_noise.py', 'noise.py', 'noise_growth.py', 'planner.py'},
    )
    self.assertEqual(
      {name.partition('/')[0] for name in left_out - of_replay},
      {
        *('evaluate', 'fit', 'report', 'plan', 'sweep'),
        *('compile_check.py', '__main__.py', 'inspect.py', 'export.py'),
      },
    )


class OfUsersTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    folder = pathlib.Path(self.create_tempdir().full_path)
    self.helper = folder / 'helper_of_a_user.py'
    self.helper.write_text('def factor():\n  return 2\n')
    (folder / 'rule_of_a_user.py').write_text(
      'import numpy\n'
      'from helper_of_a_user import factor\n'
      'from replay_rl.rl import losses\n'
      'def rule(state, step):\n'
      '  return factor()\n'
    )
    sys.path.insert(0, str(folder))
    self.addCleanup(sys.path.remove, str(folder))
    for name in ('rule_of_a_user', 'helper_of_a_user'):
      self.addCleanup(sys.modules.pop, name, None)
    self.rule = importlib.import_module('rule_of_a_user').rule

  def test_has_the_modules_that_a_module_imports_but_no_packages(self):
    before = sources.of_users([self.rule])
    self.assertCountEqual(before, ['rule_of_a_user', 'helper_of_a_user'])
    self.helper.write_text('def factor():\n  return 3\n')
    after = sources.of_users([self.rule])
    self.assertNotEqual(
      before.pop('helper_of_a_user'), after['helper_of_a_user']
    )
    self.assertEqual(before['rule_of_a_user'], after['rule_of_a_user'])

  def test_functions_of_this_package_and_of_no_file_have_none(self):
    module = types.ModuleType('of_a_notebook')
    exec('def rule(state, step): return 1', module.__dict__)
    self.assertEqual(sources.of_users([losses.reinforce, module.rule]), {})

  def test_imported_follows_modules_and_functions(self):
    names = [x.__name__ for x in sources.imported([user_functions])]
    self.assertIn('tests.user_functions', names)
    self.assertIn('replay_rl.constants', names)
    self.assertNotIn('jax', names)
    self.assertEqual(names, sorted(names))
    self.assertEqual(sources.imported([np, None]), [])
