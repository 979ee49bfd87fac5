"""Tests of the intervals of scores."""

import numpy as np
from absl.testing import parameterized
from scipy import stats

from replay_rl.evaluate import intervals
from replay_rl.run import evaluation

_NUM_PROBLEMS = 30  # As AIME.
_ALLOWED = (0.93, 0.985)  # Of intervals that say 95 %.


def _interval(*benchmarks):
  return intervals.mean_of_means(
    [np.array(values, float) for values in benchmarks], confidence=0.95
  )


def _solved(number):
  """Returns the scores of 30 problems of one sample, some of them right."""
  return np.arange(_NUM_PROBLEMS) < number


class MeanTest(parameterized.TestCase):
  @parameterized.parameters(0, 1, 7, 15, 29, 30)
  def test_one_sample_of_each_problem_gives_the_interval_of_wilson(self, num):
    expected = stats.binomtest(num, _NUM_PROBLEMS).proportion_ci(
      method='wilson'
    )
    np.testing.assert_allclose(
      _interval(_solved(num)), list(expected), rtol=1e-9, atol=1e-12
    )

  def test_equal_samples_of_a_problem_say_no_more_than_one(self):
    # All four samples of a problem right, or all wrong: the scores are 0 or 1.
    scores = evaluation.pass_at_k(4, np.array([4, 0, 0, 4, 0]), k=1)
    self.assertEqual(_interval(scores), _interval([1, 0, 0, 1, 0]))

  def test_scores_that_vary_less_say_more(self):
    self.assertAlmostEqual(intervals.effective_number(_solved(3)), 30)
    # By hand: 2 / 4 = 1/2, and (1/2 + 1) / 4 - 1/4 = 1/8.
    scores = np.array([0.5, 0.5])
    self.assertAlmostEqual(intervals.effective_number(scores), 2 * 0.25 * 8)

  @parameterized.parameters(0.0, 1.0)
  def test_no_or_every_problem_solved_has_a_width(self, score):
    # Also with many samples: a kind of problem may not be among the 30.
    low, high = _interval([score] * _NUM_PROBLEMS)
    self.assertBetween(high - low, 0.11, 0.12)
    self.assertIn(score, (low, high))
    self.assertBetween(low, 0, high)
    self.assertLessEqual(high, 1)

  def test_one_right_sample_of_many_hardly_moves_the_ends(self):
    # Its problem alone says little about how problems differ.
    one = np.zeros(_NUM_PROBLEMS)
    one[0] = 1 / 16
    none = _interval(np.zeros(_NUM_PROBLEMS))
    np.testing.assert_allclose(_interval(one), none, atol=0.005)

  @parameterized.product(
    rate=[0.1, 0.25, 0.5, 0.8, 0.9], size=[_NUM_PROBLEMS, 200]
  )
  def test_one_sample_is_covered_as_often_as_it_says(self, rate, size):
    # Exact: the sum over all counts of right answers.
    covered = [
      low <= rate <= high
      for low, high in (
        _interval(np.arange(size) < num) for num in range(size + 1)
      )
    ]
    chances = stats.binom.pmf(np.arange(size + 1), size, rate)
    self.assertBetween(np.sum(chances[covered]), *_ALLOWED)

  @parameterized.product(
    # Of the rates of problems: all levels, mostly hard, mostly easy, bimodal.
    betas=[(1, 1), (0.3, 1.2), (5, 2), (0.3, 0.3)],
    num_samples_and_k=[(4, 1), (4, 2), (16, 1)],
  )
  def test_several_samples_are_covered_as_often(self, betas, num_samples_and_k):
    num_samples, k = num_samples_and_k
    generator = np.random.default_rng(0)
    truth = np.mean(1 - (1 - generator.beta(*betas, 200_000)) ** k)
    rates = generator.beta(*betas, (2000, _NUM_PROBLEMS))
    scores = evaluation.pass_at_k(
      num_samples, generator.binomial(num_samples, rates), k=k
    )
    ends = np.array([_interval(row) for row in np.asarray(scores)])
    covered = np.mean((ends[:, 0] <= truth) & (truth <= ends[:, 1]))
    self.assertBetween(covered, *_ALLOWED)


class MeanOfMeansTest(parameterized.TestCase):
  def test_the_distances_of_the_ends_add_in_squares(self):
    one, other = _solved(6), np.array([1, 1, 1, 0])
    low, high = _interval(one, other)
    means = np.array([0.2, 0.75])
    (a, b), (c, d) = _interval(one), _interval(other)
    below, above = means - [a, c], np.array([b, d]) - means
    self.assertAlmostEqual(low, 0.475 - np.hypot(*below) / 2)
    self.assertAlmostEqual(high, 0.475 + np.hypot(*above) / 2)

  def test_the_average_is_covered_as_often_as_it_says(self):
    generator = np.random.default_rng(0)
    rates = ((0.05, 30), (0.7, 40), (0.4, 100))
    num_covered = 0
    for _ in range(1000):
      low, high = _interval(
        *(generator.random(size) < rate for rate, size in rates)
      )
      num_covered += low <= np.mean([rate for rate, _ in rates]) <= high
    self.assertBetween(num_covered / 1000, *_ALLOWED)

  def test_a_benchmark_of_one_problem_has_none(self):
    self.assertIsNone(_interval([1]))
    self.assertIsNone(_interval([1, 0], [1]))

  @parameterized.parameters(-0.1, 1.1, np.nan)
  def test_what_is_no_score_is_refused(self, score):
    with self.assertRaisesRegex(ValueError, r'scores = .*: must be in \[0, 1'):
      _interval([0.5, score])

  def test_more_confidence_is_wider(self):
    scores = [_solved(7)]
    low, high = intervals.mean_of_means(scores, confidence=0.99)
    self.assertLess(low, _interval(*scores)[0])
    self.assertGreater(high, _interval(*scores)[1])
