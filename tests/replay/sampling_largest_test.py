"""Tests of the draw without chance."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl.replay import sampling

_KEY = jax.random.key(0)


class LargestTest(parameterized.TestCase):
  def test_the_largest_come_first_and_the_lower_slot_of_two_equals(self):
    weights = jnp.float32([2, 5, 0, 5, jnp.inf, jnp.nan, 2, -1])
    draw = jax.jit(sampling.largest, static_argnums=2)(_KEY, weights, 5)
    self.assertEqual(draw.slots.tolist(), [1, 3, 0, 6, 8])
    self.assertEqual(draw.is_valid.tolist(), [True] * 4 + [False])
    self.assertEqual(draw.probs.tolist(), [1, 1, 1, 1, 0])
    self.assertEqual(int(draw.num_eligible), 4)

  def test_it_agrees_with_a_stable_sort_whatever_the_key(self):
    rng = np.random.default_rng(0)
    for seed in range(5):
      weights = rng.permutation(200).astype(np.float32) + 1
      draw = sampling.largest(jax.random.key(seed), jnp.array(weights), 50)
      np.testing.assert_array_equal(draw.slots, np.argsort(-weights)[:50])

  def test_more_draws_than_slots_raise(self):
    with self.assertRaisesRegex(
      ValueError, '^num_draws = 3: must be at most capacity = 2'
    ):
      sampling.largest(_KEY, jnp.ones(2), 3)
