"""Tests of reading a run that is in a bucket."""

import argparse
import contextlib
import io
import pathlib

from absl.testing import absltest
from absl.testing import parameterized

from replay_rl import export
from replay_rl import inspect
from replay_rl.bucket import manifest
from replay_rl.bucket import mirror
from replay_rl.bucket import reading
from replay_rl.evaluate import evaluator
from replay_rl.report import __main__ as report
from tests.bucket import memory_store

_ADDRESS = str(memory_store.ADDRESS)
_NO_STEPS = 'must be the address of a run with a checkpoint'


class ReadingTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.create_tempdir().full_path)
    self.memory = memory_store.Memory()
    self.enter_context(self.memory.connected())

  def _save(self, *steps):
    for step in steps:
      path = self.folder / f'checkpoints/{step}/run/x'
      path.parent.mkdir(parents=True)
      path.write_bytes(b'%d' % step)
    (self.folder / 'config.json').write_bytes(b'%d' % len(steps))
    store = self.memory.store()
    claimed = mirror.claim(store, take_over=True)
    run = mirror.Mirror(store, self.folder, claimed, at_end=[])
    run.upload(steps[-1], {})
    return run

  def _read(self, **kwargs):
    with reading.readable('RUN', _ADDRESS, **kwargs) as folder:
      self.assertEqual(folder.name, 'run')
      files = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob('*')
        if path.is_file()
      }
    self.assertFalse(folder.exists())
    return files

  def test_a_path_is_read_where_it_is(self):
    with reading.readable('RUN', '~/x') as folder:
      self.assertEqual(folder, pathlib.Path.home() / 'x')

  def test_only_the_checkpoint_that_is_asked_for_is_read(self):
    self._save(2, 10)
    config = {'config.json': b'2'}
    self.assertEqual(self._read(), config | {'checkpoints/10/run/x': b'10'})
    self.assertEqual(
      self._read(iteration=2), config | {'checkpoints/2/run/x': b'2'}
    )
    self.assertEqual(self._read(checkpoints=False), config)
    with self.assertRaisesWithLiteralMatch(
      ValueError,
      'iteration = 3: must be one of [2, 10], the checkpoints of RUN = '
      f'{_ADDRESS!r}',
    ):
      self._read(iteration=3)

  def test_a_run_that_goes_on_meanwhile_is_read_from_its_new_manifest(self):
    run = self._save(2)

    def go_on(request, name):
      if request == 'read' and name.startswith('data'):
        self.memory.before = lambda request, name: None
        (self.folder / 'config.json').write_bytes(b'new')
        (self.folder / 'checkpoints/2').rename(self.folder / 'checkpoints/4')
        run.upload(4, {})

    self.memory.before = go_on
    self.assertEqual(
      self._read(), {'config.json': b'new', 'checkpoints/4/run/x': b'2'}
    )

  def test_a_damaged_run_is_told(self):
    self._save(2)
    del self.memory.content['data/2/config.json/0']
    with self.assertRaisesRegex(manifest.ManifestError, 'it is missing'):
      self._read()

  def test_an_address_without_a_run_is_told(self):
    with self.assertRaisesRegex(
      ValueError, f"^RUN = '{_ADDRESS}': {_NO_STEPS}"
    ):
      self._read()
    mirror.claim(self.memory.store(), take_over=False)
    with self.assertRaisesRegex(ValueError, _NO_STEPS):
      self._read()

  @parameterized.parameters(
    (report.main, [_ADDRESS]),
    (inspect.main, [_ADDRESS]),
    (export.main, [f'--workdir={_ADDRESS}', '--out=x']),
    (
      evaluator.main,
      [
        *(f'--workdir={_ADDRESS}', '--benchmarks=a'),
        *('--data_dir=a', '--out=x'),
      ],
    ),
  )
  def test_the_programs_read_from_addresses(self, main, arguments):
    with contextlib.redirect_stderr(io.StringIO()) as printed:
      self.assertEqual(main(arguments), 2)
    self.assertRegex(printed.getvalue(), f'^error: .* = .*: {_NO_STEPS}')
    self._save(2)
    del self.memory.content['data/2/config.json/0']
    with contextlib.redirect_stderr(io.StringIO()) as printed:
      self.assertEqual(main(arguments), 2)
    self.assertIn('config.json/0', printed.getvalue())

  def test_a_flag_takes_a_path_or_an_address(self):
    for text in ('runs/x', _ADDRESS):
      self.assertEqual(reading.text(text), text)
    for text in ('abfs://x/y', 's3://x'):
      with self.assertRaisesRegex(
        argparse.ArgumentTypeError, f"'{text}': must be a path of a file system"
      ):
        reading.text(text)


if __name__ == '__main__':
  absltest.main()
