"""The shapes of published base models, by name: no checkpoint is needed.

A model has the name of its checkpoint on Hugging Face, and the numbers of its
`config.json`. In `MODELS`, `max_context` is the longest context that the
checkpoint allows, and `compute_dtype` the type of its weights.
"""

import dataclasses
from collections.abc import Mapping

from replay_rl.lm import architecture

_QWEN3 = architecture.TransformerConfig(
  vocab_size=151_936,
  d_model=1024,
  num_layers=28,
  num_heads=16,
  num_kv_heads=8,
  head_dim=128,
  d_ff=3072,
  rope_theta=1_000_000.0,
  rope_scaling=None,
  norm_eps=1e-6,
  qk_norm=True,
  qkv_bias=False,
  tied_embeddings=True,
  max_context=32_768,
  compute_dtype='bfloat16',
)
_QWEN25 = architecture.TransformerConfig(
  vocab_size=151_936,
  d_model=896,
  num_layers=24,
  num_heads=14,
  num_kv_heads=2,
  head_dim=64,
  d_ff=4864,
  rope_theta=1_000_000.0,
  rope_scaling=None,
  norm_eps=1e-6,
  qk_norm=False,
  qkv_bias=True,
  tied_embeddings=True,
  max_context=32_768,
  compute_dtype='bfloat16',
)
_QWEN25_1_5B = dataclasses.replace(
  _QWEN25,
  d_model=1536,
  num_layers=28,
  num_heads=12,
  head_dim=128,
  d_ff=8960,
  max_context=131_072,
)
_LLAMA32 = architecture.TransformerConfig(
  vocab_size=128_256,
  d_model=2048,
  num_layers=16,
  num_heads=32,
  num_kv_heads=8,
  head_dim=64,
  d_ff=8192,
  rope_theta=500_000.0,
  rope_scaling=architecture.RopeScaling(
    factor=32.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_context=8192,
  ),
  norm_eps=1e-5,
  qk_norm=False,
  qkv_bias=False,
  tied_embeddings=True,
  max_context=131_072,
  compute_dtype='bfloat16',
)

MODELS: Mapping[str, architecture.TransformerConfig] = {
  'Qwen3-0.6B-Base': _QWEN3,
  'Qwen3-1.7B-Base': dataclasses.replace(_QWEN3, d_model=2048, d_ff=6144),
  'Qwen3-4B-Base': dataclasses.replace(
    _QWEN3, d_model=2560, num_layers=36, num_heads=32, d_ff=9728
  ),
  'Qwen3-8B-Base': dataclasses.replace(
    _QWEN3,
    d_model=4096,
    num_layers=36,
    num_heads=32,
    d_ff=12_288,
    tied_embeddings=False,
  ),
  'Qwen2.5-0.5B': _QWEN25,
  'Qwen2.5-1.5B': _QWEN25_1_5B,
  'Qwen2.5-3B': dataclasses.replace(
    _QWEN25,
    d_model=2048,
    num_layers=36,
    num_heads=16,
    head_dim=128,
    d_ff=11_008,
  ),
  'Qwen2.5-7B': dataclasses.replace(
    _QWEN25,
    vocab_size=152_064,
    d_model=3584,
    num_layers=28,
    num_heads=28,
    num_kv_heads=4,
    head_dim=128,
    d_ff=18_944,
    tied_embeddings=False,
    max_context=131_072,
  ),
  'Qwen2.5-Math-1.5B': dataclasses.replace(
    _QWEN25_1_5B, rope_theta=10_000.0, max_context=4096
  ),
  'Llama-3.2-1B': _LLAMA32,
  'Llama-3.2-3B': dataclasses.replace(
    _LLAMA32, d_model=3072, num_layers=28, num_heads=24, head_dim=128
  ),
}


def shape(
  name: str, *, max_context: int, compute_dtype: str
) -> architecture.TransformerConfig:
  """Returns the architecture of a published model.

  Args:
    name: a key of `MODELS`.
    max_context: tokens of prompt and response that the caller needs.
    compute_dtype: 'float32' or 'bfloat16'.

  Raises:
    ValueError: the name is unknown, or the model has less context.
  """
  if name not in MODELS:
    raise ValueError(f'name = {name!r}: must be one of {sorted(MODELS)}')
  model = MODELS[name]
  if max_context > model.max_context:
    raise ValueError(
      f'max_context = {max_context}: must be at most {model.max_context} for '
      f'{name}'
    )
  return dataclasses.replace(
    model, max_context=max_context, compute_dtype=compute_dtype
  )
