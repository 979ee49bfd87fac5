"""Tests of replay_rl.rl.importance."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl import base
from replay_rl.rl import importance


class LogRatiosTest(parameterized.TestCase):
  def test_log_ratios_by_hand(self):
    actual = importance.log_ratios(
      jnp.array([[-1.0, -2.0, jnp.inf]]),
      jnp.array([[-1.5, -0.5, -jnp.inf]]),
      jnp.array([[True, True, False]]),
    )
    np.testing.assert_array_equal(actual, [[0.5, -1.5, 0.0]])

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


class BoundedTest(parameterized.TestCase):
  def test_bounds_values_and_gradient_by_hand(self):
    log_ratios = jnp.array([-jnp.inf, -21.0, -19.0, 0.0, 19.0, 21.0, jnp.inf])
    actual, is_bounded = importance.bounded(log_ratios)
    np.testing.assert_array_equal(actual, [-20, -20, -19, 0, 19, 20, 20])
    np.testing.assert_array_equal(is_bounded, [1, 1, 0, 0, 0, 1, 1])
    grads = jax.jit(jax.grad(lambda x: jnp.sum(importance.bounded(x)[0])))(
      log_ratios
    )
    np.testing.assert_array_equal(grads, [0, 0, 1, 1, 1, 0, 0])


class MovesAwayTest(parameterized.TestCase):
  def test_every_pair_of_signs(self):
    actual = importance.moves_away(
      jnp.array([[0.5, 0.0, -0.5]] * 3), jnp.array([2.0, 0.0, -2.0])
    )
    np.testing.assert_array_equal(actual, [[1, 0, 0], [0, 0, 0], [0, 0, 1]])


class EffectiveSampleSizeTest(parameterized.TestCase):
  def test_effective_sample_size_by_hand(self):
    # Weights 1, 2, 3: 6^2 / (3 (1 + 4 + 9)).
    actual = importance.effective_sample_size(
      jnp.log(jnp.array([1.0, 2.0, 3.0, 7.0])),
      jnp.array([True, True, True, False]),
    )
    np.testing.assert_allclose(actual, 36 / 42, rtol=1e-6)

  def test_infinite_weights_are_equal_and_alone(self):
    actual = importance.effective_sample_size(
      jnp.array([0.0, jnp.inf, jnp.inf, -jnp.inf]), jnp.ones(4, bool)
    )
    np.testing.assert_allclose(actual, 0.5)

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
  """Three drawn rows, one fresh one, and one that is not valid."""

  PROBS = (0.5, 0.1, 0.0, 0.2, 0.05)
  IS_VALID = (True, True, True, True, False)

  def weights(self, exponent, probs=PROBS, is_valid=IS_VALID):
    batch = base.Batch(
      rollouts=None,
      slots=None,
      is_valid=jnp.array(is_valid),
      is_fresh=None,
      probs=jnp.array(probs),
      num_eligible=None,
    )
    return importance.per_importance_weights(
      batch, jnp.int32(0), exponent=exponent
    )

  @parameterized.parameters(
    (1.0, [0.2, 1.0, 1.0, 0.5, 0.0]),
    (0.5, [0.4472136, 1.0, 1.0, 0.7071068, 0.0]),
    (0.0, [1.0, 1.0, 1.0, 1.0, 0.0]),
  )
  def test_weights_by_hand(self, exponent, expected):
    actual = [self.weights(exponent), jax.jit(self.weights)(exponent)]
    np.testing.assert_allclose(actual, [expected] * 2, rtol=1e-6)

  @parameterized.parameters(
    # Beta goes from 0.4 to 1 in 10 steps: 0.7 after 5, and then 1 for good.
    (0, 0.4),
    (5, 0.7),
    (10, 1.0),
    (1000, 1.0),
  )
  def test_annealed_weights_have_the_exponent_of_their_step(self, step, beta):
    batch = base.Batch(
      *(None, None, jnp.array(self.IS_VALID), None, jnp.array(self.PROBS)), None
    )
    compute = importance.annealed_per_importance_weights
    constants = {'start': 0.4, 'end': 1.0, 'num_steps': 10}
    expected = self.weights(beta)
    np.testing.assert_allclose(
      compute(batch, jnp.int32(step), **constants), expected, rtol=1e-6
    )
    np.testing.assert_allclose(
      jax.jit(compute)(batch, jnp.int32(step), **constants), expected, rtol=1e-6
    )

  @parameterized.parameters(
    ({'start': 1.5}, r'^start = 1.5: must be in \[0, 1\]$'),
    ({'end': -1.0}, r'^end = -1.0: must be in \[0, 1\]$'),
    ({'num_steps': 0}, r'^num_steps = 0: must be in \[1, inf\)$'),
  )
  def test_a_wrong_constant_of_annealed_weights_raises(self, wrong, message):
    constants = {'start': 0.4, 'end': 1.0, 'num_steps': 10} | wrong
    with self.assertRaisesRegex(ValueError, message):
      importance.annealed_per_importance_weights(
        None, jnp.int32(0), **constants
      )

  def test_weights_equal_the_equation_for_any_number_of_slots(self):
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(16)).astype(np.float32)
    for num_slots in (16, 1000):
      expected = (num_slots * probs) ** -0.7
      np.testing.assert_allclose(
        self.weights(0.7, probs, np.ones(16, bool)),
        expected / expected.max(),
        rtol=1e-5,
      )

  def test_without_a_draw_fresh_rows_have_a_weight_of_one(self):
    with jax.debug_nans(True):
      actual = self.weights(0.4, np.zeros(5, np.float32))
    np.testing.assert_array_equal(actual, self.IS_VALID)

  def test_wrong_inputs_raise(self):
    with self.assertRaisesRegex(AssertionError, 'rank'):
      self.weights(1.0, np.ones((5, 1), np.float32))
    with self.assertRaisesRegex(AssertionError, 'shape'):
      self.weights(1.0, np.ones(4, np.float32))
    with self.assertRaisesRegex(AssertionError, 'type'):
      self.weights(1.0, np.ones(5, np.int32))
    with self.assertRaisesRegex(
      ValueError, r'^exponent = 1.5: must be in \[0, 1\]'
    ):
      self.weights(1.5)
