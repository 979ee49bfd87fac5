"""Tests of the objects of a bucket, with servers on this machine."""

import io
import os
import pathlib
import random
import sys
from unittest import mock

import google.api_core.exceptions
from absl.testing import absltest
from absl.testing import parameterized
from google.cloud import storage

from replay_rl.bucket import objects
from tests import fake_bucket

_SERVERS = {'s3': fake_bucket.amazon, 'gs': fake_bucket.google}


class AddressTest(parameterized.TestCase):
  @parameterized.parameters(
    ('gs://bucket/run', ('gs', 'bucket', 'run')),
    ('s3://a.b-c_1/x/y z//', ('s3', 'a.b-c_1', 'x/y z')),
  )
  def test_an_address_has_a_bucket_and_a_folder(self, text, expected):
    address = objects.parse('workdir', text)
    self.assertEqual(address, objects.Address(*expected))
    self.assertEqual(str(address), text.rstrip('/'))

  @parameterized.parameters(
    *('gs://bucket', 'gs://bucket/', 'gs:/bucket/x', 'S3://bucket/x'),
    *('s3://Bucket/x', 's3://b/x', 's3:///x', 'file:///x', 'abfs://bucket/x'),
    *('gs://bucket//x', 'gs://bucket/x/../y', 'gs://bucket/.', 'runs/x'),
    *('gs://bucket/a\nb', ''),
  )
  def test_another_text_is_refused(self, text):
    with self.assertRaisesRegex(
      ValueError, '^workdir = .*: must be a path of a file system, or gs://'
    ):
      objects.parse('workdir', text)

  @parameterized.parameters(
    (
      *('gs://bucket/x', ['google.cloud.storage']),
      "google-cloud-storage; pip install -e '.[gcs]'",
    ),
    ('s3://bucket/x', ['boto3'], "boto3; pip install -e '.[s3]'"),
  )
  def test_a_missing_package_is_told_with_its_install_line(
    self, text, hidden, message
  ):
    with (
      mock.patch.dict(sys.modules, dict.fromkeys(hidden)),
      self.assertRaisesWithLiteralMatch(
        ValueError, f"workdir = '{text}': must have the packages {message}"
      ),
    ):
      objects.parse('workdir', text)


class SpanTest(absltest.TestCase):
  def test_a_span_is_a_file_of_these_bytes(self):
    path = pathlib.Path(self.create_tempdir().full_path) / 'x'
    path.write_bytes(bytes(range(200)))
    choices = random.Random(0)
    like = io.BytesIO(bytes(range(20, 150)))
    with io.BufferedReader(objects.FileSpan(path, 20, 150), 7) as span:
      self.assertTrue(span.readable() and span.seekable())
      for _ in range(200):
        place, whence = choices.randint(0, 140), choices.choice([0, 2])
        place = place if whence == 0 else -min(place, 130)
        number = choices.choice([-1, 0, 1, 5, 50])
        self.assertEqual(span.seek(place, whence), like.seek(place, whence))
        self.assertEqual(span.read(number), like.read(number))
        self.assertEqual(span.tell(), like.tell())
        self.assertEqual(span.seek(0, 1), like.seek(0, 1))


class StoreTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.create_tempdir().full_path)

  def _connected(self, scheme, prefix='a/run', bucket=fake_bucket.BUCKET):
    return objects.connect(objects.Address(scheme, bucket, prefix))

  @parameterized.parameters('s3', 'gs')
  def test_objects_are_written_read_and_removed(self, scheme):
    path = self.folder / 'file'
    content = random.Random(0).randbytes(9_000_000)  # Sent in several requests.
    path.write_bytes(content)
    with _SERVERS[scheme]():
      store = self._connected(scheme)
      other = self._connected(scheme, 'a/runs')
      self.assertEqual(store.names(), [])
      self.assertTrue(store.create('x/1.json', b'one'))
      self.assertTrue(other.create('y', b''))
      with io.BufferedReader(objects.FileSpan(path, 10, 8_999_990)) as span:
        span.read(7)
        span.seek(0)
        store.upload('data/2/b c', span)
      self.assertCountEqual(store.names(), ['x/1.json', 'data/2/b c'])
      self.assertEqual(other.names(), ['y'])
      self.assertEqual(store.read('x/1.json'), b'one')
      with open(self.folder / 'copy', 'wb') as file:
        store.download('data/2/b c', file)
      self.assertEqual(
        (self.folder / 'copy').read_bytes(), content[10:8_999_990]
      )
      store.remove(['x/1.json', 'absent'])
      self.assertEqual(store.names(), ['data/2/b c'])
      with self.assertRaises(FileNotFoundError):
        store.read('x/1.json')
      with self.assertRaises(FileNotFoundError):
        store.download('x/1.json', io.BytesIO())
      store.remove([])

  @parameterized.parameters('s3', 'gs')
  def test_an_absent_bucket_is_told(self, scheme):
    with _SERVERS[scheme]():
      store = self._connected(scheme, bucket='absent')
      for ask in (store.names, lambda: store.create('x', b'')):
        with self.assertRaisesRegex(
          objects.BucketError,
          f"^address = '{scheme}://absent/a/run': must be a folder of a bucket "
          'that can be reached, read and written .*; then the same command',
        ):
          ask()

  def test_s3_creates_an_object_once(self):
    with fake_bucket.amazon():
      store = self._connected('s3')
      self.assertTrue(store.create('x', b'one'))
      self.assertFalse(store.create('x', b'two'))
      self.assertEqual(store.read('x'), b'one')

  def test_gs_asks_for_an_object_that_is_not_there(self):
    # The server of the other tests ignores this condition.
    with fake_bucket.google():
      store = self._connected('gs')
      with mock.patch.object(
        storage.Blob,
        'upload_from_string',
        side_effect=google.api_core.exceptions.PreconditionFailed('there'),
      ) as upload:
        self.assertFalse(store.create('x', b'two'))
      upload.assert_called_once_with(b'two', if_generation_match=0)

  def test_missing_credentials_are_told(self):
    clean = {x: y for x, y in os.environ.items() if not x.startswith('AWS_')}
    clean |= {
      'AWS_EC2_METADATA_DISABLED': 'true',
      'AWS_SHARED_CREDENTIALS_FILE': str(self.folder / 'none'),
      'AWS_CONFIG_FILE': str(self.folder / 'none'),
    }
    with (
      mock.patch.dict(os.environ, clean, clear=True),
      self.assertRaisesRegex(objects.BucketError, 'Unable to locate cred'),
    ):
      self._connected('s3').names()


if __name__ == '__main__':
  absltest.main()
