"""Tests of the normalizers of replay_rl.rl.losses."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl.rl import losses
from tests.rl import loss_cases

NORMALIZERS = loss_cases.NORMALIZERS


class NormalizersTest(parameterized.TestCase):
  MASK = jnp.array(
    [[False, True, True], [False, True, False], [False, False, False]]
  )

  def test_token_mean_by_hand(self):
    np.testing.assert_allclose(
      losses.token_mean(self.MASK),
      [[0.0, 1 / 3, 1 / 3], [0.0, 1 / 3, 0.0], [0.0, 0.0, 0.0]],
    )

  def test_sequence_mean_by_hand(self):
    np.testing.assert_allclose(
      losses.sequence_mean(self.MASK),
      [[0.0, 0.25, 0.25], [0.0, 0.5, 0.0], [0.0, 0.0, 0.0]],
    )

  def test_constant_by_hand(self):
    # Two rows with tokens, of five tokens each.
    np.testing.assert_allclose(
      losses.constant(self.MASK, tokens_per_row=5.0),
      [[0.0, 0.1, 0.1], [0.0, 0.1, 0.0], [0.0, 0.0, 0.0]],
    )

  @parameterized.parameters(*NORMALIZERS)
  def test_a_batch_without_tokens_has_weights_of_zero(self, name):
    with jax.debug_nans(True):
      weights = jax.jit(NORMALIZERS[name])(jnp.zeros((2, 3), bool))
    np.testing.assert_array_equal(weights, np.zeros((2, 3)))
    self.assertEqual(weights.dtype, jnp.float32)

  @parameterized.parameters(*NORMALIZERS)
  def test_wrong_inputs_raise(self, name):
    with self.assertRaisesRegex(AssertionError, 'rank'):
      NORMALIZERS[name](self.MASK[0])
    with self.assertRaisesRegex(AssertionError, 'type'):
      NORMALIZERS[name](self.MASK.astype(jnp.float32))

  def test_a_constant_out_of_range_raises(self):
    with self.assertRaisesRegex(ValueError, r'^tokens_per_row = 0: must be in'):
      losses.constant(self.MASK, tokens_per_row=0)
