"""Tests of replay_rl.run.pass_at_k."""

import math
from fractions import Fraction

import numpy as np
from absl.testing import parameterized

from replay_rl.run import pass_at_k


def exact(n, c, k):
  return float(1 - Fraction(math.comb(n - c, k), math.comb(n, k)))


class PassAtKTest(parameterized.TestCase):
  def test_pass_at_k_by_hand(self):
    # Of the 6 pairs among 4 samples: with c = 1, 3 miss; with c = 2, 1 misses.
    np.testing.assert_allclose(
      pass_at_k.pass_at_k(4, [0, 1, 2, 3, 4], k=2), [0, 3 / 6, 5 / 6, 1, 1]
    )

  @parameterized.parameters(1, 2, 5, 16)
  def test_pass_at_k_equals_the_binomials_for_all_small_counts(self, k):
    cases = [(n, c) for n in range(k, 17) for c in range(n + 1)]
    num_samples, num_correct = np.array(cases).T
    np.testing.assert_allclose(
      pass_at_k.pass_at_k(num_samples, num_correct, k=k),
      [exact(n, c, k) for n, c in cases],
      rtol=1e-12,
    )

  @parameterized.parameters(1, 2, 100, 511, 1023, 1024)
  def test_pass_at_k_is_stable_for_many_samples(self, k):
    num_correct = np.array([0, 1, 2, 10, 512, 1023, 1024])
    np.testing.assert_allclose(
      pass_at_k.pass_at_k(1024, num_correct, k=k),
      [exact(1024, c, k) for c in num_correct.tolist()],
      rtol=1e-11,
    )

  def test_the_mean_over_runs_is_the_chance_that_one_of_k_is_right(self):
    rng = np.random.default_rng(0)
    num_correct = rng.binomial(8, 0.3, 20000)
    np.testing.assert_allclose(
      pass_at_k.pass_at_k(8, num_correct, k=4).mean(), 1 - 0.7**4, atol=0.01
    )

  @parameterized.parameters(
    (4, 2, 5, r'k = 5, must be between 1 and num_samples = 4'),
    ([8, 4], 2, 5, r'k = 5, must be between 1 and num_samples = \[8, 4\]'),
    (4, 2, 0, 'k = 0, must be between 1'),
    (4, [2, 5], 1, r'num_correct = \[2, 5\], must be between 0'),
    (4, -1, 1, 'num_correct = -1, must be between 0'),
    (4, 0.5, 1, 'num_correct is float64, must be integers'),
    (4.0, 2, 1, 'num_samples is float64'),
  )
  def test_wrong_counts_raise(self, num_samples, num_correct, k, message):
    with self.assertRaisesRegex(ValueError, message):
      pass_at_k.pass_at_k(num_samples, num_correct, k=k)
