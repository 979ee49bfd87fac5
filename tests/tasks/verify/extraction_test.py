"""Tests of replay_rl.tasks.verify.extraction."""

import time

from absl.testing import parameterized

from replay_rl.tasks.verify import extraction

BOXED, HASHED, NUMBER = extraction.BOXED, extraction.HASHED, extraction.NUMBER
NUL = chr(0)
MILLION = 10**6


class ExtractTest(parameterized.TestCase):
  @parameterized.parameters(
    (r'It is $\boxed{5}$.', '5'),
    (r'\boxed{\frac{1}{2}} so', r'\frac{1}{2}'),
    (r'\boxed{ 7 }', '7'),
    (r'\boxed {7}', '7'),
    ('\\boxed\n{7}', '7'),
    (r'\fbox{9}', '9'),
    (r'\boxed{1} then \boxed{2}', '2'),
    (r'\boxed{1} then \boxed{2', '1'),
    (r'\boxed{1} then \boxed{ }', '1'),
    (r'\boxed{1} then \boxed{2} #### 3', '2'),
    (r'\boxed{\boxed{5}}', '5'),
    (r'\boxed{x = \boxed{5} \text{ m}}', '5'),
    (r'\boxed{x = \boxed 5 m}', '5'),
    (r'\boxed{\boxed{}}', r'\boxed{}'),
    (r'\boxed{\{1, 2\}}', r'\{1, 2\}'),
    (r'\boxed{1 \\{2}}', r'1 \\{2}'),
    ('{{ \\boxed{6}', '6'),
    (r'}} \boxed{6}}', '6'),
    (r'\boxed 5.', '5'),
    (r'\boxed12', '12'),
    (r'\boxed 3/4', '3/4'),
    (r'\boxed -1,234.5 m', '-1,234.5'),
    (r'\boxed{\text{even}}', r'\text{even}'),
    (f'\\boxed{{{NUL}}}', NUL),
    ('\\boxed{\ud800}', '\ud800'),
    ('\\boxed{\u0663}', '\u0663'),
  )
  def test_the_last_complete_box_is_the_answer(self, response, answer):
    self.assertEqual(extraction.extract(response), (answer, BOXED))

  @parameterized.parameters(
    (r'\boxed word', None),
    (r'\boxedfoo{5} or', ('5', NUMBER)),
    (r'\boxed{1} not \boxedx{2}', ('1', BOXED)),
    (r'\\boxed{5}', ('5', NUMBER)),
    (r'\boxed{} is 3', ('3', NUMBER)),
    (r'\boxed{3', ('3', NUMBER)),
    (r'\boxed{4}}{', ('4', BOXED)),
  )
  def test_what_is_no_complete_box_is_not_taken_for_one(self, response, actual):
    self.assertEqual(extraction.extract(response), actual)

  @parameterized.parameters(
    ('12 + 3 = 15\n#### 15', '15'),
    ('#### 1 \n#### 2,345 \nand 7', '2,345'),
    ('####x = 5', 'x = 5'),
    ('##### 8', '8'),
  )
  def test_else_what_follows_the_last_four_hashes(self, response, answer):
    self.assertEqual(extraction.extract(response), (answer, HASHED))

  @parameterized.parameters(
    ('from 3 to 4', '4'),
    ('x=-3', '-3'),
    ('x = \u22127', '\u22127'),
    ('5-3', '3'),
    ('f(x)-3', '3'),
    ('x-3', '3'),
    ('$+5$', '+5'),
    ('costs $5.', '5'),
    ('it is 1,234,567.89!', '1,234,567.89'),
    ('12,3456', '3456'),
    ('1,2', '2'),
    ('1234,567', '567'),
    ('-.5', '-.5'),
    ('1e5', '1e5'),
    ('-1.5E-7 m', '-1.5E-7'),
    ('about 3/4 of', '3/4'),
    (r'is \frac{3}{4}.', r'\frac{3}{4}'),
    (r'is -\dfrac{3}{4}', r'-\dfrac{3}{4}'),
    (r'is \frac{3}{x}', '3'),
    (r'50\% of', r'50\%'),
    ('50 % of', '50 %'),
    ('9**9**9', '9'),
    ('5 as in H2O', '5'),
    ('5 or x_1', '5'),
    ('5 or \u0663\u0664', '5'),
    ('5\n####\n', '5'),
  )
  def test_else_the_last_number(self, response, answer):
    self.assertEqual(extraction.extract(response), (answer, NUMBER))

  @parameterized.parameters(
    '', ' ', 'no idea', '\u0663', '\u00b2', NUL, '\ud800', '####', '\\', '}{'
  )
  def test_there_may_be_no_answer(self, response):
    self.assertIsNone(extraction.extract(response))

  @parameterized.named_parameters(
    ('digits', '1' * MILLION, MILLION),
    ('digits_in_groups', '123,' * (MILLION // 4) + '123', MILLION + 3),
    ('digits_and_commas', '1,' * (MILLION // 2), 1),
    ('nested_boxes', '\\boxed{' * 10_000 + '5' + '}' * 10_000, 1),
    ('many_nested', '\\boxed{' * 100_000 + '5' + '}' * 100_000, 1),
    ('nested_braces', '\\boxed{' + '{' * 10_000 + '}' * 10_001, 20_000),
    ('unbalanced_boxes', '\\boxed{' * 100_000, None),
    ('many_boxes', '\\boxed{5}' * 100_000, 1),
    ('open_braces', '\\boxed' + '{' * MILLION, None),
    ('backslashes', '\\' * MILLION, None),
    ('spaced_boxes', ('\\boxed' + ' ' * 94) * 10_000, None),
    ('hashes', '#' * MILLION, None),
    ('signs', '-' * MILLION, None),
    ('fraction_of_digits', '\\frac{' + '1' * MILLION, MILLION),
    ('open_fractions', '\\frac{1}{' * 100_000, 1),
    ('a_name_of_digits', 'x' + '1' * MILLION, None),
    ('dots', '1.' * (MILLION // 2), 3),
    ('slashes', '1/' * (MILLION // 2), 3),
    ('nuls', NUL * MILLION, None),
  )
  def test_hostile_text_takes_linear_time(self, response, length):
    started = time.process_time()
    actual = extraction.extract(response)
    # Well above what it takes; a quadratic search would take minutes.
    self.assertLess(time.process_time() - started, 5)
    self.assertEqual(None if actual is None else len(actual[0]), length)
