"""Rotary position embeddings, halves rotated as in Hugging Face checkpoints."""

import math

import jax.numpy as jnp
import numpy as np

from replay_rl import base
from replay_rl.lm import architecture


def frequencies(config: architecture.TransformerConfig) -> np.ndarray:
  """Returns the angle per token of each pair of channels.

  Su et al., 'RoFormer', arXiv:2104.09864, section 3.2.2.

  Returns:
    `[head_dim / 2]` float64, radians, computed on the host.
  """
  exponents = np.arange(0, config.head_dim, 2) / config.head_dim
  freqs = config.rope_theta**-exponents
  if config.rope_scaling is None:
    return freqs
  return scale_frequencies(freqs, config.rope_scaling)


def scale_frequencies(
  freqs: np.ndarray, scaling: architecture.RopeScaling
) -> np.ndarray:
  """Slows the frequencies that did not complete a turn in pre-training.

  Llama Team, 'The Llama 3 Herd of Models', arXiv:2407.21783. The released
  checkpoints with `rope_type: llama3` define the formula.

  Args:
    freqs: `[head_dim / 2]` radians per token.
    scaling: see its fields.

  Returns:
    `[head_dim / 2]` radians per token.
  """
  turns = scaling.original_max_context * freqs / (2 * math.pi)
  low, high = scaling.low_freq_factor, scaling.high_freq_factor
  kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
  return freqs * (kept + (1.0 - kept) / scaling.factor)


def rotations(
  positions_BT: base.Array, freqs: np.ndarray
) -> tuple[base.Array, base.Array]:
  """Returns cosines and sines `[B, T, head_dim / 2]`, float32, of positions."""
  freqs_1d = jnp.asarray(freqs, jnp.float32)[None, None, :]
  angles_BTd = positions_BT[:, :, None].astype(jnp.float32) * freqs_1d
  return jnp.cos(angles_BTd), jnp.sin(angles_BTd)


def rotate(x: base.Array, cosines: base.Array, sines: base.Array) -> base.Array:
  """Rotates channel i with channel i + head_dim / 2.

  Args:
    x: `[..., head_dim]`.
    cosines: `[..., head_dim / 2]`, of the same rank, broadcast against `x`.
    sines: `[..., head_dim / 2]`, as `cosines`.

  Returns:
    `[..., head_dim]`, of the type of `x`.
  """
  first, second = jnp.split(x, 2, axis=-1)
  rotated = jnp.concatenate(
    [first * cosines - second * sines, second * cosines + first * sines],
    axis=-1,
  )
  return rotated.astype(x.dtype)
