"""Tiny models of each published layout, for tests of loading and saving."""

import dataclasses

from tests.lm import small_models

QWEN3, QWEN2, LLAMA = (
  dataclasses.replace(
    config,
    vocab_size=18,
    d_model=12,
    num_layers=3,
    num_kv_heads=2,
    d_ff=10,
    max_context=16,
  )
  for config in (small_models.QWEN3, small_models.QWEN25, small_models.LLAMA3)
)
LLAMA = dataclasses.replace(LLAMA, tied_embeddings=True)
