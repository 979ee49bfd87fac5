"""Tests of replay_rl.tasks.verifiers."""

import json
import os
import pathlib
import random
import sys
import time
from unittest import mock

import pytest
from absl.testing import parameterized

from replay_rl.tasks import verifier_worker
from replay_rl.tasks import verifiers
from tests import shared_data

pytest.importorskip('math_verify', reason="needs pip install -e '.[math]'")

MINUS = '\u2212'
# (answer, reference, is correct): settled without the parser.
COMPARED = (
  ('5', '5', True),
  ('5', '6', False),
  ('-5', '5', False),
  (f'{MINUS}5', '-5', True),
  ('+5', '5', True),
  ('5.', '5', True),
  ('007', '7', True),
  ('5.0', '5', True),
  ('.50', '0.5', True),
  ('0.1', '0.10000000000000000001', False),
  ('1.0000001', '1', False),
  ('9007199254740993', '9007199254740992', False),
  ('1,234', '1234', True),
  ('12,34', '1234', None),
  ('1{,}234', '1,234', True),
  (r'11,\! 111,\! 100', '11111100', True),
  (r'\$32,348', '32348', True),
  ('$18.90', '18.9', True),
  ('1e5', '100000', True),
  ('1.5e-7', r'1.5 \times 10^{-7}', True),
  (r'3 \cdot 10^{-10}', '2e-10', False),
  ('1e11', '10^{11}', True),
  ('-10^2', '-100', True),
  ('10^{-12}', '2e-12', False),
  ('1e1001', '1e1001.', True),
  ('1e1001', '1e1002', None),
  ('1e-1001', '1e-1002', None),
  ('9' * 1000, '9' * 999 + '8', False),
  ('9' * 1001, '9' * 1000 + '8', None),
  ('1/2', r'\frac{1}{2}', True),
  (r'\dfrac{2}{4}', r'\frac12', True),
  (r'\frac 59', r'\tfrac{5}{9}', True),
  (r'-\frac{1}{2}', r'\frac{-1}{2}', True),
  (r'-\frac{1}{2}', r'\frac{1}{2}', False),
  ('-1/3', '-1./3', True),
  ('1/3', '1/4', False),
  ('0.5', r'\frac{1}{2}', True),
  ('0.333333', r'\frac{1}{3}', None),
  ('0.3', '3', False),
  (r'\frac{1}{3}', '3', False),
  ('1/0', '1', None),
  ('1/0', '1/0', True),
  ('52_8', '52_{8}', True),
  ('052_8', '52_8', True),
  ('52_7', '52_8', False),
  ('51_8', '52_8', False),
  (r'\left( 3, \frac{\pi}{2} \right)', r'(3,\frac{\pi}{2})', True),
  (r'(3,\frac12)', '(3.0, 0.5)', True),
  ('(3,4)', '(3,5)', False),
  ('(3,4)', '(4,3)', False),
  ('(3,4)', '(3,4]', None),
  ('[3,4)', '(3,4)', None),
  ('(3,4)', '(3,4,5)', None),
  ('(1,234)', '(1234)', None),
  (r'(1,x)', '(1,2)', None),
  ('((1,2),3)', '((1,2),4)', None),
  (r'\pi r', r'\pi\,r', True),
  (r'\pi r', r'\pir', None),
  ('a b', 'ab', None),
  (r'1\\2', r'1\2', None),
  (r'1\\,2', r'1\2', None),
  ('even', r'\text{Even}', True),
  (r'\mathrm{Even}', r'\text{ even }', True),
  ('AB', 'ab', None),
  ('x', '5', None),
  ('5', 'x', None),
  ('.', '5', None),
  ('', '5', None),
  ('\u0665', '5', None),
)
# The same, of kinds that need it.
PARSED = (
  (r'\frac{\sqrt{2}}{2}', r'\frac{1}{\sqrt{2}}', True),
  ('x^2+2x+1', '(x+1)^2', True),
  ('x^2+2x-1', '(x+1)^2', False),
  ('x+1', 'y+1', False),
  # A decimal may have been rounded, in the sixth place.
  ('0.333333', r'\frac{1}{3}', True),
  ('0.33', r'\frac{1}{3}', False),
  (r'2\frac{1}{2}', '2.5', True),
  ('10!', '3628800', True),
  # Sets and several answers, in any order; tuples in theirs.
  ('2,1', '1,2', True),
  ('1 and 2', '1,2', True),
  (r'\{1,2\}', '1,2', True),
  ('1,2', '1,2,3', False),
  (r'1-\sqrt{19}, 1+\sqrt{19}', r'1 \pm \sqrt{19}', True),
  ('(1,2),(3,4)', '(3,4),(1,2)', True),
  ('(x,1,2)', '(1,x,2)', False),
  # Intervals and unions.
  ('[1,2)', '[1,2]', False),
  (r'[2,3)\cup(0,1)', r'(0,1)\cup[2,3)', True),
  (r'[0,\infty)', r'(0,\infty)', False),
  (r'[-2,7]', r'x \in [-2,7]', True),
  # Equations: the reference decides the form.
  ('x=5', '5', True),
  ('5', 'x=5', True),
  ('y=5', 'x=5', False),
  ('1', '2x+y=1', False),
  ('y-2x=3', 'y=2x+3', True),
  # Percent, units, degrees, money.
  (r'50\%', '50', True),
  ('0.5', r'50\%', True),
  (r'5\text{ cm}', '5', True),
  (r'5\text{ cm}', '6', False),
  ('90', r'90^\circ', True),
  # Matrices, complex numbers, letters.
  (
    r'\begin{bmatrix}1&2\\3&4\end{bmatrix}',
    r'\begin{pmatrix}1&2\\3&\frac{8}{2}\end{pmatrix}',
    True,
  ),
  (
    r'\begin{pmatrix}1\\2\end{pmatrix}',
    r'\begin{pmatrix}2\\1\end{pmatrix}',
    False,
  ),
  ('9i+6', '6+9i', True),
  ('6-9i', '6+9i', False),
  ('C', r'\text{(C)}', True),
  (r'\text{D}', r'\text{(C)}', False),
  (r'\text{No}', r'\text{Yes}', False),
  # Held for equal, though one may see it otherwise.
  ('(1,2)', '1,2', True),
  ('52', '52_8', True),
)
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
HOSTILE = {
  'no_power': ('9**9**9', 'wrong'),
  'power_of_powers': (r'\boxed{9^{9^{9^9}}}', 'timeout'),
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
  'large_factorial': (r'\boxed{(10^{9})!}', 'timeout'),
  'matrix': (
    r'\boxed{\begin{pmatrix}' + r'1&2&3\\' * 900 + r'\end{pmatrix}}',
    'timeout',
  ),
}


def pool(num_workers=2, answer_timeout=1.0, max_answer_chars=10_000):
  return verifiers.Pool(
    num_workers=num_workers,
    answer_timeout=answer_timeout,
    memory_limit=1 << 30,
    max_answer_chars=max_answer_chars,
  )


def boxed(answer):
  return rf'So it is $\boxed{{{answer}}}$.'


class CompareTest(parameterized.TestCase):
  @parameterized.parameters(*COMPARED)
  def test_what_is_cheap_to_tell_is_told_exactly(self, answer, reference, is_):
    self.assertIs(verifiers.compare(answer, reference), is_)
    self.assertIs(verifiers.compare(reference, answer), is_)
    self.assertTrue(verifiers.compare(answer, answer))

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
    self.assertIsNot(verifiers.compare(text + '1', text + '2'), True)
    self.assertLess(time.process_time() - started, 20)


class PoolTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.pool = pool()
    cls.addClassCleanup(cls.pool.close)

  def test_answers_of_each_kind_are_judged_as_people_would(self):
    cases = [case for case in COMPARED if case[2] is not None and case[0]]
    cases += PARSED
    verdicts = self.pool.judge(
      [boxed(case[0]) for case in cases], [case[1] for case in cases]
    )
    for (answer, reference, is_correct), verdict in zip(
      cases, verdicts, strict=True
    ):
      with self.subTest(answer=answer, reference=reference):
        status = 'correct' if is_correct else 'wrong'
        self.assertEqual(verdict, (is_correct, answer, 'boxed', status))

  def test_what_the_parser_is_for_is_left_to_it(self):
    for answer, reference, _ in PARSED:
      self.assertIsNone(verifiers.compare(answer, reference))

  def test_verdicts_by_hand(self):
    verdicts = self.pool.judge(
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
      verifiers.count(verdicts),
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
    verdicts = self.pool.judge(mixed, ['x+x'] * len(mixed))
    statuses = [verdict.status for verdict in verdicts]
    self.assertEqual(
      dict(zip(HOSTILE, statuses[1::2], strict=True)),
      dict(zip(HOSTILE, expected, strict=True)),
    )
    self.assertEqual(set(statuses[0::2]), {'correct'})

  def test_answers_are_never_run(self):
    folder = pathlib.Path(self.create_tempdir().full_path)
    target = folder / 'injected'
    answers = [text.replace('X', str(target)) for text in INJECTIONS]
    answers += [text.replace('X', 'injected') for text in INJECTIONS]
    responses = [boxed(answer) for answer in answers]
    responses += [f'#### {answer}' for answer in answers]
    before = set(os.listdir())
    verdicts = self.pool.judge(responses, ['x+x'] * len(responses))
    self.assertFalse(any(verdict.is_correct for verdict in verdicts))
    self.assertFalse(target.exists())
    self.assertNotIn('injected', set(os.listdir()) - before)

  def test_an_answer_that_is_repeated_is_judged_once(self):
    responses = [boxed('2x'), boxed('x+x'), boxed('3x'), boxed('2x')] * 5
    references = ['x+x'] * 10 + ['2x'] * 10
    run = self.pool._workers.run
    with mock.patch.object(self.pool._workers, 'run', wraps=run) as spy:
      verdicts = self.pool.judge(responses, references)
    # The rest are equal as strings.
    self.assertCountEqual(
      spy.call_args.args[0],
      [('2x', 'x+x'), ('3x', 'x+x'), ('x+x', '2x'), ('3x', '2x')],
    )
    self.assertEqual(
      [verdict.is_correct for verdict in verdicts],
      [True, True, False, True] * 5,
    )

  def test_verdicts_do_not_depend_on_the_number_of_workers(self):
    rng = random.Random(0)
    cases = [*PARSED, (r'9^{9^{9^9}}', 'x', False)] * 2
    rng.shuffle(cases)
    rows = [boxed(case[0]) for case in cases], [case[1] for case in cases]
    with pool(num_workers=1) as alone:
      self.assertEqual(alone.judge(*rows), self.pool.judge(*rows))

  def test_an_answer_may_be_as_long_as_the_limit_and_no_longer(self):
    with pool(num_workers=1, max_answer_chars=5) as short:
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
        ValueError, r"references\[1\] = '123456' has 6"
      ):
        short.judge(['1', '1'], ['1', '123456'])

  def test_wrong_input_raises(self):
    with self.assertRaisesRegex(ValueError, '2 responses with 1 references'):
      self.pool.judge(['1', '2'], ['1'])
    with self.assertRaisesRegex(ValueError, r"references\[1\] = ' ' has 1"):
      self.pool.judge(['1', '2'], ['1', ' '])
    with self.assertRaisesRegex(ValueError, 'max_answer_chars = 0, must'):
      pool(max_answer_chars=0)

  def test_a_closed_pool_raises(self):
    with pool(num_workers=1) as closed:
      pass
    with self.assertRaisesRegex(ValueError, 'The pool is closed'):
      closed.judge(['1'], ['1'])

  def test_without_math_verify_the_error_names_the_extra(self):
    with mock.patch('importlib.util.find_spec', return_value=None):
      with self.assertRaisesRegex(ImportError, r"pip install -e '.\[math\]'"):
        pool()
    with mock.patch.dict(sys.modules, {'math_verify': None}):
      self.assertTrue(verifiers.verify('5', '5.0'))
      with self.assertRaisesRegex(ImportError, r"pip install -e '.\[math\]'"):
        verifiers.verify('x', '5')


class VerifyTest(parameterized.TestCase):
  def test_verify_is_compare_then_math_verify(self):
    self.assertTrue(verifiers.verify('5', '5.0'))
    # math-verify drops the base.
    self.assertFalse(verifiers.verify('52_7', '52_8'))
    self.assertTrue(verifiers.verify_parsed('52_7', '52_8'))
    self.assertTrue(verifiers.verify('2x', 'x+x'))
    with self.assertRaises(verifier_worker.UnreadableError):
      verifiers.verify('\0', '5')


@pytest.mark.skipif(shared_data.folder() is None, reason=shared_data.ABSENT)
class BenchmarkTest(parameterized.TestCase):
  @parameterized.parameters('gsm8k', 'aime24', 'amc23', 'math500')
  def test_references_answer_their_own_problem_and_no_other(self, name):
    path = shared_data.folder() / 'benchmarks' / f'{name}.jsonl'
    lines = path.read_text('utf-8').splitlines()
    references = [json.loads(line)['answer'] for line in lines][:200]
    responses = [boxed(reference) for reference in references]
    with pool() as verifier:
      own = verifier.judge(responses, references)
      others = verifier.judge(responses, references[1:] + references[:1])
    share = sum(verdict.is_correct for verdict in own) / len(own)
    self.assertGreaterEqual(share, 0.99 if name == 'math500' else 1)
    for position, verdict in enumerate(others):
      other = references[(position + 1) % len(references)]
      if verdict.is_correct:
        # Equal as numbers, or `x=5` and 5.
        self.assertEqual(verdict.answer.split('=')[-1], other.split('=')[-1])
