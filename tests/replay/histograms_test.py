"""Tests of histograms of ages and uses."""

import collections
import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl.replay import histograms


def array(values):
  return jnp.array(values, jnp.int32)


class HistogramTest(parameterized.TestCase):
  def test_counts_add_up_to_the_valid_rows(self):
    rng = np.random.default_rng(0)
    count = jax.jit(functools.partial(histograms.histogram, num_bins=5))
    for _ in range(5):
      values = rng.integers(0, 12, 40, np.int32)
      mask = rng.random(40) < 0.5
      expected = collections.Counter(np.minimum(values[mask], 4).tolist())
      actual = count(values, mask)
      np.testing.assert_array_equal(actual, [expected[i] for i in range(5)])
      self.assertEqual(actual.sum(), mask.sum())
      self.assertEqual(actual.dtype, jnp.int32)

  def test_wrong_inputs_raise(self):
    with self.assertRaisesRegex(ValueError, 'num_bins = 0'):
      histograms.histogram(array([1]), jnp.array([True]), num_bins=0)
    with self.assertRaisesRegex(AssertionError, 'shape'):
      histograms.histogram(array([1, 2]), jnp.array([True]), num_bins=2)
    with self.assertRaisesRegex(AssertionError, 'type'):
      histograms.histogram(jnp.array([1.0]), jnp.array([True]), num_bins=2)
    with self.assertRaisesRegex(AssertionError, 'rank'):
      histograms.histogram(array([[1]]), jnp.array([[True]]), num_bins=2)


class AgeBucketsTest(parameterized.TestCase):
  @parameterized.parameters(
    ((), {}),
    ((1,), {'age_0': [0], 'age_1_or_more': [1, 2, 3, 4, 5, 9]}),
    ((3,), {'age_0_2': [0, 1, 2], 'age_3_or_more': [3, 4, 5, 9]}),
    (
      (1, 2, 4),
      {
        'age_0': [0],
        'age_1': [1],
        'age_2_3': [2, 3],
        'age_4_or_more': [4, 5, 9],
      },
    ),
  )
  def test_each_age_is_in_one_bucket_that_names_it(self, edges, expected):
    ages = np.array([0, 1, 2, 3, 4, 5, 9], np.int32)
    actual = histograms.age_buckets(jnp.asarray(ages), edges)
    self.assertEqual(list(actual), list(expected))
    for name, inside in actual.items():
      self.assertEqual(ages[inside].tolist(), expected[name], name)


class StepsSinceLastUseTest(parameterized.TestCase):
  def test_one_use_at_step_3_and_three_at_step_5(self):
    # The worked example of the paper: new, 2, 0, 0.
    at_step_3 = histograms.steps_since_last_use(
      array([-1]), array([4]), jnp.array([True]), array(3), num_bins=4
    )
    at_step_5 = histograms.steps_since_last_use(
      array([3, 3, 3]),
      array([4, 4, 4]),
      jnp.ones(3, bool),
      array(5),
      num_bins=4,
    )
    np.testing.assert_array_equal(at_step_3, [1, 0, 0, 0, 0])
    np.testing.assert_array_equal(at_step_5, [0, 2, 0, 1, 0])

  def test_histograms_of_a_run_equal_those_of_one_list_of_uses(self):
    rng = np.random.default_rng(0)
    num_bins, last_sampled = 4, np.full(6, -1, np.int32)
    uses, total = [], 0
    count = jax.jit(
      functools.partial(histograms.steps_since_last_use, num_bins=num_bins)
    )
    for step in range(20):
      slots = rng.integers(0, 6, 5, np.int32)
      is_valid = rng.random(5) < 0.5
      total += count(last_sampled[slots], slots, is_valid, array(step))
      uses += [(step, slot) for slot in slots[is_valid]]
      last_sampled[slots[is_valid]] = step
    expected = np.zeros(1 + num_bins)
    for i, (step, slot) in enumerate(uses):
      before = [s for s, other in uses[:i] if other == slot]
      gap = min(step - before[-1], num_bins - 1) if before else -1
      expected[1 + gap] += 1
    np.testing.assert_array_equal(total, expected)
    self.assertTrue((expected > 0).all())

  def test_wrong_inputs_raise(self):
    ones = jnp.ones(2, jnp.int32)
    with self.assertRaisesRegex(AssertionError, 'rank'):
      histograms.steps_since_last_use(ones, ones, ones > 0, ones, num_bins=2)
    with self.assertRaisesRegex(AssertionError, 'shape'):
      histograms.steps_since_last_use(
        ones, ones[:1], ones > 0, array(0), num_bins=2
      )
