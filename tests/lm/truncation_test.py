"""Tests for `replay_rl.lm.truncation`."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl.lm import truncation

_PROBS = [0.125, 0.5, 0.125, 0.25]


class TruncationTest(parameterized.TestCase):
  @parameterized.named_parameters(
    ('all_sorted', None, None, [0.5, 0.25, 0.125, 0.125]),
    ('top_p_of_one_keeps_all', None, 1.0, [0.5, 0.25, 0.125, 0.125]),
    ('top_k', 3, None, [4 / 7, 2 / 7, 1 / 7]),
    # The mass .75 of two tokens is enough for p = .75, not for .76.
    ('top_p_reached_exactly', None, 0.75, [2 / 3, 1 / 3, 0, 0]),
    ('top_p_just_missed', None, 0.76, [4 / 7, 2 / 7, 1 / 7, 0]),
    ('top_p_keeps_at_least_one', None, 0.01, [1, 0, 0, 0]),
    # After top-k the first two hold 6 / 7 = .857, before only .75.
    ('top_k_then_top_p', 3, 0.8, [2 / 3, 1 / 3, 0]),
  )
  def test_probabilities_by_hand(self, top_k, top_p, expected):
    for jit in (jax.jit, lambda function: function):
      truncate = jit(lambda x, p: truncation.truncate(x, top_k=top_k, top_p=p))
      logprobs, ids = truncate(jnp.log(jnp.array([_PROBS])), top_p)
      np.testing.assert_allclose(jnp.exp(logprobs[0]), expected, atol=1e-6)
      np.testing.assert_array_equal(ids[0], [1, 3, 0, 2][: len(expected)])

  def test_a_mass_of_one_keeps_tokens_that_rounding_would_cut(self):
    # The sum of the first two rounds to 1.
    logprobs = jnp.array([[0.0, -20.0, -30.0]])
    kept, _ = truncation.truncate(logprobs, top_k=None, top_p=jnp.float32(1.0))
    self.assertTrue(jnp.all(jnp.isfinite(kept)))

  def test_ties_keep_the_lowest_ids(self):
    logprobs = jnp.log(jnp.full((1, 4), 0.25))
    kept, ids = truncation.truncate(logprobs, top_k=None, top_p=0.5)
    np.testing.assert_array_equal(ids[0], [0, 1, 2, 3])
    np.testing.assert_allclose(jnp.exp(kept[0]), [0.5, 0.5, 0.0, 0.0])

  @parameterized.parameters(0.3, 0.6, 0.95)
  def test_top_p_is_the_smallest_set_of_enough_mass(self, top_p):
    rng = np.random.default_rng(0)
    logits = jnp.asarray(3 * rng.normal(size=(64, 9)), jnp.float32)
    full = jax.nn.log_softmax(logits)
    kept, ids = truncation.truncate(full, top_k=None, top_p=top_p)
    np.testing.assert_allclose(jnp.sum(jnp.exp(kept), 1), 1.0, rtol=1e-5)
    for row in range(64):
      probs = np.exp(np.float64(full[row]))
      is_kept = np.isfinite(np.asarray(kept[row]))
      mass = probs[np.asarray(ids[row])[is_kept]]
      self.assertGreaterEqual(mass.sum(), top_p)
      # No set of one token fewer has enough: not even the most probable ones.
      self.assertLess(np.sort(probs)[::-1][: len(mass) - 1].sum(), top_p)
