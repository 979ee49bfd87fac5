"""Tests of replay_rl.tasks.verify.verifier."""

import json
import os
import pathlib
import random
from unittest import mock

import pytest
from absl.testing import parameterized

from replay_rl.tasks.verify import verifier as verifier_lib
from tests import shared_data
from tests.tasks.verify import equality_cases

pytest.importorskip('math_verify', reason="needs pip install -e '.[math]'")

INJECTIONS = (
  "__import__('os').system('touch X')",
  r'\text{__import__("os").system("touch X")}',
  "().__class__.__base__.__subclasses__()[0].__init__('touch X')",
  'eval(\'open("X","w")\')',
  "exec(open('X','w'))",
  "1+__import__('os').system('touch X')",
  r'\operatorname{__import__}(os).system(touch X)',
  r'\input{|touch X}\write18{touch X}',
  "lambda: open('X','w')",
)
# No limit on size recognises it.
ENDLESS = r'\int_0^{100} \frac{\sin x^3}{x^x+1} dx'


def boxed(answer):
  return rf'So it is $\boxed{{{answer}}}$.'


HOSTILE = {
  'no_power': ('9**9**9', 'wrong'),
  'endless': (boxed(ENDLESS), 'timeout'),
  'power_of_powers': (r'\boxed{9^{9^{9^9}}}', 'unreadable'),
  'nested_braces': (
    r'\boxed{' + '{' * 10_000 + '5' + '}' * 10_001,
    'unreadable',
  ),
  'million_digits': ('1' * 10**6, 'unreadable'),
  'million_boxed_digits': (r'\boxed{' + '1' * 10**6 + '}', 'unreadable'),
  'nul': ('\\boxed{\0}', 'unreadable'),
  'nul_and_number': ('\0 5 \0', 'wrong'),
  'surrogate': ('\\boxed{\ud800}', 'unreadable'),
  'unbalanced': (r'\boxed{' * 1000, 'no answer'),
  'unicode_digits': ('\\boxed{\u0661\u0660}', 'unreadable'),
  'unboxed_unicode_digits': ('\u0661\u0660', 'no answer'),
  'empty': ('', 'no answer'),
  'factorial': (r'\boxed{10**6!}', 'unreadable'),
  'large_factorial': (r'\boxed{(10^{9})!}', 'unreadable'),
}
# Takes about as long to judge as is allowed.
SLOW = r'\boxed{\begin{pmatrix}' + r'1&2&3\\' * 900 + r'\end{pmatrix}}'


def make(num_workers=2, answer_timeout=1.0, max_answer_chars=10_000):
  return verifier_lib.Verifier(
    num_workers=num_workers,
    answer_timeout=answer_timeout,
    memory_limit=1 << 30,
    max_answer_chars=max_answer_chars,
  )


class VerifierTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.verifier = make()
    cls.addClassCleanup(cls.verifier.close)

  def test_answers_of_each_kind_are_judged_as_people_would(self):
    cases = [
      case
      for case in equality_cases.COMPARED
      if case[2] is not None and case[0]
    ]
    cases += equality_cases.PARSED
    verdicts = self.verifier.judge(
      [boxed(case[0]) for case in cases], [case[1] for case in cases]
    )
    for (answer, reference, is_correct), verdict in zip(
      cases, verdicts, strict=True
    ):
      with self.subTest(answer=answer, reference=reference):
        status = 'correct' if is_correct else 'wrong'
        self.assertEqual(verdict, (is_correct, answer, 'boxed', status))

  def test_verdicts_by_hand(self):
    verdicts = self.verifier.judge(
      ['#### 1,000', 'it is 1000', 'it is 999', 'no idea', r'\boxed{$', ''],
      ['1000'] * 6,
    )
    self.assertEqual(
      verdicts,
      [
        (True, '1,000', 'hashed', 'correct'),
        (True, '1000', 'number', 'correct'),
        (False, '999', 'number', 'wrong'),
        (False, None, '', 'no answer'),
        (False, None, '', 'no answer'),
        (False, None, '', 'no answer'),
      ],
    )
    self.assertEqual(
      verifier_lib.count(verdicts),
      {
        'correct': 2,
        'wrong': 1,
        'no answer': 3,
        'timeout': 0,
        'crashed': 0,
        'unreadable': 0,
      },
    )

  def test_hostile_text_has_a_defined_verdict(self):
    responses = [response for response, _ in HOSTILE.values()]
    expected = [status for _, status in HOSTILE.values()]
    # Innocents before, between and after.
    mixed = [boxed('2x')]
    for response in responses:
      mixed += [response, boxed('2x')]
    verdicts = self.verifier.judge(mixed, ['x+x'] * len(mixed))
    statuses = [verdict.status for verdict in verdicts]
    self.assertEqual(
      dict(zip(HOSTILE, statuses[1::2], strict=True)),
      dict(zip(HOSTILE, expected, strict=True)),
    )
    self.assertEqual(set(statuses[0::2]), {'correct'})

  def test_a_slow_answer_is_wrong_or_out_of_time(self):
    verdicts = self.verifier.judge([SLOW, boxed('2x')], ['x+x'] * 2)
    self.assertIn(verdicts[0].status, ('wrong', 'timeout'))
    self.assertEqual(verdicts[1].status, 'correct')

  def test_answers_are_never_run(self):
    folder = pathlib.Path(self.create_tempdir().full_path)
    target = folder / 'injected'
    answers = [text.replace('X', str(target)) for text in INJECTIONS]
    answers += [text.replace('X', 'injected') for text in INJECTIONS]
    responses = [boxed(answer) for answer in answers]
    responses += [f'#### {answer}' for answer in answers]
    before = set(os.listdir())
    verdicts = self.verifier.judge(responses, ['x+x'] * len(responses))
    self.assertFalse(any(verdict.is_correct for verdict in verdicts))
    self.assertFalse(target.exists())
    self.assertNotIn('injected', set(os.listdir()) - before)

  def test_an_answer_that_is_repeated_is_judged_once(self):
    responses = [boxed('2x'), boxed('x+x'), boxed('3x'), boxed('2x')] * 5
    references = ['x+x'] * 10 + ['2x'] * 10
    run = self.verifier._pool.run
    with mock.patch.object(self.verifier._pool, 'run', wraps=run) as spy:
      verdicts = self.verifier.judge(responses, references)
    # The rest are equal as strings.
    self.assertCountEqual(
      spy.call_args.args[0],
      [('2x', 'x+x'), ('3x', 'x+x'), ('x+x', '2x'), ('3x', '2x')],
    )
    self.assertEqual(
      [verdict.is_correct for verdict in verdicts],
      [True, True, False, True] * 5,
    )

  def test_what_is_cheap_to_tell_needs_no_worker(self):
    run = self.verifier._pool.run
    with mock.patch.object(self.verifier._pool, 'run', wraps=run) as spy:
      self.verifier.judge(['5', '6', boxed('(1,2)')], ['5', '5', '(1,3)'])
    spy.assert_called_once_with([])

  def test_verdicts_do_not_depend_on_the_number_of_workers(self):
    rng = random.Random(0)
    cases = [*equality_cases.PARSED, (ENDLESS, 'x', False)] * 2
    rng.shuffle(cases)
    rows = [boxed(case[0]) for case in cases], [case[1] for case in cases]
    with make(num_workers=1) as alone:
      self.assertEqual(alone.judge(*rows), self.verifier.judge(*rows))

  def test_an_answer_may_be_as_long_as_the_limit_and_no_longer(self):
    with make(num_workers=1, max_answer_chars=5) as short:
      verdicts = short.judge(
        ['12345', '123456', r'\boxed{1+1+1}'], ['12345'] * 3
      )
      self.assertEqual(
        verdicts,
        [
          (True, '12345', 'number', 'correct'),
          (False, '12345', 'number', 'unreadable'),
          (False, '1+1+1', 'boxed', 'wrong'),
        ],
      )
      with self.assertRaisesRegex(
        ValueError, r"references\[1\] = '123456': must"
      ):
        short.judge(['1', '1'], ['1', '123456'])

  def test_no_worker_was_killed_while_it_started(self):
    self.assertEqual(self.verifier.num_killed_starts, 0)

  def test_wrong_input_raises(self):
    with self.assertRaisesRegex(ValueError, r'len\(references\) = 1: must'):
      self.verifier.judge(['1', '2'], ['1'])
    with self.assertRaisesRegex(ValueError, r"references\[1\] = ' ': must"):
      self.verifier.judge(['1', '2'], ['1', ' '])
    with self.assertRaisesRegex(ValueError, 'max_answer_chars = 0: must'):
      make(max_answer_chars=0)

  def test_without_math_verify_the_error_names_the_extra(self):
    with mock.patch('importlib.util.find_spec', return_value=None):
      with self.assertRaisesRegex(ImportError, r"pip install -e '.\[math\]'"):
        make()


@pytest.mark.skipif(shared_data.folder() is None, reason=shared_data.ABSENT)
class BenchmarkTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.verifier = make()
    cls.addClassCleanup(cls.verifier.close)

  @parameterized.parameters('gsm8k', 'aime24', 'amc23', 'math500')
  def test_references_answer_their_own_problem_and_no_other(self, name):
    path = shared_data.folder() / 'benchmarks' / f'{name}.jsonl'
    lines = path.read_text('utf-8').splitlines()
    references = [json.loads(line)['answer'] for line in lines][:200]
    responses = [boxed(reference) for reference in references]
    own = self.verifier.judge(responses, references)
    others = self.verifier.judge(responses, references[1:] + references[:1])
    share = sum(verdict.is_correct for verdict in own) / len(own)
    self.assertGreaterEqual(share, 0.99 if name == 'math500' else 1)
    for position, verdict in enumerate(others):
      other = references[(position + 1) % len(references)]
      if verdict.is_correct:
        # Equal as numbers, or `x=5` and 5.
        self.assertEqual(verdict.answer.split('=')[-1], other.split('=')[-1])
