"""Tests that the addresses of buckets are refused, wherever a path is given."""

import argparse
import contextlib
import io
import os
import pathlib

from absl.testing import parameterized

from replay_rl import export
from replay_rl import inspect
from replay_rl import train
from replay_rl.disk import paths
from replay_rl.evaluate import evaluation_flags
from replay_rl.plan import of_fit
from replay_rl.report import __main__ as report
from replay_rl.run import fork
from replay_rl.run import rules
from replay_rl.sweep import __main__ as sweep
from tests import mains
from tests import tiny

_NO_RUN = ': must be a path of a file system, or gs://BUCKET/FOLDER or s3://'
_MESSAGE = "'gs://b/x': must be a path of a file system, such as a disk or NFS"


class PathsTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = self.create_tempdir().full_path
    self.enter_context(contextlib.chdir(self.folder))

  def tearDown(self):
    # Nothing was made, such as a folder `gs:`.
    self.assertEqual(os.listdir(self.folder), [])
    super().tearDown()

  @parameterized.parameters(
    'gs://b/x', 's3://b', 'S3://B', 'file:///x', 'abfs-x://b', 'gs:/b'
  )
  def test_an_address_is_refused(self, address):
    for path in (address, pathlib.Path(address)):
      with self.assertRaisesRegex(ValueError, 'out = .*: must be a path of a'):
        paths.check('out', path)
    for kind in (paths.text, paths.path):
      with self.assertRaisesRegex(
        argparse.ArgumentTypeError, f'^{address!r}: must be a path'
      ):
        kind(address)

  @parameterized.parameters('gs', 'runs/a:/b', '/gs://b', './gs://b', 'a@b', '')
  def test_other_texts_are_paths(self, text):
    paths.check('out', text)
    self.assertEqual(paths.text(text), text)
    self.assertEqual(paths.path(text), pathlib.Path(text))

  def test_a_training_refuses_it_at_once(self):
    for address in ('gs:/b/x', 'abfs://b/x', pathlib.Path('gs://bucket/x')):
      with self.assertRaisesRegex(ValueError, f'^workdir = .*{_NO_RUN}'):
        train.train(tiny.config(), address)
    with self.assertRaisesRegex(ValueError, '^--from = .*: must be a path of'):
      fork.parse('gs://b/x@3')

  @parameterized.parameters('cache_dir', 'model__checkpoint')
  def test_a_config_refuses_it(self, field):
    config = tiny.config(**{field: 'gs://b/x'})
    name = field.replace('__', '.')
    with self.assertRaisesRegex(ValueError, f'^{name} = {_MESSAGE}'):
      rules.validate(config)

  @parameterized.parameters(
    (report.main, ['a', '--out=gs://b/x']),
    (report.main, ['sweep', 'gs://b/x', '--level=1', '--mu=1']),
    (report.main, ['sweep', 'a', '--level=1', '--mu=1', '--out=gs://b/x']),
    (report.main, ['figure', 'A2', 'gs://b/x']),
    (report.main, ['figure', 'A2', 'a', '--out=gs://b/x']),
    (export.main, ['--workdir=a', '--out=gs://b/x']),
    *(
      (
        evaluation_flags.parse,
        ['--benchmarks=a', '--data_dir=a', '--out=a', f'--{flag}=gs://b/x'],
      )
      for flag in ('out', 'data_dir', 'model')
    ),
  )
  def test_a_program_refuses_it(self, main, arguments):
    printed = io.StringIO()
    with (
      contextlib.redirect_stderr(printed),
      self.assertRaises(SystemExit) as ended,
    ):
      main(arguments)
    self.assertEqual(ended.exception.code, 2)
    self.assertIn(_MESSAGE, printed.getvalue())

  @parameterized.parameters(
    (report.main, ['abfs://b/x']),
    (export.main, ['--workdir=abfs://b/x', '--out=a']),
    (inspect.main, ['abfs://b/x']),
    (
      evaluation_flags.parse,
      ['--benchmarks=a', '--data_dir=a', '--out=a', '--workdir=abfs://b/x'],
    ),
  )
  def test_a_program_refuses_another_address_of_a_run(self, main, arguments):
    printed = io.StringIO()
    with (
      contextlib.redirect_stderr(printed),
      self.assertRaises(SystemExit) as ended,
    ):
      main(arguments)
    self.assertEqual(ended.exception.code, 2)
    self.assertIn(_NO_RUN, printed.getvalue())

  @parameterized.parameters(
    (sweep, '--sweep', '--sweep=gs://b/x', '--out=a'),
    (sweep, '--out', '--sweep=a.py', '--out=gs://b/x'),
    (of_fit, '--out', 'a', '--out=gs://b/x'),
    (of_fit, 'RUN', 'gs://b/x', '--out=a'),
  )
  def test_a_program_with_absl_flags_refuses_it(
    self, program, name, *arguments
  ):
    printed = io.StringIO()
    with contextlib.redirect_stderr(printed):
      try:
        _, _, err = mains.ran(program.main, program.FLAGS, *arguments)
      except AssertionError as ended:  # An exit with a text.
        err = str(ended.__context__)
    self.assertIn(f'error: {name} = {_MESSAGE}', err)
