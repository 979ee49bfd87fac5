"""Tiny models of each published layout, for tests of loading and saving."""

import dataclasses

from replay_rl.lm import architecture

QWEN3 = architecture.TransformerConfig(
  vocab_size=18,
  d_model=12,
  num_layers=3,
  num_heads=4,
  num_kv_heads=2,
  head_dim=6,
  d_ff=10,
  rope_theta=100.0,
  rope_scaling=None,
  norm_eps=1e-5,
  qk_norm=True,
  qkv_bias=False,
  tied_embeddings=True,
  max_context=16,
  compute_dtype='float32',
)
QWEN2 = dataclasses.replace(
  QWEN3, qk_norm=False, qkv_bias=True, tied_embeddings=False
)
LLAMA = dataclasses.replace(
  QWEN3,
  qk_norm=False,
  rope_scaling=architecture.RopeScaling(8.0, 1.0, 4.0, 8),
)
