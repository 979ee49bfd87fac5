"""Tests of replay_rl.tasks.verify.equality."""

import re
import sys
import time
from unittest import mock

import pytest
from absl.testing import parameterized

from replay_rl.tasks.verify import equality
from replay_rl.tasks.verify import worker
from tests.tasks.verify import equality_cases


class CompareTest(parameterized.TestCase):
  @parameterized.parameters(*equality_cases.COMPARED)
  def test_what_is_cheap_to_tell_is_told_exactly(self, answer, reference, is_):
    self.assertIs(equality.compare(answer, reference), is_)
    self.assertIs(equality.compare(reference, answer), is_)
    self.assertTrue(equality.compare(answer, answer))

  @parameterized.named_parameters(
    ('digits', '1' * 10**6),
    ('zeros', '0' * 10**6),
    ('groups', '1' + ',000' * 250_000),
    ('spaces', 'a' + ' ' * 10**6 + '='),
    ('brackets', '(' * 10**6),
    ('elements', '(' + '1,' * 500_000 + '1)'),
    ('backslashes', '\\' * 10**6),
    ('dollars', '$' * 10**6),
    ('stops', '.' * 10**6 + ','),
    ('texts', r'\text{' * 150_000),
  )
  def test_hostile_text_takes_linear_time(self, text):
    started = time.process_time()
    self.assertIsNot(equality.compare(text + '1', text + '2'), True)
    self.assertLess(time.process_time() - started, 20)

  def test_what_the_parser_is_for_is_left_to_it(self):
    for answer, reference, _ in equality_cases.PARSED:
      self.assertIsNone(equality.compare(answer, reference))


# Of the tables in the docstring: reference, answer, verdict.
ROW = re.compile(r'\| `(.+?)` +\| `(.+?)` +\| (correct|wrong) +\|')


class VerifyTest(parameterized.TestCase):
  def test_the_tables_of_the_docstring_say_what_is_done(self):
    pytest.importorskip('math_verify', reason="needs pip install -e '.[math]'")
    lines = [
      line for line in equality.__doc__.splitlines() if line.startswith('| `')
    ]
    self.assertGreater(len(lines), 40)
    for line in lines:
      with self.subTest(line=line):
        reference, answer, verdict = ROW.fullmatch(line).groups()
        is_correct = equality.verify(answer, reference)
        self.assertEqual('correct' if is_correct else 'wrong', verdict)

  @parameterized.parameters(*equality_cases.UNREADABLE)
  def test_what_no_parser_should_see_is_unreadable(self, answer, reference):
    pytest.importorskip('math_verify', reason="needs pip install -e '.[math]'")
    with self.assertRaises(worker.UnreadableError):
      equality.verify(answer, reference)

  def test_verify_is_compare_then_math_verify(self):
    pytest.importorskip('math_verify', reason="needs pip install -e '.[math]'")
    self.assertTrue(equality.verify('5', '5.0'))
    # math-verify drops the base.
    self.assertFalse(equality.verify('52_7', '52_8'))
    self.assertTrue(equality.verify_parsed('52_7', '52_8'))
    self.assertTrue(equality.verify('2x', 'x+x'))
    with self.assertRaises(worker.UnreadableError):
      equality.verify('\0', '5')

  def test_without_math_verify_the_error_names_the_extra(self):
    with mock.patch.dict(sys.modules, {'math_verify': None}):
      self.assertTrue(equality.verify('5', '5.0'))
      with self.assertRaisesRegex(ImportError, r"pip install -e '.\[math\]'"):
        equality.verify('x', '5')
