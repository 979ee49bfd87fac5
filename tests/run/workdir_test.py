"""Tests of the folder of a run."""

import json
import pathlib

from absl.testing import parameterized

from replay_rl import choices
from replay_rl.run import workdir
from tests import user_functions


class WorkdirTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.create_tempdir().full_path) / 'run'

  def _claim(self, config, functions=None, allow_code_change=False, **parts):
    """Claims the folder for a run, with some parts of its record replaced."""
    made_of = workdir.record(
      config, functions=functions or {}, modules={}, data={}, is_in_text=False
    )
    with workdir.locked(self.folder):
      return workdir.claim(
        self.folder,
        made_of | parts,
        allow_code_change=allow_code_change,
      )

  def _record(self):
    return json.loads((self.folder / 'config.json').read_text())

  def test_writes_what_the_run_is_made_of(self):
    self.assertEqual(self._claim({'a': {'b': (1, 2)}}), [])
    record = self._record()
    self.assertEqual(record['config'], {'a': {'b': [1, 2]}})
    self.assertIn('jax', record['versions'])
    self.assertIn('rl/losses.py', record['sources'])
    self.assertIn('XLA_FLAGS', record['environment'])
    self.assertTrue(record['commit'])
    self.assertIn('CPU cores', record['hardware'])
    self.assertEqual(record['changes'], [])

  def test_the_same_run_may_come_again(self):
    self._claim({'a': {'b': (1, 2)}})
    before = self._record()
    self.assertEqual(self._claim({'a': {'b': (1, 2)}}), [])
    self.assertEqual(self._record(), before)

  def test_another_config_is_refused_and_the_fields_are_named(self):
    self._claim({'a': {'b': 1, 'c': 2}, 'd': 3})
    with self.assertRaisesRegex(
      ValueError,
      r'^workdir = .*: must be another folder, or have the config of the '
      r'run that it holds; a\.b = 5 \(there: 1\); d = None \(there: 3\)$',
    ):
      self._claim({'a': {'b': 5, 'c': 2}})

  def test_another_function_is_refused_and_its_field_is_named(self):
    def record(source):
      return choices.choose(
        'replay.weights',
        user_functions.made(source),
        choices.Kind({}, ('state', 'step')),
      ).record

    functions = {'replay.weights': record(2.0), 'replay.keep': record(2.0)}
    self._claim({'a': 1}, functions)
    self.assertEqual(self._claim({'a': 1}, functions), [])
    self.assertEqual(self._record()['functions'], functions)
    # The text is the same: the hash is of what the closure holds, too.
    changed = functions | {'replay.weights': record(3.0)}
    for other in (changed, {'replay.keep': functions['replay.keep']}):
      with self.assertRaisesRegex(
        ValueError,
        '^workdir = .*: must be another folder, or have the functions of the '
        r"run that it holds; replay.weights = .* \(there: {'text'.*"
        '--allow_code_change goes on',
      ):
        self._claim({'a': 1}, other)
    # The config is looked at first.
    with self.assertRaisesRegex(ValueError, 'have the config of the run'):
      self._claim({'a': 2}, changed)

  def test_another_mesh_is_told_and_recorded(self):
    config = {'mesh': {'shape': {'data': 4}}, 'mesh_size': 4}
    self._claim(config)
    (note,) = self._claim(config | {'mesh': {'shape': {'data': 1}}})
    self.assertEqual(note, 'mesh.shape.data is 1 now, was 4')
    record = self._record()
    self.assertEqual(record['config']['mesh'], {'shape': {'data': 1}})
    self.assertEqual(
      record['changes'],
      [{'newest_checkpoint': 0, 'config': {'mesh.shape.data': [4, 1]}}],
    )
    with self.assertRaisesRegex(ValueError, r'holds; mesh_size = 1 \('):
      self._claim({'mesh': {'shape': {'data': 1}}, 'mesh_size': 1})

  @parameterized.parameters(
    ('num_iterations', 10, 20, True, True),
    ('num_iterations', 20, 10, False),
    (
      'checkpoint',
      {'every': 2, 'keep': 1},
      {'every': 3, 'keep': 2},
      True,
      True,
    ),
    ('checkpoint', {'every': 2, 'keep': 2}, {'every': 2, 'keep': 1}, False),
    ('text', {'max_answer_chars': 5}, {'max_answer_chars': 9}, True),
    ('text', {'max_answer_chars': 9}, {'max_answer_chars': 5}, False),
    ('text', {'max_prompt_tokens': 5}, {'max_prompt_tokens': 9}, False),
    ('cache_dir', 'a', 'b', True, True),
    ('stop', 'a', None, True, True),
  )
  def test_limits_may_rise_and_nothing_else(
    self, field, was, now, may, is_exact=False
  ):
    self._claim({field: was})
    for step in ('3', '7'):
      (self.folder / 'checkpoints' / step).mkdir(parents=True)
    if not may:
      with self.assertRaisesRegex(ValueError, f'the config of .*{field}'):
        self._claim({field: now})
      return
    notes = self._claim({field: now})
    self.assertLen(notes, 0 if is_exact else 1)
    self.assertEqual(self._record()['config'], {field: now})
    self.assertEqual(self._record()['changes'][0]['newest_checkpoint'], 7)

  @parameterized.parameters('sources', 'versions', 'functions')
  def test_other_code_is_refused_unless_allowed_and_recorded(self, part):
    self._claim({}, **{part: {'rl/losses.py': 'a'}})
    message = (
      f"have the {part} of the run that it holds; rl/losses.py = 'b' "
      r"\(there: 'a'\); --allow_code_change"
    )
    before = self._record()
    with self.assertRaisesRegex(ValueError, message):
      self._claim({}, **{part: {'rl/losses.py': 'b'}})
    self.assertEqual(self._record(), before)
    (note,) = self._claim(
      {}, allow_code_change=True, **{part: {'rl/losses.py': 'b'}}
    )
    self.assertEqual(note, "rl/losses.py is 'b' now, was 'a'")
    record = self._record()
    self.assertEqual(record[part], {'rl/losses.py': 'b'})
    self.assertEqual(
      record['changes'],
      [{'newest_checkpoint': 0, part: {'rl/losses.py': ['a', 'b']}}],
    )
    self.assertEqual(self._claim({}, **{part: {'rl/losses.py': 'b'}}), [])
    self.assertEqual(self._record(), record)
    self._claim({}, allow_code_change=True, **{part: {'rl/losses.py': 'c'}})
    self.assertEqual(self._record()['changes'][0], record['changes'][0])
    self.assertLen(self._record()['changes'], 2)

  def test_other_data_is_refused_also_with_allowed_code(self):
    self._claim({}, data={'problems': 'a'})
    with self.assertRaisesRegex(ValueError, "problems = 'b' \\(there: 'a'\\)"):
      self._claim({}, allow_code_change=True, data={'problems': 'b'})

  @parameterized.parameters(
    ('environment', {'XLA_FLAGS': None}, {'XLA_FLAGS': '--x'}),
    ('hardware', '1 x a', '1 x b'),
  )
  def test_another_machine_is_told(self, part, was, now):
    self._claim({}, **{part: was})
    (note,) = self._claim({}, **{part: now})
    self.assertRegex(note, ' is .* now, was ')

  def test_many_changes_are_counted(self):
    self._claim({}, sources={str(i): 'a' for i in range(9)})
    with self.assertRaisesRegex(ValueError, '; and 4 more; --allow_code'):
      self._claim({}, sources={str(i): 'b' for i in range(9)})

  @parameterized.parameters(
    '', '{', '{}', '[]', '{"config": {}}', '[' * 100_000, '{"config": 3}'
  )
  def test_a_damaged_record_is_one_line(self, content):
    self._claim({})
    (self.folder / 'config.json').write_text(content)
    with self.assertRaisesRegex(
      ValueError, 'config.json.*restore it, or train in another folder$'
    ):
      self._claim({})
    self.assertEqual((self.folder / 'config.json').read_text(), content)

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
