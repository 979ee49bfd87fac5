"""Tests of numbers in words."""

import numpy as np
from absl.testing import parameterized

from replay_rl.report import words


class WordsTest(parameterized.TestCase):
  @parameterized.parameters(
    (0.0, '0'),
    (7.256, '7.26'),
    (999.4, '999'),
    (999.9, '1k'),
    (86123, '86.1k'),
    (999_900, '1M'),
    (1_234_567, '1.23M'),
    (5.2e9, '5.2G'),
    (3e12, '3T'),
    (np.inf, 'not reached'),
    (np.nan, '–'),
  )
  def test_amounts_have_three_figures_and_a_prefix(self, value, expected):
    self.assertEqual(words.amount(value), expected)

  @parameterized.parameters(
    (0.384, '+38\N{NO-BREAK SPACE}%'),
    (-0.5, '−50\N{NO-BREAK SPACE}%'),
    (-0.001, '+0\N{NO-BREAK SPACE}%'),
    (-np.inf, 'not reached'),
    (np.nan, '–'),
  )
  def test_shares_are_signed_per_cent(self, share, expected):
    self.assertEqual(words.percent(share), expected)

  def test_shares_may_have_decimals(self):
    self.assertEqual(words.percent(-0.3844, 1), '−38.4\N{NO-BREAK SPACE}%')
    self.assertEqual(words.percent(-0.0001, 1), '+0.0\N{NO-BREAK SPACE}%')
    self.assertEqual(words.percent(None, 1), '–')

  @parameterized.parameters(
    ([0.5, 0.7], '0.6'), ([0.5, np.inf], '–'), ([0.5, np.nan], '–')
  )
  def test_medians_that_are_not_finite_are_a_dash(self, values, expected):
    self.assertEqual(words.median(np.array(values)), expected)
