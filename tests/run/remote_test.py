"""Tests of runs whose folder is in a bucket, from their start to their end."""

import contextlib
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from unittest import mock

import chex
import jax
from absl.testing import absltest
from absl.testing import parameterized

from replay_rl import train
from replay_rl.bucket import manifest
from replay_rl.bucket import mirror
from replay_rl.bucket import objects
from replay_rl.bucket import reading
from replay_rl.run import checkpoint
from replay_rl.run import remote
from tests import fake_bucket
from tests import tiny
from tests.bucket import memory_store

_ROOT = pathlib.Path(__file__).parents[2]
_CHANGES = {'num_iterations': 3}
_ADDRESS = f's3://{fake_bucket.BUCKET}/a/run'


class RemoteTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.create_tempdir().full_path)
    self.enter_context(mock.patch.object(tempfile, 'tempdir', str(self.folder)))

  def _staging(self, name='staging', *, take_over=False):
    return remote.Staging(str(self.folder / name), take_over)

  def test_a_killed_run_continues_with_an_empty_folder_byte_for_byte(self):
    temporary = self.folder / 'killed'
    temporary.mkdir()
    job = {'module': 'tests.tiny', 'workdir': _ADDRESS, 'changes': _CHANGES}
    job['signal'] = ['SIGKILL', None, 2]
    config = tiny.config(**_CHANGES)
    with fake_bucket.amazon():
      ended = subprocess.run(
        [sys.executable, '-m', 'tests.process_of_run', json.dumps([job])],
        cwd=_ROOT,
        env=os.environ
        | {
          'TMPDIR': str(temporary),
          'JAX_NUMPY_RANK_PROMOTION': 'raise',
          'JAX_NUM_CPU_DEVICES': '8',
        },
        capture_output=True,
        timeout=300,
      )
      self.assertEqual(ended.returncode, -9, ended.stderr)
      store = objects.connect(objects.parse('workdir', _ADDRESS))
      left = manifest.newest(store)
      assert left is not None
      self.assertIn(left.iteration, (1, 2))
      self.assertIsNotNone(left.owner)
      shutil.rmtree(temporary)
      printed = io.StringIO()
      with contextlib.redirect_stdout(printed):
        run = train.train(config, _ADDRESS, staging=self._staging())
      text = ''.join(printed.getvalue().split())  # Lines are broken anywhere.
      self.assertIn(f'{_ADDRESS}:itslocalcopyis{self.folder}/staging', text)
      self.assertIn(f'{left.iteration}of3iterationsaredone', text)
      newest = manifest.newest(store)
      assert newest is not None
      self.assertEqual((newest.iteration, newest.owner), (3, None))
      with contextlib.redirect_stdout(io.StringIO()):
        local = self.folder / 'local'
        expected = train.train(config, local)
        with reading.readable('run', _ADDRESS) as copy:
          name = 'metrics.jsonl'
          self.assertEqual(
            (copy / name).read_bytes(), (local / name).read_bytes()
          )
          saved = checkpoint.read(copy / 'checkpoints', 3, expected).run
      chex.assert_trees_all_equal(run, expected, strict=True)
      chex.assert_trees_all_equal(saved, expected, strict=True)

  def test_the_default_folder_belongs_to_the_address(self):
    self.enter_context(memory_store.Memory().connected())
    places = []
    for address in ('s3://bucket/x', 's3://bucket/x/', 's3://bucket/y'):
      with (
        contextlib.redirect_stdout(io.StringIO()),
        remote.opened(address, remote.DEFAULT) as (place, _),
      ):
        places.append(place)
    self.assertEqual(places[0], places[1])
    self.assertNotEqual(places[0], places[2])
    for place in places:
      own = place.parents[1]
      self.assertEqual(own.parent, self.folder)
      self.assertEqual(own.stat().st_mode & 0o777, 0o700)
    with (
      mock.patch.object(os, 'getuid', return_value=os.getuid() + 1),
      self.assertRaisesRegex(ValueError, 'must belong to this user'),
    ):
      own.rename(self.folder / f'replay_rl-{os.getuid()}')
      with remote.opened('s3://bucket/x', remote.DEFAULT):
        pass

  def test_a_folder_of_something_else_is_left_alone(self):
    (self.folder / 'staging').mkdir()
    file = self.folder / 'staging' / 'thesis'
    file.write_text('x')
    memory = memory_store.Memory()
    connect = self.enter_context(memory.connected())
    with self.assertRaisesRegex(
      ValueError,
      '^--staging = .*: must be an empty folder, or a copy of s3://bucket/x; '
      "it holds 'thesis'$",
    ):
      with remote.opened('s3://bucket/x', self._staging()):
        pass
    self.assertEqual(file.read_text(), 'x')
    connect.assert_not_called()
    file.rename(file.with_name('.address.1.partial'))
    for address, error in (
      ('s3://bucket/x', contextlib.nullcontext()),
      ('s3://bucket/y', self.assertRaisesRegex(ValueError, "holds 'address'")),
      ('s3://bucket/x', contextlib.nullcontext()),
    ):
      with error, contextlib.redirect_stdout(io.StringIO()):
        with remote.opened(address, self._staging()):
          with self.assertRaisesRegex(ValueError, 'must not be in use'):
            with remote.opened(address, self._staging()):
              pass

  def test_a_failure_in_the_run_is_what_is_told(self):
    memory = memory_store.Memory()
    self.enter_context(memory.connected())

    def fail(request, name):
      raise objects.BucketError('no network')

    @contextlib.contextmanager
    def opened():
      with (
        contextlib.redirect_stdout(io.StringIO()),
        remote.opened(
          str(memory_store.ADDRESS),
          self._staging(take_over=True),
        ),
      ):
        yield

    with self.assertRaises(ZeroDivisionError), opened():
      raise ZeroDivisionError()
    newest = manifest.newest(memory.store())
    assert newest is not None
    self.assertIsNone(newest.owner)
    with (
      self.assertWarnsRegex(UserWarning, 'as its owner .no network'),
      self.assertRaises(ZeroDivisionError),
      opened(),
    ):
      memory.before = fail
      raise ZeroDivisionError()
    memory.before = lambda request, name: None
    with self.assertRaises(SystemExit), opened():
      raise SystemExit(143)
    newest = manifest.newest(memory.store())
    assert newest is not None
    self.assertIsNone(newest.owner)
    with self.assertRaisesRegex(objects.BucketError, 'no network'), opened():
      memory.before = fail

  def test_a_run_in_use_is_refused_before_its_folder_is_touched(self):
    memory = memory_store.Memory()
    self.enter_context(memory.connected())
    mirror.claim(memory.store(), take_over=False)
    with self.assertRaisesRegex(ValueError, 'give --take_over once'):
      with remote.opened(
        's3://bucket/run',
        self._staging(),
      ):
        pass
    self.assertFalse((self.folder / 'staging' / 'run').exists())

  @parameterized.parameters(
    (remote.Staging('x', False),), (remote.Staging(None, True),)
  )
  def test_flags_of_a_bucket_need_an_address(self, staging):
    with self.assertRaisesRegex(
      ValueError,
      f'^--staging = {staging.folder!r}, --take_over = {staging.take_over}: '
      'must be absent, unless --workdir is an address',
    ):
      train.train(tiny.config(), self.folder / 'x', staging=staging)

  def test_the_end_names_programs_that_read_the_address(self):
    text = train.ending(tiny.config(logging__writers='tensorboard()'), _ADDRESS)
    self.assertEqual(
      text.splitlines()[1:],
      [
        f'  python -m replay_rl.report {_ADDRESS} --out=report',
        f'  python -m replay_rl.inspect {_ADDRESS}',
      ],
    )

  def test_what_a_bucket_cannot_do_is_refused(self):
    with self.assertRaisesRegex(ValueError, "^--staging = 'gs://b/y': must be"):
      remote.check('gs://bucket/x', remote.Staging('gs://b/y', False))
    with (
      mock.patch.object(jax, 'process_count', return_value=2),
      self.assertRaisesRegex(
        ValueError,
        "^workdir = 'gs://bucket/x': must be a path of a file system that all "
        '2 processes share; a bucket takes runs of one',
      ),
    ):
      remote.check('gs://bucket/x', remote.DEFAULT)
    remote.check('gs://bucket/x', remote.Staging('y', True))


if __name__ == '__main__':
  absltest.main()
