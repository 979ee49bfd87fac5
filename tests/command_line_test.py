"""Tests of what programs have in common on the command line."""

import contextlib
import io
import os
import subprocess
import sys
from unittest import mock

from absl import flags
from absl.testing import absltest
from ml_collections import config_flags

from replay_rl import command_line

_SECTIONS = """
import dataclasses
@dataclasses.dataclass
class Inner:
  x: int = 1
  y: int = 2
@dataclasses.dataclass
class Outer:
  inner: Inner
  none: Inner | None = None
def get_config():
  return Outer(inner=Inner())
"""


def _own_flags() -> flags.FlagValues:
  own = flags.FlagValues()
  flags.DEFINE_integer('count', 1, 'A number.', flag_values=own)
  return own


class ParseTest(absltest.TestCase):
  def test_flags_of_a_program_leave_the_global_ones_parsed(self):
    own, everyones = _own_flags(), flags.FlagValues()
    with mock.patch.object(flags, 'FLAGS', everyones):
      rest = command_line.parse(['program', '--count=3', 'x'], own)
    self.assertEqual(rest, ['program', 'x'])
    self.assertEqual(own['count'].value, 3)
    # What absl itself reads of them, such as how much to log.
    self.assertTrue(everyones.is_parsed())

  def test_a_wrong_flag_ends_with_one_line(self):
    for flag, message in (
      ('--count=many', 'many'),
      ('--cuont=3', "Unknown command line flag 'cuont'"),
    ):
      with (
        contextlib.redirect_stderr(io.StringIO()) as printed,
        self.assertRaises(SystemExit) as raised,
      ):
        command_line.parse(['program', flag], _own_flags())
      self.assertEqual(raised.exception.code, 2)
      self.assertRegex(printed.getvalue(), f'^error: .*{message}')

  def _refused_config(self, path) -> str:
    """Returns what is printed for a config that cannot be read."""
    own = flags.FlagValues()
    config_flags.DEFINE_config_file('config', flag_values=own)
    with (
      contextlib.redirect_stderr(io.StringIO()) as printed,
      self.assertRaises(SystemExit) as raised,
    ):
      command_line.parse(['program', f'--config={path}'], own)
    self.assertEqual(raised.exception.code, 2)
    text = printed.getvalue()
    self.assertLen(text.splitlines(), 1)
    self.assertStartsWith(text, 'error: ')
    return text

  def test_a_config_that_cannot_be_read_ends_with_one_line(self):
    missing = f'{self.create_tempdir().full_path}/missing.py'
    self.assertIn(missing, self._refused_config(missing))
    for source, message in (
      ('get_config() return', 'SyntaxError: '),
      ('import no_such_module', 'ModuleNotFoundError: '),
      ('def get_config():\n  return 1 / 0', 'ZeroDivisionError: division'),
      ('def get_config():\n  return get_config()', 'RecursionError: maximum'),
      ('raise ValueError("one\\n  two")', 'error: one two'),
    ):
      file = self.create_tempfile(content=source).full_path
      self.assertIn(message, self._refused_config(file))

  def _refused_flags(self, *flags_of_config) -> str:
    """Returns what is printed for flags of a config with two sections."""
    own = flags.FlagValues()
    file = self.create_tempfile('a.py', _SECTIONS).full_path
    argv = ['program', f'--config={file}', *flags_of_config]
    with (
      mock.patch.object(sys, 'argv', argv),
      contextlib.redirect_stderr(io.StringIO()) as printed,
      self.assertRaises(SystemExit),
    ):
      config_flags.DEFINE_config_file('config', flag_values=own)
      command_line.parse(argv, own)
    return printed.getvalue()

  def test_a_field_that_is_not_there_is_answered_with_those_that_are(self):
    for given, message in (
      (
        ['--config.w=1'],
        "--config.w = '1': must have, in the place of w, one ",
      ),
      (['--config.w.x=1'], "--config.w.x = '1': must have, in the place of w,"),
      (['--config.w', '1'], "--config.w = '1': must have, in the place of w, "),
      (['--config.inner.w=1'], 'in the place of w, one of x, y\n'),
      (['--config.none.x=1'], 'must be absent, because none is None in this'),
      (['--config.inner=1'], "--config.inner = '1': must be given field by "),
    ):
      text = self._refused_flags(*given)
      self.assertIn(message, text)
      self.assertLen(text.splitlines(), 1)
    self.assertEndsWith(self._refused_flags('--config.w=1'), ' inner, none\n')

  def test_an_arm_of_a_file_without_arms_is_refused(self):
    file = self.create_tempfile('b.py', _SECTIONS).full_path
    self.assertEqual(
      self._refused_config(f'{file}:x'),
      f"error: --config = '{file}:x': must be without :ARM, as it has no "
      'arms\n',
    )

  def test_the_files_of_the_package_are_found_from_any_folder(self):
    folder = self.create_tempdir().full_path
    for given in ('configs/quickstart.py:reuse_4', 'quickstart:reuse_4'):
      for arguments in ([f'--config={given}'], ['--config', given]):
        own = flags.FlagValues()
        argv = ['program', *arguments]
        with mock.patch.object(sys, 'argv', argv), contextlib.chdir(folder):
          config_flags.DEFINE_config_file('config', flag_values=own)
          command_line.parse(argv, own)
        self.assertEqual(own['config'].value.name, 'reuse 4')

  def test_a_file_of_the_current_folder_comes_first(self):
    folder = self.create_tempdir()
    folder.create_file('configs/quickstart.py', 'raise ValueError("mine")')
    with contextlib.chdir(folder.full_path):
      text = self._refused_config('configs/quickstart.py')
    self.assertEqual(text, 'error: mine\n')

  def test_a_file_that_is_nowhere_is_answered_with_those_there_are(self):
    for path in ('configs/addition.py', 'elsewhere/quickstart.py', 'arms'):
      text = self._refused_config(path)
      self.assertStartsWith(
        text, f"error: --config = '{path}': must be FILE.py"
      )
      self.assertIn(' gsm8k_tiny, ', text)
      self.assertNotIn('base_small', text)

  def test_help_has_the_text_and_the_flags(self):
    for flag in ('--help', '-h'):
      with (
        contextlib.redirect_stdout(io.StringIO()) as printed,
        self.assertRaises(SystemExit) as raised,
      ):
        command_line.parse(['program', flag], _own_flags(), 'Counts.')
      self.assertEqual(raised.exception.code, 0)
      self.assertStartsWith(printed.getvalue(), 'Counts.\n')
      self.assertIn('--count: A number.', printed.getvalue())

  def test_a_long_text_is_cut_in_its_middle(self):
    file = self.create_tempfile(content=f'raise ValueError("{"x" * 5000}!")')
    text = self._refused_config(file.full_path)
    self.assertEqual(text, f'error: {"x" * 1000} ... {"x" * 999}!\n')


class LastLineTest(absltest.TestCase):
  def test_bad_input_ends_the_program_with_its_line(self):
    with self.assertRaises(SystemExit) as raised, command_line.one_line():
      raise ValueError('x = 1: must be 2')
    self.assertEqual(raised.exception.code, 'error: x = 1: must be 2')

  def test_a_failure_of_the_machine_ends_it_at_once(self):
    # In a process of its own, because no handler of Python may run any more.
    program = (
      'import atexit\n'
      'from replay_rl import command_line\n'
      'atexit.register(print, "late")\n'
      'with command_line.one_line():\n'
      '  print("early")\n'
      '  open("/nowhere/file")\n'
    )
    result = subprocess.run(
      [sys.executable, '-c', program], capture_output=True, text=True
    )
    self.assertEqual(result.returncode, 1)
    self.assertEqual(result.stdout, 'early\n')
    self.assertEqual(
      result.stderr,
      "error: path = '/nowhere/file': must be usable (No such file or "
      'directory)\n',
    )

  def test_errors_without_a_number_say_their_own_words(self):
    self.assertEqual(command_line.last_line(OSError('a = b')), 'error: a = b')

  def test_ctrl_c_has_its_status(self):
    with (
      contextlib.redirect_stderr(io.StringIO()) as printed,
      self.assertRaises(SystemExit) as raised,
      command_line.one_line(),
    ):
      raise KeyboardInterrupt
    self.assertEqual(raised.exception.code, 130)
    self.assertLen(printed.getvalue().splitlines(), 1)

  def test_other_errors_pass_with_their_traceback(self):
    with self.assertRaises(KeyError), command_line.one_line():
      raise KeyError('a defect')


class LastingOutputTest(absltest.TestCase):
  def _run(self, redirection):
    program = (
      'from replay_rl import command_line\n'
      'with command_line.lasting_output():\n'
      '  print("ä" * 100_000, flush=True)\n'
      '  print("more")\n'
      '  descriptor = open("/dev/null").fileno()\n'
      'assert descriptor > 2, descriptor\n'
    )
    return subprocess.run(
      [
        'bash',
        '-c',
        f'exec "$0" -c "$1" {redirection}',
        sys.executable,
        program,
      ],
      env=os.environ | {'PYTHONIOENCODING': 'ascii'},
      stderr=subprocess.PIPE,
      text=True,
      check=False,
    )

  def test_a_full_disk_behind_the_output_is_a_warning(self):
    result = self._run('> /dev/full')
    self.assertEqual(result.returncode, 0, result.stderr)
    self.assertEqual(
      result.stderr,
      'warning: standard output is lost (No space left on device); the program '
      'goes on\n',
    )

  def test_a_reader_that_ends_is_a_warning(self):
    result = self._run('> >(head -c 1 > /dev/null)')
    self.assertEqual(result.returncode, 0, result.stderr)
    self.assertIn('lost (Broken pipe)', result.stderr)

  def test_a_closed_output_takes_no_number_of_another_file(self):
    result = self._run('>&-')
    self.assertEqual((result.returncode, result.stderr), (0, ''))
