"""Answers at the edges, from the text of a response to its verdict."""

import pytest
from absl.testing import parameterized

from replay_rl.tasks.verify import verifier as verifier_lib

pytest.importorskip('math_verify', reason="needs pip install -e '.[math]'")

# (reference, answer, status)
ANSWERS = (
  ('1234', r'1\,234', 'correct'),
  ('1234', '1 234', 'correct'),
  (r'\emptyset', r'\varnothing', 'correct'),
  (r'\frac{1}{3}', r'0.\overline{3}', 'correct'),
  (r'(-\infty,3)', 'x<3', 'correct'),
  ('5', '> 5', 'wrong'),
  ('5', r'\ge 5', 'wrong'),
  ('5', r'\ne 5', 'wrong'),
  ('5', '5,5', 'wrong'),
  ('11', '5 6', 'wrong'),
  ('0.0000002', '1/10000000', 'wrong'),
  # Moderately large numbers are no attack.
  ('1267650600228229401496703205376', '2^{100}', 'correct'),
  ('3628800', '10!', 'correct'),
  ('256', '2^{2^3}', 'correct'),
  ('3^{2019}', r'3 \cdot 3^{2018}', 'correct'),
)
# A limit so long that the test would not end if a parser saw one of them.
ANSWER_TIMEOUT = 600.0
HOSTILE = (
  r'9^{9^{9^9}}',
  r'\left(9^{9}\right)^{9^{9}}',
  '99999999^{99999999}',
  '10^{-10000000}',
  r'(1+\sqrt{2})^{100000000}',
  '1000000!',
  r'\left(10^{9}\right)!',
  '((((3!)!)!)!)!',
  r'\frac{1000000!}{999998!}',
  r'\binom{1000000}{500000}',
  r'\prod_{k=1}^{1000000000} (k^2+1)',
  '(' * 50 + '5' + ')' * 50,
  '{' * 50 + '5' + '}' * 50,
  'x^{' * 25 + '2' + '}' * 25,
)


class AnswersTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.verifier = verifier_lib.Verifier(
      num_workers=1,
      answer_timeout=ANSWER_TIMEOUT,
      memory_limit=1 << 30,
      max_answer_chars=1000,
    )
    cls.addClassCleanup(cls.verifier.close)

  def statuses(self, answers, references):
    verdicts = self.verifier.judge(
      [rf'So it is $\boxed{{{answer}}}$.' for answer in answers], references
    )
    return [verdict.status for verdict in verdicts]

  def test_answers_are_judged_as_people_would(self):
    references, answers, expected = zip(*ANSWERS, strict=True)
    statuses = self.statuses(answers, references)
    self.assertEqual(
      list(zip(answers, statuses, strict=True)),
      list(zip(answers, expected, strict=True)),
    )

  def test_what_never_ends_is_unreadable_at_once(self):
    statuses = self.statuses(HOSTILE, ['5'] * len(HOSTILE))
    self.assertEqual(
      dict(zip(HOSTILE, statuses, strict=True)),
      dict.fromkeys(HOSTILE, 'unreadable'),
    )
