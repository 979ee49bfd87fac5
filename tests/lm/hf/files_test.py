"""Tests for `replay_rl.lm.hf.files`: files from elsewhere, and their hash."""

import json
import pathlib
from unittest import mock

import ml_dtypes
import numpy as np
from absl.testing import parameterized
from safetensors import numpy as safetensors_numpy

from replay_rl.lm.hf import files as hf_files

DEEP = '[' * 100_000


class FilesTestCase(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    parent = pathlib.Path(self.create_tempdir().full_path)
    self.folder = parent / 'model'
    self.folder.mkdir()
    self.index = self.folder / hf_files.INDEX

  def write(self, file, folder=None, **tensors):
    path = (folder or self.folder) / file
    safetensors_numpy.save_file(tensors or {'a': np.ones(300)}, path)
    return path

  def write_index(self, **files):
    self.index.write_text(json.dumps({'weight_map': files}))

  def problem(self):
    """Returns the one problem that `find` has, in one line."""
    problems = []
    hf_files.find(self.folder, problems)
    (problem,) = problems
    self.assertNotIn('\n', problem)
    self.assertIn('hf download MODEL --local-dir', problem)
    return problem


class IndexTest(FilesTestCase):
  @parameterized.parameters(
    '../elsewhere/a.safetensors',
    '/elsewhere/a.safetensors',
    'folder/a.safetensors',
    'a.safetensors/../../b.safetensors',
    '..\\a.safetensors',
    'a\0.safetensors',
    'a' * 250 + '.safetensors',
    '\ud800.safetensors',
    '..',
    '.',
    '',
    'a.bin',
    3,
    None,
  )
  def test_a_name_that_is_no_file_of_the_folder_is_refused(self, name):
    elsewhere = self.folder.parent / 'elsewhere'
    elsewhere.mkdir()
    self.write('a.safetensors', elsewhere)
    self.write('b.safetensors')
    self.write_index(b='b.safetensors', a=name)
    problems = []
    self.assertEqual(hf_files.find(self.folder, problems), {})
    self.assertStartsWith(problems[0], f'{hf_files.INDEX} cannot be read: file')
    self.assertIn('must be the name of a .safetensors file', problems[0])
    with self.assertRaisesRegex(ValueError, 'must be the name of a .safeten'):
      hf_files.content_hash(self.folder)

  def test_a_link_to_a_file_elsewhere_is_allowed(self):
    # So does the cache of Hugging Face store files.
    blob = self.write('blob', self.folder.parent)
    (self.folder / 'a.safetensors').symlink_to(blob)
    self.write_index(a='a.safetensors')
    problems = []
    self.assertEqual(set(hf_files.find(self.folder, problems)), {'a'})
    self.assertEqual(problems, [])

  @parameterized.parameters(
    '', '{', '{}', '[]', 'null', DEEP, '{"weight_map": []}', '{"weight_map":{}}'
  )
  def test_an_index_that_is_none_is_named(self, text):
    self.index.write_text(text)
    self.assertStartsWith(self.problem(), f'{hf_files.INDEX} cannot be read: ')

  def test_a_folder_or_a_dead_link_is_not_taken_for_absent(self):
    self.index.mkdir()
    self.assertIn('cannot be read', self.problem())
    self.index.rmdir()
    self.index.symlink_to('nowhere')
    self.assertIn('cannot be read', self.problem())
    self.index.unlink()
    (self.folder / hf_files.SINGLE).mkdir()
    self.assertStartsWith(self.problem(), 'model.safetensors cannot be read: ')
    (self.folder / hf_files.SINGLE).rmdir()
    (self.folder / 'a.safetensors').mkdir()
    self.write_index(a='a.safetensors')
    self.assertStartsWith(self.problem(), 'a.safetensors is a folder; the ind')

  @parameterized.parameters(
    b'',
    b'abc',
    (2).to_bytes(8, 'little') + b'[]',
    (3).to_bytes(8, 'little') + b'{\xff}',
    (2**62).to_bytes(8, 'little'),
    len(DEEP).to_bytes(8, 'little') + DEEP.encode(),
  )
  def test_a_damaged_header_is_named(self, content):
    (self.folder / hf_files.SINGLE).write_bytes(content)
    self.assertStartsWith(self.problem(), 'model.safetensors cannot be read: ')


class NotFiniteTest(parameterized.TestCase):
  @parameterized.product(
    dtype=(np.float16, np.float32, ml_dtypes.bfloat16), block=(1, 4, 100)
  )
  def test_counts_what_is_nan_or_infinite(self, dtype, block):
    values = np.zeros((3, 5), np.float32)
    values[0, 0], values[1, 3], values[2, 4] = np.nan, np.inf, -np.inf
    largest = np.array(ml_dtypes.finfo(dtype).max).astype(np.float32)
    values[1, 1] = -largest
    with mock.patch.object(hf_files, '_BLOCK', block):
      self.assertEqual(hf_files.num_not_finite(values.astype(dtype)), 3)

  def test_nothing_has_none(self):
    self.assertEqual(hf_files.num_not_finite(np.zeros((0, 3), np.float32)), 0)


class ContentHashTest(FilesTestCase):
  def setUp(self):
    super().setUp()
    (self.folder / hf_files.CONFIG).write_text('{}')

  def hash(self):
    return hf_files.content_hash(self.folder)

  def test_every_byte_of_config_and_weights_changes_it(self):
    path = self.write(hf_files.SINGLE)
    before = self.hash()
    self.assertRegex(before, '^[0-9a-f]{64}$')
    content = path.read_bytes()
    seen = {before}
    for place in (9, len(content) - 1):
      changed = bytearray(content)
      changed[place] ^= 1
      path.write_bytes(changed)
      seen.add(self.hash())
    path.write_bytes(content)
    self.assertEqual(self.hash(), before)
    (self.folder / hf_files.CONFIG).write_text('{ }')
    seen.add(self.hash())
    self.assertLen(seen, 4)

  def test_every_file_of_an_index_changes_it_and_no_other(self):
    one, two = self.write('1.safetensors'), self.write('2.safetensors')
    self.write_index(a=one.name, b=two.name)
    seen = {self.hash()}
    self.write(two.name, a=np.zeros(3))
    seen.add(self.hash())
    self.write_index(b=one.name, a=two.name)
    seen.add(self.hash())
    content = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(content)
    seen.add(self.hash())
    (self.folder / hf_files.CONFIG).write_text('{ }')
    seen.add(self.hash())
    self.assertLen(seen, 5)
    before = self.hash()
    self.write('3.safetensors')
    (self.folder / 'tokenizer.json').write_text('x')
    self.assertEqual(self.hash(), before)

  def test_the_path_does_not_change_it(self):
    self.write(hf_files.SINGLE)
    before = self.hash()
    moved = self.folder.with_name('moved')
    self.folder.rename(moved)
    self.assertEqual(hf_files.content_hash(moved), before)

  def test_a_file_that_is_missing_is_named(self):
    with self.assertRaisesRegex(
      ValueError, r"model\.safetensors': must be a file .*; hf download"
    ):
      self.hash()
    self.write_index(a='a.safetensors')
    with self.assertRaisesRegex(
      ValueError, r"a\.safetensors': must be a file that can be read .*; hf do"
    ):
      self.hash()
