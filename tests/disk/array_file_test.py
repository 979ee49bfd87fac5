"""Tests of files of arrays."""

import pathlib

import numpy as np
from absl.testing import parameterized

from replay_rl.disk import array_file


class ArrayFileTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    folder = pathlib.Path(self.create_tempdir().full_path)
    self.path = folder / 'new' / 'arrays.npz'
    self.arrays = [np.arange(6.0).reshape(2, 3), np.array([1, 2], np.int32)]
    array_file.write(self.path, self.arrays)

  def test_reads_what_was_written(self):
    actual = array_file.read(self.path, self.arrays)
    for one, other in zip(actual, self.arrays, strict=True):
      np.testing.assert_array_equal(one, other)
      self.assertEqual(one.dtype, other.dtype)

  @parameterized.named_parameters(
    ('empty', lambda content: b''),
    ('cut', lambda content: content[: len(content) // 2]),
    ('flipped', lambda content: content[:150] + b'\x01' + content[151:]),
  )
  def test_a_damaged_file_is_one_line(self, damage):
    self.path.write_bytes(damage(self.path.read_bytes()))
    with self.assertRaisesRegex(ValueError, f"^path = '{self.path}': must be"):
      array_file.read(self.path, self.arrays)

  def test_other_values_and_other_shapes_are_refused(self):
    with np.load(self.path) as stored:
      kept = dict(stored)
    np.savez(self.path, **(kept | {'arr_1': np.array([1, 3], np.int32)}))
    with self.assertRaisesRegex(ValueError, '^checksum in '):
      array_file.read(self.path, self.arrays)
    np.savez(self.path, **(kept | {'arr_1': np.array([1, 2], np.int64)}))
    with self.assertRaisesRegex(ValueError, r'= int64\[2\]: must be int32\[2'):
      array_file.read(self.path, self.arrays)
