"""Tests of what programs have in common on the command line."""

import contextlib
import io
from unittest import mock

from absl import flags
from absl.testing import absltest
from ml_collections import config_flags

from replay_rl import command_line


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

  def test_a_long_text_is_cut_in_its_middle(self):
    file = self.create_tempfile(content=f'raise ValueError("{"x" * 5000}!")')
    text = self._refused_config(file.full_path)
    self.assertEqual(text, f'error: {"x" * 500} ... {"x" * 499}!\n')
