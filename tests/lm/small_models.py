"""Small models of every architecture, and tokens for them."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from replay_rl.lm import architecture
from replay_rl.lm import model

TIED = architecture.TransformerConfig(
  vocab_size=23,
  d_model=16,
  num_layers=2,
  num_heads=4,
  num_kv_heads=2,
  head_dim=6,
  d_ff=20,
  rope_theta=100.0,
  rope_scaling=None,
  norm_eps=1e-5,
  qk_norm=False,
  qkv_bias=False,
  tied_embeddings=True,
  max_context=32,
  compute_dtype='float32',
)
QWEN3 = dataclasses.replace(TIED, num_layers=1, qk_norm=True, num_kv_heads=4)
QWEN25 = dataclasses.replace(
  TIED, qkv_bias=True, num_kv_heads=1, tied_embeddings=False
)
LLAMA3 = dataclasses.replace(
  TIED,
  num_layers=1,
  tied_embeddings=False,
  rope_scaling=architecture.RopeScaling(8.0, 1.0, 4.0, 20),
)
VARIANTS = (
  ('tied', TIED),
  ('qwen3', QWEN3),
  ('qwen25', QWEN25),
  ('llama3', LLAMA3),
)


@functools.cache
def init(config, seed=0):
  """Returns a model whose norms and biases differ from their first values."""
  init_fn = jax.jit(model.init, static_argnums=0)
  graphdef, params = init_fn(config, jax.random.key(seed))
  rng = np.random.default_rng(seed)
  return graphdef, jax.tree.map(
    lambda leaf: jnp.asarray(
      np.asarray(leaf) + 0.3 * rng.normal(size=leaf.shape).astype('f')
    ),
    params,
  )


def tokens(shape, vocab_size=23):
  rng = np.random.default_rng(1)
  return rng.integers(0, vocab_size, shape, np.int32)
