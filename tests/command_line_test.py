"""Tests of what programs have in common on the command line."""

import contextlib
import io
from unittest import mock

from absl import flags
from absl.testing import absltest

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
