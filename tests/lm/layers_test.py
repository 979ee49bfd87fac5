"""Tests for `replay_rl.lm.layers`."""

import math

import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl.lm import layers


class LayersTest(parameterized.TestCase):
  def test_rms_norm_by_hand(self):
    # Mean square (9 + 16) / 2 = 12.5, plus 3.5 is 16.
    normed = layers.rms_norm(
      jnp.array([[3.0, 4.0]]), jnp.array([1.0, 2.0]), 3.5
    )
    np.testing.assert_allclose(normed, [[0.75, 2.0]])

  @parameterized.parameters(1, 2)
  def test_attention_by_hand(self, num_queries):
    # One group of two heads, head_dim 4, three columns of which two are open.
    # The first head scores ln 9 higher on the second column: weights .1, .9.
    # The second head asks nothing: weights .5, .5.
    q_BKGTd = jnp.zeros((1, 1, 2, num_queries, 4))
    q_BKGTd = q_BKGTd.at[0, 0, 0, :, 0].set(2 * math.log(9))
    keys_BKSd = jnp.zeros((1, 1, 3, 4)).at[0, 0, 1, 0].set(1.0)
    values_BKSd = jnp.array([[[[10.0] * 4, [20.0] * 4, [99.0] * 4]]])
    mask_BTS = jnp.array([[[True, True, False]] * num_queries])
    heads = layers.attend(q_BKGTd, keys_BKSd, values_BKSd, mask_BTS)
    self.assertEqual(heads.shape, (1, 1, 2, num_queries, 4))
    np.testing.assert_allclose(heads[0, 0, 0], 19.0, rtol=1e-6)
    np.testing.assert_allclose(heads[0, 0, 1], 15.0, rtol=1e-6)
