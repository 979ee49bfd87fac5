"""Tests of the copy of a folder in a bucket: whole at every moment."""

import hashlib
import pathlib
import random
import shutil
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized

from replay_rl.bucket import manifest
from replay_rl.bucket import mirror
from replay_rl.bucket import objects
from replay_rl.bucket import owner
from replay_rl.disk import line_file
from tests.bucket import memory_store


class _KilledError(Exception):
  pass


def _files(folder):
  return {
    path.relative_to(folder).as_posix(): path.read_bytes()
    for path in folder.rglob('*')
    if path.is_file()
  }


class MirrorTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.create_tempdir().full_path)
    self.folder = self.root / 'run'
    self.folder.mkdir()
    self.memory = memory_store.Memory()
    self.store = self.memory.store()
    # One thread, so that requests come in the same order each time.
    self.enter_context(mock.patch.object(mirror, '_NUM_THREADS', 1))

  def _claimed(self, folder=None, take_over=False):
    claimed = mirror.claim(self.store, take_over=take_over)
    return mirror.Mirror(
      self.store, folder or self.folder, claimed, at_end=['profile']
    )

  def _write(self, name, content, mode='wb'):
    path = self.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, mode) as file:
      file.write(content)

  def _marks(self, **sizes):
    contents = {name: (self.folder / name).read_bytes() for name in sizes}
    return {
      name: line_file.Mark(
        size, hashlib.sha256(contents[name][:size]).hexdigest()
      )
      for name, size in sizes.items()
    }

  def _downloaded(self, name='copy'):
    newest = manifest.newest(self.store)
    mirror.prune(self.root / name, newest)
    mirror.download(self.store, newest, self.root / name)
    return _files(self.root / name)

  def test_files_come_back_as_they_were_at_the_checkpoint(self):
    run = self._claimed()
    self._write('log', b'abcdef')
    self._write('config.json', b'{}')
    self._write('checkpoints/2/x', b'xyz')
    self._write('checkpoints/2/empty', b'')
    expected = _files(self.folder) | {'log': b'abcd'}
    self._write('.lock', b'')
    self._write('.x.7.partial', b'1')
    self._write('checkpoints/3.orbax-checkpoint-tmp/x', b'1')
    self._write('profile/x', b'1')
    run.upload(2, self._marks(log=4))
    self.assertEqual(self._downloaded(), expected)
    newest = manifest.newest(self.store)
    self.assertEqual((newest.number, newest.iteration), (2, 2))
    self.assertEqual(newest.owner, owner.identity())
    self.assertEqual(
      newest.files['log'],
      (manifest.Part('data/2/log/0', 4, hashlib.sha256(b'abcd').hexdigest()),),
    )
    run.finish()
    self.assertEqual(self._downloaded(), expected | {'profile/x': b'1'})
    newest = manifest.newest(self.store)
    self.assertEqual(
      (newest.number, newest.iteration, newest.owner), (3, 2, None)
    )
    run.finish()
    self.assertEqual(manifest.newest(self.store), newest)

  def test_a_file_that_grows_sends_its_new_bytes_in_few_parts(self):
    run, choices, sent = self._claimed(), random.Random(0), []

    def before(request, name):
      if request == 'upload':
        sent.append(name)

    self.memory.before = before
    for step in range(1, 65):
      self._write('log', choices.randbytes(10), 'ab')
      run.upload(step, self._marks(log=10 * step))
      parts = manifest.newest(self.store).files['log']
      sizes = [part.num_bytes for part in parts]
      # As the digits of a binary number.
      self.assertEqual(
        sizes, [10 * 2**i for i in range(6, -1, -1) if step & 2**i]
      )
    self.assertEqual(self._downloaded(), _files(self.folder))
    self.assertLen(sent, 64)
    self.assertLen(self.memory.content, 2)  # One part and the manifest.

  def test_only_what_changed_is_sent(self):
    run, sent = self._claimed(), []
    self._write('checkpoints/1/x', b'one')
    self._write('config.json', b'{}')
    self._write('events', b'ab')
    run.upload(1, {})
    self.memory.before = lambda request, name: (
      sent.append(name) if request == 'upload' else None
    )
    run.upload(2, {})
    self.assertEqual(sent, [])
    shutil.rmtree(self.folder / 'checkpoints/1')
    self._write('checkpoints/2/x', b'two')
    self._write('events', b'c', 'ab')
    (self.folder / 'config.json').unlink()
    self._write('config.json', b'[]')
    run.upload(3, {})
    self.assertEqual(
      sorted(sent),
      [
        *('data/4/checkpoints/2/x/0', 'data/4/config.json/0'),
        'data/4/events/2',
      ],
    )
    self.assertEqual(self._downloaded(), _files(self.folder))
    self.assertNotIn('data/2/checkpoints/1/x/0', self.memory.content)

  def test_a_file_that_was_cut_and_written_again_is_sent_from_there(self):
    run = self._claimed()
    self._write('log', b'0123456789')
    run.upload(1, self._marks(log=10))
    self._write('log', b'abcd', 'ab')
    run.upload(2, self._marks(log=14))
    self._write('log', b'0123456789xyz')
    run.upload(3, self._marks(log=13))
    self.assertEqual(self._downloaded(), _files(self.folder))
    self.assertLen(manifest.newest(self.store).files['log'], 2)
    self._write('log', b'01')
    run.upload(4, self._marks(log=2))
    self.assertEqual(self._downloaded(), _files(self.folder))

  def test_a_kill_at_any_request_leaves_a_whole_run(self):
    """Fails each request in turn: the bucket is as before, or as after."""
    for at in range(1, 40):
      self.memory.content.clear()
      shutil.rmtree(self.folder)
      self._write('log', b'0123456789')
      self._write('checkpoints/1/x', b'one')
      run = self._claimed()
      run.upload(1, self._marks(log=10))
      before = _files(self.folder)
      self._write('log', b'abc', 'ab')
      self._write('checkpoints/2/x', b'two')
      shutil.rmtree(self.folder / 'checkpoints/1')
      requests = []

      def fail(request, name, at=at, requests=requests):
        requests.append(request)
        if len(requests) == at:
          raise _KilledError()

      self.memory.before = fail
      try:
        run.upload(2, self._marks(log=13))
        is_done = True
      except _KilledError:
        is_done = False
      self.memory.before = lambda request, name: None
      after = _files(self.folder)
      found = self._downloaded()
      is_named = manifest.newest(self.store).iteration == 2
      self.assertEqual(found, after if is_named else before)
      # The run continues on another machine, and then nothing is left over.
      other = self.root / 'other'
      shutil.rmtree(other, ignore_errors=True)
      successor = self._claimed(other, take_over=True)
      mirror.download(self.store, manifest.newest(self.store), other)
      successor.upload(3, {})
      newest = manifest.newest(self.store)
      named = {part.name for parts in newest.files.values() for part in parts}
      left = self.memory.content.keys() - named
      self.assertEqual(left, {f'manifests/{newest.number:012d}.json'})
      self.assertEqual(_files(other), found)
      if is_done:
        self.assertGreater(at, 6)
        return
    self.fail('the last upload never ended')

  def test_a_run_with_an_owner_is_refused_until_it_is_taken_over(self):
    first = self._claimed()
    self._write('log', b'one')
    first.upload(1, self._marks(log=3))
    with self.assertRaisesRegex(
      ValueError,
      "^workdir = 's3://bucket/run': must not be in use by another process; "
      r'process \d+ of .* owns it; if that one is dead, give --take_over once$',
    ):
      self._claimed()
    second = self._claimed(self.root / 'second', take_over=True)
    mirror.download(
      self.store, manifest.newest(self.store), self.root / 'second'
    )
    self._write('log', b'two', 'ab')
    with self.assertRaisesRegex(
      mirror.TakenOverError, "^workdir = 's3://bucket/run': must not be taken"
    ):
      first.upload(2, self._marks(log=6))
    first.finish()
    self.assertEqual(self._downloaded(), {'log': b'one'})
    second.upload(1, {})
    second.finish()
    self.assertEqual(self._downloaded(), {'log': b'one'})
    # Nobody owns it now.
    self._claimed().finish()

  def test_an_owner_that_is_gone_needs_no_word(self):
    self._claimed()
    with mock.patch.object(owner, 'is_gone', return_value=True):
      self._claimed()
    self.assertEqual(manifest.newest(self.store).number, 2)

  def test_of_two_that_begin_at_once_one_is_refused(self):
    def other(request, name):
      if request == 'create':
        self.memory.before = lambda request, name: None
        self.memory.content[name] = b'{}'

    self.memory.before = other
    with self.assertRaisesRegex(ValueError, 'one has begun at the same moment'):
      self._claimed()

  @parameterized.parameters('upload', 'create')
  def test_a_run_that_could_not_write_lets_go_where_that_is_safe(self, failing):
    def fail(request, name):
      if request == failing:
        raise objects.BucketError('network')

    run = self._claimed()
    self._write('log', b'one')
    run.upload(1, self._marks(log=3))
    self._write('log', b'two', 'ab')
    self.memory.before = fail
    with self.assertRaisesRegex(objects.BucketError, 'network'):
      run.upload(2, self._marks(log=6))
    self.memory.before = lambda request, name: None
    run.finish()
    newest = manifest.newest(self.store)
    self.assertEqual(self._downloaded(), {'log': b'one'})
    # A manifest whose answer was lost may be there.
    is_owned = failing == 'create'
    self.assertEqual(newest.owner is not None, is_owned)
    self.assertEqual(newest.number, 2 if is_owned else 3)

  def test_a_run_that_saved_nothing_only_lets_go(self):
    run = self._claimed()
    self._write('log', b'one')
    run.finish()
    newest = manifest.newest(self.store)
    self.assertEqual((newest.owner, newest.files), (None, {}))

  def test_a_download_repairs_what_differs(self):
    run = self._claimed()
    self._write('a/b', b'one')
    self._write('log', b'0123456789')
    run.upload(1, self._marks(log=10))
    self._write('log', b'abc', 'ab')
    run.upload(2, self._marks(log=13))
    self._downloaded()
    copy, read = self.root / 'copy', []
    (copy / 'log').write_bytes(b'0123456789abx')
    (copy / 'a/b').unlink()
    (copy / 'a/c').mkdir()
    (copy / 'd/e').mkdir(parents=True)
    (copy / 'd/e/f').write_bytes(b'left by another run')
    (copy / 'g').symlink_to(self.folder)
    self.memory.before = lambda request, name: (
      read.append(name) if name.startswith('data') else None
    )
    self.assertEqual(self._downloaded(), _files(self.folder))
    self.assertCountEqual(
      read, ['data/2/a/b/0', 'data/2/log/0', 'data/3/log/10']
    )
    self.assertCountEqual(
      [path.name for path in copy.rglob('*')], ['a', 'b', 'log']
    )
    read.clear()
    self._downloaded()
    self.assertEqual(read, [])

  @parameterized.parameters(
    (lambda x: None, 'missing'),
    (lambda x: x[:-1], 'of another length'),
    (lambda x: x[::-1], 'changed'),
  )
  def test_a_damaged_object_is_told(self, change, words):
    run = self._claimed()
    self._write('log', b'0123456789')
    run.upload(1, self._marks(log=10))
    name = 'data/2/log/0'
    changed = change(self.memory.content.pop(name))
    if changed is not None:
      self.memory.content[name] = changed
    with self.assertRaisesWithLiteralMatch(
      manifest.ManifestError,
      "object = 's3://bucket/run/data/2/log/0': must be as it was written; it "
      f'is {words}',
    ):
      self._downloaded()
    self.assertNotIn('log', _files(self.root / 'copy'))


if __name__ == '__main__':
  absltest.main()
