"""Tests of the scores of an evaluation."""

import numpy as np
from absl.testing import parameterized

from replay_rl.evaluate import intervals
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


def _summarize(benchmarks):
  return scores.summarize(benchmarks, statuses=_STATUSES, confidence=0.95)


class SummarizeTest(parameterized.TestCase):
  def test_values_by_hand(self):
    result = _summarize(
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
    a, b = result['benchmarks']['a'], result['benchmarks']['b']
    self.assertEqual(list(a['pass_at_k']), ['1', '2', '4'])
    means = [result['mean'] for result in a['pass_at_k'].values()]
    # Pairs without a right one: 3 of 6, and 1 of 6.
    np.testing.assert_allclose(means, [3 / 8, (1 / 2 + 5 / 6) / 2, 1.0])
    self.assertEqual((a['num_problems'], a['num_samples']), (2, 4))
    self.assertEqual(a['response_length'], 4.5)
    self.assertEqual(a['truncated_fraction'], 1 / 8)
    self.assertEqual(a['statuses'], {'correct': 3, 'wrong': 5, 'timeout': 0})
    self.assertEqual(b['num_problems'], 4)
    average = result['average']
    means = [result['mean'] for result in average['pass_at_k'].values()]
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

  def test_intervals_are_those_of_the_estimates_of_each_benchmark(self):
    a = _outcomes([[1, 0], [1, 1], [0, 0], [0, 0], [1, 0]])
    b = _outcomes([[1, 0], [0, 0], [1, 1]])
    result = _summarize({'a': a, 'b': b})
    for k, estimates_a, estimates_b in (
      ('1', [0.5, 1, 0, 0, 0.5], [0.5, 0, 1]),
      ('2', [1.0, 1, 0, 0, 1], [1.0, 0, 1]),
    ):
      for part, estimates in (
        (result['benchmarks']['a'], [estimates_a]),
        (result['average'], [estimates_a, estimates_b]),
      ):
        self.assertEqual(
          part['pass_at_k'][k]['interval'],
          intervals.mean_of_means(
            [np.array(values) for values in estimates], confidence=0.95
          ),
        )

  def test_one_problem_has_no_interval(self):
    many, one = _outcomes([[1, 0], [1, 1]]), _outcomes([[1, 0]])
    result = _summarize({'many': many, 'one': one})
    self.assertIsNone(result['benchmarks']['one']['pass_at_k']['1']['interval'])
    self.assertIsNone(result['average']['pass_at_k']['1']['interval'])

  def test_different_numbers_of_samples_are_refused(self):
    with self.assertRaisesRegex(
      ValueError, r"benchmarks = \{'a': \(1, 2\), 'b': \(1, 1\)\}: must have"
    ):
      _summarize({'a': _outcomes([[1, 0]]), 'b': _outcomes([[1]])})

  def test_an_unknown_status_is_refused(self):
    outcomes = _outcomes([[1, 0]])
    odd = outcomes._replace(statuses=np.array([['correct', 'odd']]))
    with self.assertRaisesRegex(
      ValueError, r"statuses of a = \['odd'\]: must be among \['correct'"
    ):
      _summarize({'a': odd})


class CompareTest(parameterized.TestCase):
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
    result = scores.compare(mine, baseline, omega=1, beta=3, gamma=5)
    self.assertEqual(
      result['benchmarks']['a'],
      {'length_reduction': 0.75, 'accuracy_gain': 1.0, 'aes': 3.75},
    )
    self.assertEqual(
      result['benchmarks']['b'],
      {'length_reduction': -1.0, 'accuracy_gain': -0.5, 'aes': -3.5},
    )
    # Accuracies are .75 and .75, lengths 3 and 5: not the mean of the scores.
    self.assertEqual(
      result['average'],
      {'length_reduction': 0.4, 'accuracy_gain': 0.0, 'aes': 0.4},
    )
