"""Tests of whole files."""

import errno
import os
import pathlib
from unittest import mock

from absl.testing import parameterized

from replay_rl.disk import durable


class DurableTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.create_tempdir().full_path)
    self.path = self.folder / 'a.json'

  def test_writes_all_at_once_and_leaves_no_other_file(self):
    durable.write(self.path, b'old')
    durable.write(self.path, b'new')
    self.assertEqual(self.path.read_bytes(), b'new')
    self.assertEqual(os.listdir(self.folder), ['a.json'])

  def test_the_disk_has_the_content_before_the_name(self):
    done = []
    fsync, replace = os.fsync, pathlib.Path.replace

    def note_sync(descriptor):
      done.append(
        f'sync {os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))}'
      )
      fsync(descriptor)

    def note_replace(path, target):
      done.append('replace')
      return replace(path, target)

    with (
      mock.patch.object(os, 'fsync', note_sync),
      mock.patch.object(pathlib.Path, 'replace', note_replace),
    ):
      durable.write(self.path, b'new')
    partial = f'sync .a.json.{os.getpid()}.partial'
    self.assertEqual(done, [partial, 'replace', f'sync {self.folder.name}'])

  @parameterized.parameters(
    (errno.ENOSPC, r'No space left on device\); it needs up to 3 bytes, \d+ '),
    (errno.EDQUOT, r'it needs up to 3 bytes, \d+ bytes and \d+ files are free'),
    (
      errno.EMFILE,
      r'raise the limit of \d+ open files \(ulimit -n\), then the',
    ),
    (
      errno.EROFS,
      r'\(Read-only file system\); make it writable, then the same',
    ),
  )
  def test_a_failure_is_one_line_and_the_file_before_remains(
    self, number, message
  ):
    durable.write(self.path, b'old')
    failing = mock.patch.object(
      os, 'fsync', side_effect=OSError(number, os.strerror(number))
    )
    with (
      failing,
      self.assertRaisesRegex(durable.WriteError, message) as raised,
    ):
      durable.write(self.path, b'new')
    self.assertStartsWith(str(raised.exception), f"path = '{self.path}': must")
    self.assertNotIn('\n', str(raised.exception))
    self.assertEqual(self.path.read_bytes(), b'old')
    self.assertEqual(os.listdir(self.folder), ['a.json'])

  def test_an_error_of_tensorstore_names_the_system_error(self):
    text = "RESOURCE_EXHAUSTED: writing [os_error_code='28']\nSource: x"
    with self.assertRaisesRegex(durable.WriteError, 'No space left on device'):
      with durable.refusing(self.path, num_bytes=None):
        raise ValueError(text)

  def test_the_cause_of_an_error_counts(self):
    with self.assertRaisesRegex(durable.WriteError, 'No space left on device'):
      with durable.refusing(self.path, num_bytes=None):
        try:
          raise OSError(errno.ENOSPC, 'full')
        except OSError as error:
          raise RuntimeError('saving failed') from error

  def test_other_errors_pass(self):
    with self.assertRaisesRegex(RuntimeError, 'mine'):
      with durable.refusing(self.path, num_bytes=None):
        raise RuntimeError('mine')
