"""Tests of replay_rl.rl.importance."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl.rl import importance


class LogRatiosTest(parameterized.TestCase):
  def test_log_ratios_by_hand(self):
    found = importance.log_ratios(
      jnp.array([[-1.0, -2.0, jnp.inf]]),
      jnp.array([[-1.5, -0.5, -jnp.inf]]),
      jnp.array([[True, True, False]]),
    )
    np.testing.assert_array_equal(found, [[0.5, -1.5, 0.0]])

  def test_masked_tokens_have_no_gradient(self):
    def total(logprobs):
      mask = jnp.array([[True, False]])
      ratios = jnp.exp(importance.log_ratios(logprobs, jnp.zeros((1, 2)), mask))
      return jnp.sum(ratios)

    grads = jax.jit(jax.grad(total))(jnp.array([[0.0, jnp.inf]]))
    np.testing.assert_array_equal(grads, [[1.0, 0.0]])

  def test_wrong_inputs_raise(self):
    zeros, mask = jnp.zeros((2, 3)), jnp.ones((2, 3), bool)
    with self.assertRaisesRegex(AssertionError, 'rank'):
      importance.log_ratios(zeros[0], zeros[0], mask[0])
    with self.assertRaisesRegex(AssertionError, 'shape'):
      importance.log_ratios(zeros, zeros[:, :1], mask)
    with self.assertRaisesRegex(AssertionError, 'type'):
      importance.log_ratios(zeros, zeros, zeros)


class EffectiveSampleSizeTest(parameterized.TestCase):
  def test_effective_sample_size_by_hand(self):
    # Weights 1, 2, 3: 6^2 / (3 (1 + 4 + 9)).
    found = importance.effective_sample_size(
      jnp.log(jnp.array([1.0, 2.0, 3.0, 7.0])),
      jnp.array([True, True, True, False]),
    )
    np.testing.assert_allclose(found, 36 / 42, rtol=1e-6)

  @parameterized.parameters(-1000.0, 0.0, 1000.0)
  def test_a_common_factor_of_the_weights_cancels(self, shift):
    rng = np.random.default_rng(0)
    log_weights = rng.normal(size=(4, 5)).astype(np.float32)
    mask = rng.random((4, 5)) < 0.7
    weights = np.exp(log_weights[mask].astype(np.float64))
    np.testing.assert_allclose(
      jax.jit(importance.effective_sample_size)(log_weights + shift, mask),
      weights.sum() ** 2 / (mask.sum() * (weights**2).sum()),
      rtol=1e-3,  # Adding 1000 costs digits of the logarithm.
    )

  def test_equal_weights_give_one_and_a_dominant_weight_one_over_n(self):
    mask = jnp.ones(4, bool)
    equal = importance.effective_sample_size(jnp.full(4, 80.0), mask)
    dominant = importance.effective_sample_size(
      jnp.array([0.0, 500.0, 0.0, 0.0]), mask
    )
    np.testing.assert_allclose([equal, dominant], [1.0, 0.25])

  def test_no_sample_gives_zero(self):
    with jax.debug_nans(True):
      no_row = importance.effective_sample_size(
        jnp.array([3.0, jnp.inf]), jnp.zeros(2, bool)
      )
      no_weight = importance.effective_sample_size(
        jnp.full(2, -jnp.inf), jnp.ones(2, bool)
      )
    np.testing.assert_array_equal([no_row, no_weight], [0.0, 0.0])

  def test_wrong_inputs_raise(self):
    with self.assertRaisesRegex(AssertionError, 'shape'):
      importance.effective_sample_size(jnp.zeros(3), jnp.ones(1, bool))
    with self.assertRaisesRegex(AssertionError, 'type'):
      importance.effective_sample_size(jnp.zeros(3), jnp.ones(3))


class PerImportanceWeightsTest(parameterized.TestCase):
  @parameterized.parameters(
    (1.0, [0.2, 1.0, 0.0, 0.5]),
    (0.5, [0.4472136, 1.0, 0.0, 0.7071068]),
    (0.0, [1.0, 1.0, 0.0, 1.0]),
  )
  def test_weights_by_hand(self, exponent, expected):
    probs = jnp.array([0.5, 0.1, 0.0, 0.2])
    np.testing.assert_allclose(
      importance.per_importance_weights(probs, exponent=exponent),
      expected,
      rtol=1e-6,
    )

  def test_weights_equal_the_equation_for_any_number_of_slots(self):
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(16)).astype(np.float32)
    compute = jax.jit(importance.per_importance_weights)
    for num_slots in (16, 1000):
      expected = (num_slots * probs) ** -0.7
      np.testing.assert_allclose(
        compute(probs, exponent=0.7), expected / expected.max(), rtol=1e-5
      )

  def test_an_empty_draw_gives_zeros(self):
    with jax.debug_nans(True):
      found = importance.per_importance_weights(jnp.zeros(3), exponent=0.4)
    np.testing.assert_array_equal(found, 0.0)

  def test_wrong_inputs_raise(self):
    with self.assertRaisesRegex(AssertionError, 'rank'):
      importance.per_importance_weights(jnp.ones((2, 2)), exponent=1.0)
    with self.assertRaisesRegex(AssertionError, 'type'):
      importance.per_importance_weights(jnp.ones(2, int), exponent=1.0)
