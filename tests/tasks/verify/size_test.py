"""Tests of replay_rl.tasks.verify.size."""

import time

from absl.testing import parameterized

from replay_rl.tasks.verify import size

DEPTH = size.MAX_DEPTH


class IsTooLargeTest(parameterized.TestCase):
  @parameterized.parameters(
    # Towers.
    '9^{9^{9^9}}',
    '9^{9^9}',
    '9**9**9',
    '9^9^9',
    '{9^9}^{9^9}',
    r'\left(9^{9}\right)^{9^{9}}',
    '9_{x}^{9_x^{9^9}}',
    r'\frac{1}{9^{9^9}}',
    '2^{2^{20}}',
    'e^{e^{9^9}}',
    # Large exponents.
    '2^{999999999}',
    '2^{-999999999}',
    '10^{1,000,000}',
    r'\frac{2}{7}^{999999999}',
    r'\left(\frac{2}{7}\right)^{999999999}',
    r'\log_{10} 10^{999999999}',
    r'2^{\frac{1}{0.0000001}}',
    '2^{1/.0000001}',
    '2^{9^{999}}',
    '2^{0*9^{999}+9^{99}}',
    '(1+1)^{999999}',
    r'(\frac{1}{1000}+\frac{1}{1000})^{20000}',
    '(x+1)^{1001}',
    '(2(x-1))^{1001}',
    r'(1+\sqrt{2})^{1001}',
    # Factorials.
    '1000000!',
    '25206!',
    '(10^{9})!',
    '10^{9}!',
    '9!!!',
    '(((3!)!)!)!',
    r'\frac{1000000!}{999998!}',
    'x' + '!' * (DEPTH + 1),
    '|' * (DEPTH + 1) + 'x',
    r'\binom{1000000}{500000}',
    # Loops.
    r'\prod_{k=1}^{1001} k',
    r'\sum_{k=1}^{10^9} \frac{1}{k^k}',
    # Nesting.
    '(' * (DEPTH + 1) + '5' + ')' * (DEPTH + 1),
    r'\{' * (DEPTH + 1) + '5',
    r'\left[' * (DEPTH + 1) + '5',
    r'\sqrt{' * (DEPTH + 1) + '5',
    'x^' * (DEPTH + 1) + 'x',
    '9^{9^{9^9',
    '1' * (size.MAX_DIGITS + 1),
  )
  def test_what_takes_too_long_is_recognised(self, text):
    self.assertTrue(size.is_too_large(text))

  @parameterized.parameters(
    '',
    '!',
    '^',
    '5',
    '2^{100}',
    '10!',
    '2^{2^3}',
    '2^{2^{2^{2^2}}}',
    '3^{2019}',
    '3^{2019-1}',
    '10^{100}',
    '10^{10000}',
    '2^{5!}',
    '(3!)!',
    '3!!!',
    '100!',
    '25205!',
    r'\frac{100!}{2^{50}}',
    r'\frac{d !}{2 k(d-k) !}',
    r'\binom{100}{50}',
    r'\binom{2n}{n}',
    r'\binom{10^{9}}{2}',
    r'\binom{100000}{50000}',
    'x^{999999999}',
    'x_{999999999}^2',
    '2^{a_{999999999}}',
    '52_{8}',
    '1^{999999999}',
    '(-1)^{999999999}',
    '0^{999999999}',
    '1.5^{999999999}',
    r'2^{1/999999}',
    r'2^{\frac{1}{999999}}',
    r'\sqrt[999999999]{2}',
    'e^{100000}',
    '(x+1)^{1000}',
    '(1+2)^{2019}',
    '(x)(1+1)^{2019}',
    r'\sum_{k=1}^{1000} k',
    r'\sum_{k=0}^{\infty} \frac{1}{2^k}',
    '2^{1000 + 1000 - 5}',
    '+'.join(['999999'] * 1000),
    '(1),' * 100,
    '(' * DEPTH + '5' + ')' * DEPTH,
    'x' + '!' * DEPTH,
    'x^' * DEPTH + 'x',
    '(x,1)^{2019}',
    '|' * DEPTH + 'x' + '|' * DEPTH,
    'x!' * 100,
    ')' * 100 + '(5)',
    '1' * size.MAX_DIGITS,
  )
  def test_what_an_answer_may_have_is_let_through(self, text):
    self.assertFalse(size.is_too_large(text))

  @parameterized.parameters(
    '(', '9^', '1', '!', r'\frac', '_', ' ', '\\', '1,111', '^', '/', 'x!', ')('
  )
  def test_hostile_text_takes_linear_time(self, part):
    started = time.process_time()
    size.is_too_large(part * (10**5 // len(part)))
    # A quadratic search would take minutes.
    self.assertLess(time.process_time() - started, 10)
