"""Tests of the draw of the most varied slots."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl.replay import sampling

_KEY = jax.random.key(0)
_DRAW = jax.jit(sampling.most_varied, static_argnums=2)


class MostVariedTest(parameterized.TestCase):
  @parameterized.parameters(
    # Logarithms 0, 5, 4, 1, 2. Of two, 5 and 0 differ most. Of three, 5, 4, 0
    # and 5, 1, 0 have the variance 14 / 3, and 5, 2, 0 has less; with 1.5 for
    # the 1, only the first of them is left.
    ([0, 5, 4, 1, 2], 2, [1, 0]),
    ([0, 5, 4, 1.5, 2], 3, [1, 2, 0]),
    ([0, 5, 3.5, 1, 2], 3, [1, 0, 3]),
    ([0, 5, 4, 1, 2], 4, [1, 2, 0, 3]),
    ([0, 5, 4, 1, 2], 1, [0]),  # One slot has no variance.
    # Binary rewards: half of each, and of equal ones the ends of the order.
    ([1, 0, 1, 0, 1, 0], 4, [0, 2, 5, 3]),
  )
  def test_slots_by_hand(self, logs, num_draws, expected):
    draw = _DRAW(_KEY, jnp.exp(jnp.float32(logs)), num_draws)
    self.assertCountEqual(draw.slots.tolist(), expected)
    self.assertEqual(draw.is_valid.tolist(), [True] * num_draws)
    self.assertEqual(draw.probs.tolist(), [1] * num_draws)
    self.assertEqual(int(draw.num_eligible), len(logs))

  def test_a_lone_reward_is_always_taken(self):
    draw = _DRAW(_KEY, jnp.exp(jnp.float32([1, 1, 0, 1, 1, 1])), 4)
    self.assertIn(2, draw.slots.tolist())
    self.assertLen(set(draw.slots.tolist()), 4)

  def test_it_finds_the_largest_variance_of_all_subsets(self):
    rng = np.random.default_rng(0)
    for num_draws in range(2, 7):
      for spread, shift in ((1, 0), (-1, 0), (15, 0), (-15, 0), (0.02, 60)):
        logs = (spread * rng.exponential(size=9)).astype(np.float32)
        draw = _DRAW(_KEY, jnp.exp(logs - logs.max() - shift), num_draws)
        slots = draw.slots.tolist()
        self.assertLen(set(slots), num_draws)
        best = max(
          np.var(logs[list(subset)])
          for subset in itertools.combinations(range(9), num_draws)
        )
        np.testing.assert_allclose(np.var(logs[slots]), best, rtol=1e-3)

  def test_only_eligible_slots_are_taken(self):
    weights = jnp.float32([2, 0, jnp.inf, 1, jnp.nan, -1, 4])
    draw = _DRAW(_KEY, weights, 2)
    self.assertEqual(draw.slots.tolist(), [6, 3])
    draw = _DRAW(_KEY, weights, 5)
    self.assertCountEqual(draw.slots.tolist()[:3], [0, 3, 6])
    self.assertEqual(draw.slots.tolist()[3:], [7, 7])
    self.assertEqual(draw.is_valid.tolist(), [True] * 3 + [False] * 2)
    self.assertEqual(draw.probs.tolist(), [1, 1, 1, 0, 0])
    self.assertEqual(int(draw.num_eligible), 3)

  def test_no_eligible_slot_gives_no_draw(self):
    draw = _DRAW(_KEY, jnp.zeros(4), 3)
    self.assertEqual(draw.slots.tolist(), [4] * 3)
    self.assertFalse(np.any(draw.is_valid))

  def test_more_draws_than_slots_raise(self):
    with self.assertRaisesRegex(
      ValueError, '^num_draws = 3: must be at most capacity = 2'
    ):
      sampling.most_varied(_KEY, jnp.ones(2), 3)
