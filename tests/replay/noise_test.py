"""Tests of the noise of rollouts by age."""

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from replay_rl.replay import noise


class MeanVarianceTest(parameterized.TestCase):
  def test_a_value_by_hand(self):
    mean = noise.mean_variance(lambda ages: 1.0 + ages)
    # Ages 0 and 1, and half as many rollouts of age 2: (1 + 2 + 3 / 2) / 2.5.
    self.assertAlmostEqual(float(mean(np.asarray(2.5))), 4.5 / 2.5)
    np.testing.assert_allclose(mean(np.asarray([0.5, 1.0, 4.0])), [1, 1, 2.5])

  @parameterized.parameters((60, 20), (70, 20), (20, 20), (1000, 7))
  def test_it_is_the_mean_over_the_slots_of_a_ring(self, capacity, fresh):
    variance = noise.growing(alpha=0.3, tau=5.0)
    ages = np.arange(capacity) // fresh  # One update after each generation.
    actual = noise.mean_variance(variance)(np.asarray(capacity / fresh))
    np.testing.assert_allclose(actual, variance(ages).mean(), rtol=1e-12)

  def test_a_line_of_slope_2c_has_the_mean_1_plus_c_of_x_less_1(self):
    mean = noise.mean_variance(lambda ages: 1 + 0.2 * ages)
    np.testing.assert_allclose(mean(np.arange(1, 9)), 1 + 0.1 * np.arange(8))


class GrowingTest(parameterized.TestCase):
  def test_the_variance_is_twice_as_large_at_tau(self):
    variance = noise.growing(alpha=0.2, tau=30.0)
    np.testing.assert_allclose(variance(np.asarray([0, 30])), [1, 2])
    np.testing.assert_allclose(variance(np.asarray([960])), [1 + 32**0.4])

  @parameterized.parameters(
    ('alpha', 0.0), ('alpha', float('nan')), ('tau', -1.0), ('tau', 'x')
  )
  def test_what_cannot_be_is_refused(self, name, value):
    with self.assertRaisesRegex(ValueError, f'{name} = '):
      noise.growing(**({'alpha': 0.2, 'tau': 30.0} | {name: value}))


class MeasuredTest(parameterized.TestCase):
  def test_lines_join_what_was_measured(self):
    variance = noise.measured([0, 4, 8], [1.0, 2.0, 6.0])
    np.testing.assert_allclose(
      variance(np.asarray([0, 1, 4, 7, 8])), [1, 1.25, 2, 5, 6]
    )

  def test_a_buffer_may_hold_the_oldest_age_that_was_measured(self):
    mean = noise.mean_variance(noise.measured([0, 2], [1.0, 3.0]))
    self.assertAlmostEqual(float(mean(np.asarray(3.0))), 2.0)
    with self.assertRaisesRegex(ValueError, 'age = 3: must be at most 2'):
      mean(np.asarray(3.1))

  @parameterized.parameters(
    ([1, 2], [1.0, 2.0], 'ages = .*: must rise from 0'),
    ([0, 2, 2], [1.0, 2.0, 3.0], 'must rise from 0'),
    ([], [], 'one for each'),
    ([0, 2], [1.0], 'one for each'),
    ([0, 2], [1.0, 0.0], 'positive and finite'),
    ([0, 2], [1.0, float('inf')], 'positive and finite'),
  )
  def test_what_cannot_be_is_refused(self, ages, variances, complaint):
    with self.assertRaisesRegex(ValueError, complaint):
      noise.measured(ages, variances)


if __name__ == '__main__':
  absltest.main()
