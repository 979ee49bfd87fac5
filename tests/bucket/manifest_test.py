"""Tests of manifests: which one counts, and who may write the next one."""

import json

from absl.testing import absltest
from absl.testing import parameterized

from replay_rl.bucket import manifest
from tests.bucket import memory_store

_PART = manifest.Part('data/1/a/0', 3, '0' * 64)


def _manifest(number, files=None, owner=None):
  return manifest.Manifest(number, 4, owner, files or {})


class ManifestTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.memory = memory_store.Memory()
    self.store = self.memory.store()

  def test_a_manifest_is_read_as_it_was_written(self):
    self.assertIsNone(manifest.newest(self.store))
    written = _manifest(1, {'x/a': (_PART,), 'empty': ()}, {'process': 3})
    self.assertTrue(manifest.write(self.store, written))
    self.assertEqual(manifest.newest(self.store), written)
    self.assertEqual(list(self.memory.content), ['manifests/000000000001.json'])

  def test_the_name_of_a_part(self):
    self.assertEqual(manifest.place(3, 'x/a.b', 10), 'data/3/x/a.b/10')

  def test_of_two_processes_one_writes_the_next_manifest(self):
    manifest.write(self.store, _manifest(1))
    self.assertTrue(
      manifest.write(self.store, _manifest(2, owner={'process': 1}))
    )
    self.assertFalse(
      manifest.write(self.store, _manifest(2, owner={'process': 2}))
    )
    self.assertEqual(manifest.newest(self.store).owner, {'process': 1})

  def test_a_process_that_is_far_behind_is_told(self):
    for number in (1, 2, 3):
      manifest.write(self.store, _manifest(number))
    self.memory.content |= {'data/2/a/0': b'', 'data/3/b/0': b''}
    before = dict(self.memory.content)
    # Nobody has the number 2 any more.
    self.assertFalse(manifest.write(self.store, _manifest(2)))
    self.assertEqual(manifest.newest(self.store).number, 3)
    self.assertEqual({**self.memory.content, **before}, self.memory.content)

  def test_what_no_manifest_names_goes_but_not_parts_of_a_successor(self):
    self.memory.content = dict.fromkeys(
      ('data/1/a/0', 'data/1/b/0', 'data/2/c/0', 'data/3/d/0', 'mine'), b''
    )
    manifest.write(self.store, _manifest(1))
    self.memory.content |= dict.fromkeys(('data/1/a/0', 'data/1/b/0'), b'')
    manifest.write(self.store, _manifest(2, {'a': (_PART,)}))
    self.assertCountEqual(
      self.memory.content,
      ['data/1/a/0', 'data/3/d/0', 'manifests/000000000002.json', 'mine'],
    )

  def test_a_request_that_succeeded_and_is_sent_again_counts(self):
    def send_twice(request, name):
      if request == 'create':
        self.memory.content[name] = content[0]

    written = _manifest(1, {'a': (_PART,)}, {'process': 1})
    manifest.write(self.store, written)
    content = list(self.memory.content.values())
    self.memory.content.clear()
    self.memory.before = send_twice
    self.assertTrue(manifest.write(self.store, written))

  def test_a_reader_follows_a_run_that_goes_on(self):
    manifest.write(self.store, _manifest(1))

    def go_on(request, name):
      if request == 'read' and name.endswith('1.json'):
        self.memory.before = lambda request, name: None
        manifest.write(self.store, _manifest(2))

    self.memory.before = go_on
    self.assertEqual(manifest.newest(self.store).number, 2)

  def test_a_manifest_that_is_listed_and_absent_is_told(self):
    def absent(request, name):
      if request == 'read':
        raise FileNotFoundError(name)

    manifest.write(self.store, _manifest(1))
    self.memory.before = absent
    with self.assertRaisesRegex(
      manifest.ManifestError,
      '^manifest 1 of s3://bucket/run = missing: must be a manifest of repl',
    ):
      manifest.newest(self.store)

  @parameterized.parameters(
    {'format': 2},
    {'number': 2},
    {'iteration': 'x'},
    {'owner': 3},
    {'files': []},
    {'files': {'../a': []}},
    {'files': {'/a': []}},
    {'files': {'a//b': []}},
    {'files': {'': []}},
    {'files': {'a': [{'name': 'b'}]}},
    {'files': {'a': [_PART._replace(name='../b')._asdict()]}},
    {'files': {'a': [_PART._replace(sha256='../b')._asdict()]}},
    {'files': {'a': [_PART._asdict() | {'num_bytes': '3'}]}},
  )
  def test_a_damaged_manifest_is_one_line(self, **changes):
    manifest.write(self.store, _manifest(1))
    ((name, content),) = self.memory.content.items()
    values = json.loads(content)
    for text in (
      json.dumps(values | changes).encode(),
      json.dumps(
        {x: y for x, y in values.items() if x not in changes}
      ).encode(),
      content[:30],
    ):
      self.memory.content[name] = text
      with self.assertRaisesRegex(
        manifest.ManifestError,
        '^manifest 1 of s3://bucket/run = .*: must be a manifest of replay_rl',
      ):
        manifest.newest(self.store)


if __name__ == '__main__':
  absltest.main()
