"""Tests of replay_rl.tasks.verify.notation; see also those of equality."""

import fractions
import time

from absl.testing import parameterized

from replay_rl.tasks.verify import notation


class NumberTest(parameterized.TestCase):
  @parameterized.parameters(
    ('1 234', '1234', True),
    ('-1 234 567.25', '-4938269/4', True),
    ('0.25', '1/4', True),
    ('1/4', '1/4', False),
    (r'0.\overline{3}', '1/3', False),
    (r'-0.1\overline{6}', '-1/6', False),
    (r'+.\bar9', '1', False),
    (r'12.0\overline{09}', '1321/110', False),
  )
  def test_numbers_are_exact(self, text, value, is_decimal):
    self.assertEqual(
      notation.number(text), (fractions.Fraction(value), is_decimal)
    )

  @parameterized.parameters(
    '1 23',
    '1234 567',
    '1 234,567',
    ' 234',
    '1 234/5',
    r'.\overline{3}4',
    r'0.\overline{x}',
    r'\overline{3}',
    r'1/0.\overline{3}',
    '0.' + '0' * 1000 + r'\overline{3}',
  )
  def test_others_are_none(self, text):
    self.assertIsNone(notation.number(text))


class ForParserTest(parameterized.TestCase):
  @parameterized.parameters(
    ('1e5', r'1\times 10^{5}'),
    (r'1\,234\,567+x', '1234567+x'),
    (r'1\ 234', '1234'),
    (r'1 2345', '1 2345'),
    ('2 1/2', r'2\frac{1}{2}'),
    ('1 234/5', r'1\frac{234}{5}'),
    ('1/2 3/4', '1/2 3/4'),
    ('1/2 345', '1/2 345'),
    ('2 1/2.5', '2 1/2.5'),
    (r'\frac 1 2', r'\frac 1 2'),
    (r'\frac 12 345', r'\frac 12 345'),
    (r'\sqrt 2 345', r'\sqrt 2 345'),
    ('x_1 234', 'x_1 234'),
    (r'20.1\overline{6}x', r'\frac{121}{6}x'),
    (r'0.\overline{3}5', r'0.\overline{3}5'),
    ('> 5', 'x > 5'),
    (r'\geq5', r'x \ge 5'),
    ('!=5', r'x \ne 5'),
    ('!= 5!=', r'x \ne  5!='),
    ('5 <', '5 < x'),
    (r'5\le', r'5\le x'),
    ('1<2', '1<2'),
    (r'\left(1,2\right)', r'\left(1,2\right)'),
    (r'a\\leq', r'a\\leq'),
  )
  def test_rewrites_what_would_be_misread(self, text, expected):
    self.assertEqual(notation.for_parser(text), expected)

  @parameterized.parameters(
    ('5 6', True),
    (r'5\quad 6', True),
    (r'(x, 5.0\,6)', True),
    (r'\alpha 5 .6', True),
    ('1/2 3', True),
    (r'\frac 5 6', False),
    (r'\binom 5 6', False),
    (r'\sqrt 5 6', False),
    ('x_5 6', False),
    ('5, 6', False),
    (r'5 & 6 \\ 7 & 8', False),
    ('5 x 6', False),
    ('56', False),
  )
  def test_finds_two_numbers_side_by_side(self, text, expected):
    self.assertEqual(notation.has_neighbors(text), expected)

  @parameterized.parameters(
    ('x<5', True),
    (r'\ge5', True),
    (r'x \equiv 5', True),
    (r'\not= 5', True),
    ('x=5', False),
    (r'\text{if }5\text{, as $x>3$}', False),
    (r'\left(5\right)', False),
    (r'\nexists', False),
  )
  def test_finds_relations(self, text, expected):
    self.assertEqual(notation.has_relation(text), expected)

  @parameterized.parameters(
    '1 ', '1', '1 234', r'\,', '1/', '0.', r'.\overline', '<', r'\le', r'\text{'
  )
  def test_hostile_text_takes_linear_time(self, part):
    text = part * (10**5 // len(part))
    started = time.process_time()
    for read in (
      notation.for_parser,
      notation.has_neighbors,
      notation.has_relation,
      notation.number,
      notation.plain,
    ):
      read(text)
    # A quadratic search would take minutes.
    self.assertLess(time.process_time() - started, 10)
