"""Tests of the scores of an evaluation."""

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized
from scipy import stats

from replay_rl.evaluate import scores

_STATUSES = ('correct', 'wrong', 'timeout')


def _outcomes(is_correct, lengths=None, is_finished=None):
  is_correct = np.array(is_correct, bool)
  if lengths is None:
    lengths = np.ones(is_correct.shape, int)
  if is_finished is None:
    is_finished = np.ones(is_correct.shape, bool)
  return scores.Outcomes(
    is_correct=is_correct,
    lengths=np.array(lengths),
    is_finished=np.array(is_finished, bool),
    statuses=np.where(is_correct, 'correct', 'wrong'),
  )


def _summarize(benchmarks, **changes):
  return scores.summarize(
    benchmarks,
    **{
      'statuses': _STATUSES,
      'confidence': 0.9,
      'num_resamples': 200,
      'seed': 3,
      **changes,
    },
  )


class SummarizeTest(parameterized.TestCase):
  def test_values_by_hand(self):
    found = _summarize(
      {
        # One of four, and two of four.
        'a': _outcomes(
          [[1, 0, 0, 0], [1, 1, 0, 0]],
          lengths=[[1, 2, 3, 4], [5, 6, 7, 8]],
          is_finished=[[1, 1, 1, 1], [1, 1, 1, 0]],
        ),
        # Four problems weigh as much as two.
        'b': _outcomes([[1, 1, 1, 1], [1, 1, 1, 1], [0] * 4, [0] * 4]),
      }
    )
    a, b = found['benchmarks']['a'], found['benchmarks']['b']
    self.assertEqual(list(a['pass_at_k']), ['1', '2', '4'])
    means = [found['mean'] for found in a['pass_at_k'].values()]
    # Pairs without a right one: 3 of 6, and 1 of 6.
    np.testing.assert_allclose(means, [3 / 8, (1 / 2 + 5 / 6) / 2, 1.0])
    self.assertEqual((a['num_problems'], a['num_samples']), (2, 4))
    self.assertEqual(a['response_length'], 4.5)
    self.assertEqual(a['truncated_fraction'], 1 / 8)
    self.assertEqual(a['statuses'], {'correct': 3, 'wrong': 5, 'timeout': 0})
    self.assertEqual(b['num_problems'], 4)
    average = found['average']
    means = [found['mean'] for found in average['pass_at_k'].values()]
    np.testing.assert_allclose(
      means, [(3 / 8 + 1 / 2) / 2, (2 / 3 + 1 / 2) / 2, 3 / 4]
    )
    self.assertEqual(average['response_length'], (4.5 + 1) / 2)
    self.assertEqual(average['truncated_fraction'], 1 / 16)

  @parameterized.parameters(
    (1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (16, [1, 2, 4, 8, 16])
  )
  def test_budgets_double_and_end_with_all_samples(self, n, expected):
    self.assertEqual(scores.budgets(n), expected)

  def test_intervals_of_a_benchmark_are_those_of_its_estimates(self):
    outcomes = _outcomes([[1, 0], [1, 1], [0, 0], [0, 0], [1, 0]])
    found = _summarize({'a': outcomes})['benchmarks']['a']['pass_at_k']
    settings = {'confidence': 0.9, 'num_resamples': 200, 'seed': 3}
    for k, estimates in (
      ('1', [0.5, 1, 0, 0, 0.5]),
      ('2', [1.0, 1, 0, 0, 1]),
    ):
      expected = scores.interval([np.array(estimates)], **settings)
      np.testing.assert_allclose(found[k]['interval'], expected)

  def test_different_numbers_of_samples_are_refused(self):
    with self.assertRaisesRegex(ValueError, 'must have the same num_samples'):
      _summarize({'a': _outcomes([[1, 0]]), 'b': _outcomes([[1]])})

  def test_an_unknown_status_is_refused(self):
    outcomes = _outcomes([[1, 0]])
    odd = outcomes._replace(statuses=np.array([['correct', 'odd']]))
    with self.assertRaisesRegex(ValueError, r"a: statuses \['odd'\], must"):
      _summarize({'a': odd})


class IntervalTest(parameterized.TestCase):
  def test_equals_scipy_on_one_benchmark(self):
    values = np.random.default_rng(0).uniform(size=30)
    expected = stats.bootstrap(
      (values,),
      np.mean,
      n_resamples=999,
      confidence_level=0.8,
      method='percentile',
      rng=np.random.default_rng(7),
    ).confidence_interval
    found = scores.interval([values], confidence=0.8, num_resamples=999, seed=7)
    np.testing.assert_allclose(found, list(expected), rtol=1e-12)

  def test_of_an_average_each_benchmark_is_drawn_by_itself(self):
    # The means of either vary by 1/2 / sqrt(100); their mean by less.
    values = np.repeat([0.0, 1.0], 50)
    settings = {'confidence': 0.95, 'num_resamples': 4000, 'seed': 0}
    one = scores.interval([values], **settings)
    two = scores.interval([values, values], **settings)
    self.assertAlmostEqual(one[1] - one[0], 2 * 1.96 * 0.05, delta=0.02)
    self.assertAlmostEqual(
      two[1] - two[0], 2 * 1.96 * 0.05 / np.sqrt(2), delta=0.02
    )

  def test_covers_the_truth_about_as_often_as_it_says(self):
    generator = np.random.default_rng(1)
    num_covered = 0
    for seed in range(200):
      values = generator.binomial(4, 0.3, size=60) / 4
      low, high = scores.interval(
        [values], confidence=0.9, num_resamples=200, seed=seed
      )
      num_covered += low <= 0.3 <= high
    self.assertBetween(num_covered / 200, 0.82, 0.96)

  def test_one_problem_has_none(self):
    many, one = np.array([0.0, 1.0]), np.array([1.0])
    settings = {'confidence': 0.9, 'num_resamples': 10, 'seed': 0}
    self.assertIsNone(scores.interval([one], **settings))
    self.assertIsNone(scores.interval([many, one], **settings))


class EfficiencyTest(parameterized.TestCase):
  @parameterized.parameters(
    # A quarter shorter; .5 -> .6 is a fifth more, .5 -> .4 a fifth less.
    (0.6, (1, 3, 5), 0.25 + 3 * 0.2),
    (0.6, (1, 5, 10), 0.25 + 5 * 0.2),
    (0.4, (1, 3, 5), 0.25 - 5 * 0.2),
    (0.4, (1, 5, 10), 0.25 - 10 * 0.2),
    (0.5, (2, 5, 10), 0.5),
  )
  def test_by_hand(self, accuracy, constants, expected):
    omega, beta, gamma = constants
    found = scores.efficiency(
      accuracy=accuracy,
      length=300.0,
      baseline_accuracy=0.5,
      baseline_length=400.0,
      omega=omega,
      beta=beta,
      gamma=gamma,
    )
    self.assertAlmostEqual(found.length_reduction, 0.25)
    self.assertAlmostEqual(found.accuracy_gain, (accuracy - 0.5) / 0.5)
    self.assertAlmostEqual(found.aes, expected)

  def test_is_not_defined_for_a_baseline_without_a_right_answer(self):
    found = scores.efficiency(
      accuracy=0.1,
      length=8.0,
      baseline_accuracy=0.0,
      baseline_length=4.0,
      omega=1,
      beta=3,
      gamma=5,
    )
    self.assertEqual(found, (-1.0, None, None))

  def test_compares_each_benchmark_and_the_averages(self):
    mine = _summarize(
      {
        'a': _outcomes([[1, 1]], lengths=[[2, 2]]),
        'b': _outcomes([[1, 0]], lengths=[[4, 4]]),
      }
    )
    baseline = _summarize(
      {
        'b': _outcomes([[1, 1]], lengths=[[2, 2]]),
        'a': _outcomes([[1, 0]], lengths=[[8, 8]]),
      }
    )
    found = scores.compare(mine, baseline, omega=1, beta=3, gamma=5)
    self.assertEqual(
      found['benchmarks']['a'],
      {'length_reduction': 0.75, 'accuracy_gain': 1.0, 'aes': 3.75},
    )
    self.assertEqual(
      found['benchmarks']['b'],
      {'length_reduction': -1.0, 'accuracy_gain': -0.5, 'aes': -3.5},
    )
    # Accuracies are .75 and .75, lengths 3 and 5: not the mean of the scores.
    self.assertEqual(
      found['average'],
      {'length_reduction': 0.4, 'accuracy_gain': 0.0, 'aes': 0.4},
    )

  def test_other_benchmarks_are_refused(self):
    one = _summarize({'a': _outcomes([[1, 1]])})
    other = _summarize({'b': _outcomes([[1, 1]])})
    with self.assertRaisesRegex(ValueError, r"has the benchmarks \['b'\]"):
      scores.compare(one, other, omega=1, beta=3, gamma=5)


if __name__ == '__main__':
  absltest.main()
