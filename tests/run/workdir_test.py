"""Tests of the folder of a run."""

import json
import pathlib

from absl.testing import absltest

from replay_rl import choices
from replay_rl.run import workdir
from tests import user_functions


class WorkdirTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.create_tempdir().full_path) / 'run'

  def test_writes_the_config_with_versions_commit_and_hardware(self):
    with workdir.locked(self.folder):
      self.assertEqual(workdir.claim(self.folder, {'a': {'b': (1, 2)}}, {}), [])
    record = json.loads((self.folder / 'config.json').read_text())
    self.assertEqual(record['config'], {'a': {'b': [1, 2]}})
    self.assertIn('jax', record['versions'])
    self.assertTrue(record['commit'])
    self.assertIn('CPU cores', record['hardware'])

  def test_the_same_config_may_come_again(self):
    with workdir.locked(self.folder):
      workdir.claim(self.folder, {'a': {'b': (1, 2)}}, {})
      self.assertEqual(workdir.claim(self.folder, {'a': {'b': (1, 2)}}, {}), [])

  def test_another_config_is_refused_and_the_fields_are_named(self):
    with workdir.locked(self.folder):
      workdir.claim(self.folder, {'a': {'b': 1, 'c': 2}, 'd': 3}, {})
      with self.assertRaisesRegex(
        ValueError,
        r'^workdir = .*: must be another folder, or have the config of the '
        r'run that it holds; a\.b = 5 \(there: 1\); d = None \(there: 3\)$',
      ):
        workdir.claim(self.folder, {'a': {'b': 5, 'c': 2}}, {})

  def test_another_function_is_refused_and_its_field_is_named(self):
    def record(source):
      return choices.choose(
        'replay.weights',
        user_functions.made(source),
        choices.Kind({}, ('state', 'step')),
      ).record

    functions = {'replay.weights': record(2.0), 'replay.keep': record(2.0)}
    with workdir.locked(self.folder):
      workdir.claim(self.folder, {'a': 1}, functions)
      self.assertEqual(workdir.claim(self.folder, {'a': 1}, functions), [])
      written = json.loads((self.folder / 'config.json').read_text())
      self.assertEqual(written['functions'], functions)
      # The text is the same: the hash is of what the closure holds, too.
      changed = functions | {'replay.weights': record(3.0)}
      for other in (changed, {'replay.keep': functions['replay.keep']}):
        with self.assertRaisesRegex(
          ValueError,
          '^workdir = .*: must be another folder, or have the functions of the '
          r"run that it holds; replay.weights = .* \(there: {'text'",
        ):
          workdir.claim(self.folder, {'a': 1}, other)
      # The config is looked at first.
      with self.assertRaisesRegex(ValueError, 'have the config of the run'):
        workdir.claim(self.folder, {'a': 2}, changed)

  def test_another_mesh_is_told_and_nothing_else_may_change_with_it(self):
    config = {'mesh': {'shape': {'data': 4}}, 'mesh_size': 4}
    with workdir.locked(self.folder):
      workdir.claim(self.folder, config, {})
      before = (self.folder / 'config.json').read_bytes()
      (note,) = workdir.claim(
        self.folder, config | {'mesh': {'shape': {'data': 1}}}, {}
      )
      self.assertEqual(note, 'mesh.shape.data is 1 now, was 4')
      self.assertEqual((self.folder / 'config.json').read_bytes(), before)
      with self.assertRaisesRegex(ValueError, r'holds; mesh_size = 1 \('):
        workdir.claim(
          self.folder, {'mesh': {'shape': {'data': 1}}, 'mesh_size': 1}, {}
        )

  def test_another_version_is_told(self):
    with workdir.locked(self.folder):
      workdir.claim(self.folder, {}, {})
      path = self.folder / 'config.json'
      record = json.loads(path.read_text())
      record['versions']['jax'] = '0.0.1'
      path.write_text(json.dumps(record))
      (note,) = workdir.claim(self.folder, {}, {})
    self.assertRegex(note, r'jax is .* now, was 0\.0\.1')

  def test_one_process_at_a_time(self):
    with workdir.locked(self.folder):
      with self.assertRaisesRegex(ValueError, 'must not be in use'):
        with workdir.locked(self.folder):
          pass
    with workdir.locked(self.folder):
      pass

  def test_a_folder_that_cannot_be_written_is_named(self):
    file = self.create_tempfile('file').full_path
    with self.assertRaisesRegex(ValueError, f"workdir = '{file}/run'"):
      with workdir.locked(pathlib.Path(file) / 'run'):
        pass
