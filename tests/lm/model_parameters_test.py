"""Tests of the parameters of `replay_rl.lm.model`: axes, start, counts."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl.lm import architecture
from replay_rl.lm import model
from tests.lm import small_models


class ParametersTest(parameterized.TestCase):
  @parameterized.named_parameters(*small_models.VARIANTS)
  def test_axes_have_the_structure_and_rank_of_the_parameters(self, config):
    _, params = small_models.init(config)
    sizes = {
      'layers': config.num_layers,
      'vocab': config.vocab_size,
      'embed': config.d_model,
      'heads': config.num_heads,
      'kv_heads': config.num_kv_heads,
      'head_dim': config.head_dim,
      'mlp': config.d_ff,
      None: 2,
    }
    shapes = jax.tree.map(
      lambda axes: tuple(sizes[axis] for axis in axes),
      model.logical_axes(config),
      is_leaf=lambda leaf: isinstance(leaf, tuple),
    )
    self.assertEqual(shapes, jax.tree.map(jnp.shape, params))
    self.assertEqual(
      architecture.num_params(config),
      sum(leaf.size for leaf in jax.tree.leaves(params)),
    )

  def test_initial_values_follow_from_the_key_and_the_documented_scales(self):
    config = dataclasses.replace(
      small_models.TIED, vocab_size=400, d_model=64, d_ff=100, num_layers=4
    )
    graphdef, params = model.init(config, jax.random.key(0))
    again_def, again = model.init(config, jax.random.key(0))
    other_def, other = model.init(config, jax.random.key(1))
    self.assertEqual(graphdef, again_def)
    self.assertEqual(hash(graphdef), hash(other_def))
    self.assertEqual(model.config_of(graphdef, params), config)
    jax.tree.map(np.testing.assert_array_equal, params, again)
    self.assertFalse(np.allclose(params['embedding'], other['embedding']))
    stacked = params['layers']
    for leaf, stddev in (
      (params['embedding'], 64**-0.5),
      (stacked['query'], 64**-0.5),
      (stacked['key_value'], 64**-0.5),
      (stacked['gate_up'], 64**-0.5),
      (stacked['output'], (24 * 8) ** -0.5),
      (stacked['down'], (100 * 8) ** -0.5),
    ):
      np.testing.assert_allclose(np.std(leaf), stddev, rtol=0.05)
    np.testing.assert_array_equal(stacked['attention_norm'], 1.0)

  def test_flops_agree_with_what_the_compiler_counts(self):
    config = dataclasses.replace(
      small_models.TIED,
      vocab_size=500,
      d_model=128,
      d_ff=384,
      head_dim=32,
      num_layers=3,
    )
    graphdef, params = model.init(config, jax.random.key(0))
    tokens = small_models.tokens((4, 64))
    cost = (
      jax.jit(model.apply, static_argnums=0)
      .lower(graphdef, params, tokens)
      .cost_analysis()
    )
    expected = tokens.size * (
      architecture.flops_per_token(config)
      + architecture.attention_flops(config, 64)
    )
    self.assertBetween(cost['flops'] / expected, 1.0, 1.05)
