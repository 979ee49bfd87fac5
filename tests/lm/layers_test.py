"""Tests for `replay_rl.lm.layers`."""

import jax.numpy as jnp
import numpy as np
from absl.testing import absltest

from replay_rl.lm import layers


class LayersTest(absltest.TestCase):
  def test_rms_norm_by_hand(self):
    # Mean square (9 + 16) / 2 = 12.5, plus 3.5 is 16.
    normed = layers.rms_norm(
      jnp.array([[3.0, 4.0]]), jnp.array([1.0, 2.0]), 3.5
    )
    np.testing.assert_allclose(normed, [[0.75, 2.0]])
