"""Tests of replay_rl.tasks.rewards."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl.tasks import rewards

TERMS = {
  'correctness': rewards.correctness,
  'format_bonus': functools.partial(rewards.format_bonus, weight=0.25),
  'soft_overlong': functools.partial(
    rewards.soft_overlong, max_length=20, cache_length=4
  ),
  'truncation_penalty': functools.partial(
    rewards.truncation_penalty, weight=0.5
  ),
}
# Lengths around both ends of the slope.
LENGTHS = (0, 1, 15, 16, 17, 18, 19, 20, 21, 1000)
# A response that was cut off has the whole penalty at any length.
IS_FINISHED = [True, False] * 2 + [True] * 5 + [False]
EXPECTED = {
  'correctness': (1, 0, 1, 0, 1, 0, 1, 0, 1, 0),
  'format_bonus': (0.25, 0.25, 0, 0, 0.25, 0.25, 0, 0, 0.25, 0.25),
  'soft_overlong': (0, -1, 0, -1, -0.25, -0.5, -0.75, -1, -1, -1),
  'truncation_penalty': (0, -0.5, 0, -0.5, 0, 0, 0, 0, 0, -0.5),
}


def batch():
  return (
    jnp.array([1, 0] * 5, jnp.float32),
    jnp.array([1, 1, 0, 0] * 2 + [1, 1], jnp.float32),
    jnp.array(LENGTHS, jnp.int32),
    jnp.array(IS_FINISHED),
  )


class RewardsTest(parameterized.TestCase):
  @parameterized.product(name=list(TERMS), is_jitted=[False, True])
  def test_values_worked_out_by_hand(self, name, is_jitted):
    term = jax.jit(TERMS[name]) if is_jitted else TERMS[name]
    for arrays in (batch(), [np.asarray(array) for array in batch()]):
      result = term(*arrays)
      self.assertEqual(result.dtype, jnp.float32)
      np.testing.assert_array_equal(result, EXPECTED[name])

  @parameterized.parameters(*TERMS)
  def test_rows_do_not_matter_to_each_other(self, name):
    order = np.random.default_rng(0).permutation(len(LENGTHS))
    shuffled = TERMS[name](*(array[order] for array in batch()))
    np.testing.assert_array_equal(shuffled, np.array(EXPECTED[name])[order])

  def test_terms_add(self):
    total = sum(term(*batch()) for term in TERMS.values())
    expected = np.sum([EXPECTED[name] for name in TERMS], axis=0)
    np.testing.assert_array_equal(total, expected)

  def test_soft_overlong_follows_the_equation_of_the_paper(self):
    lengths = np.arange(16_000, 21_000, 7, dtype=np.int32)
    verdicts = np.zeros(len(lengths), np.float32)
    result = rewards.soft_overlong(
      verdicts,
      verdicts,
      lengths,
      np.ones(len(lengths), bool),
      max_length=20_480,
      cache_length=4096,
    )
    expected = [
      0 if n <= 16_384 else (16_384 - n) / 4096 if n <= 20_480 else -1
      for n in lengths.tolist()
    ]
    np.testing.assert_allclose(result, expected, rtol=1e-6)

  def test_the_whole_length_may_be_the_slope(self):
    term = functools.partial(
      rewards.soft_overlong, max_length=20, cache_length=20
    )
    expected = np.maximum(-np.array(LENGTHS, np.float32) / 20, -1)
    expected[~np.array(IS_FINISHED)] = -1
    np.testing.assert_allclose(term(*batch()), expected)

  @parameterized.parameters(0, 21, -1)
  def test_a_slope_outside_the_length_raises(self, cache_length):
    with self.assertRaisesRegex(
      ValueError, f'cache_length = {cache_length}: must be'
    ):
      rewards.soft_overlong(*batch(), max_length=20, cache_length=cache_length)

  @parameterized.product(
    term=[rewards.format_bonus, rewards.truncation_penalty],
    weight=[-0.1, float('inf'), float('nan')],
  )
  def test_a_weight_that_is_no_weight_raises(self, term, weight):
    with self.assertRaisesRegex(ValueError, f'weight = {weight}: must be in'):
      term(*batch(), weight=weight)

  @parameterized.product(name=list(TERMS), place=[0, 1, 2, 3])
  def test_an_array_of_another_shape_raises(self, name, place):
    row = batch()[place]
    for wrong in (row[:, None], row[:1]):
      arrays = [*batch()[:place], wrong, *batch()[place + 1 :]]
      with self.assertRaises(AssertionError):
        TERMS[name](*arrays)
    with self.assertRaises(AssertionError):
      TERMS[name](*(array[:, None] for array in batch()))
