"""The shape of a transformer, its parameters and its floating-point operations.

There are no arrays here.
"""

import dataclasses
import math
from typing import NamedTuple


class RopeScaling(NamedTuple):
  """Frequency scaling of Llama 3.1 and later; see `rope.scale_frequencies`.

  factor: divides the slow frequencies; at least 1.
  low_freq_factor: turns within the original context below which a frequency is
    slow.
  high_freq_factor: turns above which a frequency stays as it is.
  original_max_context: tokens, the context of pre-training.
  """

  factor: float
  low_freq_factor: float
  high_freq_factor: float
  original_max_context: int


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
  """Architecture of a decoder-only transformer.

  vocab_size: rows of the embedding. d_model: width of the residual stream.
  num_layers: transformer layers. num_heads: query heads. num_kv_heads: key and
  value heads; each serves `num_heads / num_kv_heads` query
    heads.
  head_dim: channels of a head, even.
  d_ff: width of the gated feed-forward layer.
  rope_theta: base of the rotary wavelengths.
  rope_scaling: None, or the scaling of Llama 3.
  norm_eps: added to the mean square in RMSNorm.
  qk_norm: RMSNorm of each query and key head (Qwen3).
  qkv_bias: biases on queries, keys and values (Qwen2.5).
  tied_embeddings: the output layer is the embedding, transposed.
  max_context: tokens, prompt and response together.
  compute_dtype: 'float32' or 'bfloat16'. Parameters, norms, softmax and logits
    are float32 in either case.
  """

  vocab_size: int
  d_model: int
  num_layers: int
  num_heads: int
  num_kv_heads: int
  head_dim: int
  d_ff: int
  rope_theta: float
  rope_scaling: RopeScaling | None
  norm_eps: float
  qk_norm: bool
  qkv_bias: bool
  tied_embeddings: bool
  max_context: int
  compute_dtype: str

  def __post_init__(self):
    """Raises ValueError if the fields do not describe a transformer."""
    for name in (
      'vocab_size',
      'd_model',
      'num_layers',
      'num_heads',
      'num_kv_heads',
      'head_dim',
      'd_ff',
      'rope_theta',
      'norm_eps',
      'max_context',
    ):
      if not 0 < getattr(self, name) < math.inf:  # No NaN either.
        raise ValueError(
          f'{name} = {getattr(self, name)}: must be positive and finite'
        )
    if self.num_heads % self.num_kv_heads:
      raise ValueError(
        f'num_heads = {self.num_heads}: must be a multiple of num_kv_heads = '
        f'{self.num_kv_heads}'
      )
    if self.head_dim % 2:
      raise ValueError(
        f'head_dim = {self.head_dim}: must be even, as RoPE rotates pairs'
      )
    if self.compute_dtype not in ('float32', 'bfloat16'):
      raise ValueError(
        f'compute_dtype = {self.compute_dtype!r}: must be float32 or bfloat16'
      )


def num_matmul_weights(config: TransformerConfig) -> int:
  """Returns the weights that multiply each token, output layer included."""
  attention = (2 * config.num_heads + 2 * config.num_kv_heads) * config.head_dim
  layer = config.d_model * (attention + 3 * config.d_ff)
  return config.num_layers * layer + config.d_model * config.vocab_size


def num_params(config: TransformerConfig) -> int:
  """Returns the number of parameters."""
  heads = config.num_heads + 2 * config.num_kv_heads
  layer = 2 * config.d_model
  layer += 2 * config.head_dim if config.qk_norm else 0
  layer += heads * config.head_dim if config.qkv_bias else 0
  num_embeddings = 0 if config.tied_embeddings else 1
  return (
    num_matmul_weights(config)
    + num_embeddings * config.vocab_size * config.d_model
    + config.num_layers * layer
    + config.d_model
  )


def flops_per_token(config: TransformerConfig) -> int:
  """Returns the forward FLOPs of one token, attention scores excluded.

  A multiply-add counts as two. A backward pass costs twice the forward
  (Kaplan et al., 'Scaling Laws for Neural Language Models', arXiv:2001.08361,
  section 2.1), so training on a token takes three times this number.
  """
  return 2 * num_matmul_weights(config)


def attention_flops(config: TransformerConfig, context: int) -> int:
  """Returns the forward FLOPs by which one token reads `context` tokens.

  This counts scores and weighted values of all layers. Without a fused causal
  kernel, the program also computes on masked tokens, so they count as context.
  """
  return 4 * config.num_layers * config.num_heads * config.head_dim * context
