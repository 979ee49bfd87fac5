"""Tests for `replay_rl.lm.rope`."""

import math
import types

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl.lm import architecture
from replay_rl.lm import rope


class RopeTest(parameterized.TestCase):
  def test_frequencies_fall_from_one_to_theta_to_minus_one_half(self):
    config = types.SimpleNamespace(
      head_dim=4, rope_theta=100.0, rope_scaling=None
    )
    # 100 ** -(0 / 4) and 100 ** -(2 / 4).
    np.testing.assert_allclose(rope.frequencies(config), [1.0, 0.1])

  def test_scaling_slows_only_what_turns_slowly(self):
    # Within 100 tokens of original context: 8, 2.5 and 0.5 turns.
    turns = np.array([8.0, 2.5, 0.5])
    freqs = 2 * math.pi * turns / 100
    scaling = architecture.RopeScaling(
      factor=4.0,
      low_freq_factor=1.0,
      high_freq_factor=4.0,
      original_max_context=100,
    )
    # Kept; half kept, as 2.5 is half-way from 1 to 4: 1/2 + 1/2 / 4; divided.
    np.testing.assert_allclose(
      rope.scale_frequencies(freqs, scaling), freqs * [1.0, 0.625, 0.25]
    )
    config = types.SimpleNamespace(
      head_dim=4, rope_theta=1e8, rope_scaling=scaling
    )
    # 100 / (2 pi) turns: kept. 1e-4 times that: divided by 4.
    np.testing.assert_allclose(rope.frequencies(config), [1.0, 1e-4 / 4])

  @parameterized.parameters(False, True)
  def test_a_quarter_turn_moves_the_first_half_to_the_second(self, use_jit):
    freqs = np.array([math.pi / 2, math.pi])
    x_1d = jnp.array([[[1.0, 2.0, 3.0, 4.0]]])

    def rotate(positions, x):
      return rope.rotate(x, *rope.rotations(positions, freqs))

    rotated = (jax.jit(rotate) if use_jit else rotate)(jnp.array([[1]]), x_1d)
    # Pair (1, 3) turns to (-3, 1); pair (2, 4) turns to (-2, -4).
    np.testing.assert_allclose(
      rotated[0, 0], [-3.0, -2.0, 1.0, -4.0], atol=1e-6
    )

  def test_products_depend_on_the_distance_only(self):
    rng = np.random.default_rng(0)
    freqs = np.array([1.0, 0.3, 0.01])
    q, k = jnp.asarray(rng.normal(size=(2, 1, 1, 6)), jnp.float32)

    def product(query_position, key_position):
      def turn(x, position):
        return rope.rotate(x, *rope.rotations(jnp.array([[position]]), freqs))

      return jnp.vdot(turn(q, query_position), turn(k, key_position))

    np.testing.assert_allclose(product(9, 4), product(105, 100), rtol=1e-4)
    self.assertGreater(abs(product(9, 4) - product(4, 9)), 0.1)
