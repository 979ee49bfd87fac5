"""One transformer layer: pre-norm attention and gated feed-forward.

Letters beyond those of `base`: K key-value heads, G query heads of each, S
columns to attend to, d channels of a head, c a pair of fused matrices.
"""

import functools
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from replay_rl import base
from replay_rl.lm import architecture
from replay_rl.lm import rope

# Models of at most this many layers run unrolled, which saves the copies that
# a scan makes of weights and activations (a fifth of a step on CPU). Deeper
# models run as a scan, so that compile time does not grow with depth.
UNROLL_LIMIT = 8

# The type of sums over heads or channels, which may cross devices.
_SUM = jnp.float32


class KeyValues(NamedTuple):
  """Rotated keys and values, `[layers, B, K, S, d]` each."""

  keys: base.Array
  values: base.Array


class Context(NamedTuple):
  """Positions and attention of the tokens, the same for every layer.

  cosines, sines: `[B, T, d / 2]` float32, see `rope.rotations`.
  attend: (queries `[B, K, G, T, d]`, keys and values `[B, K, S, d]`) -> heads
    `[B, K, G, T, d]`.
  column: `[]` int32, where the first token goes in a key-value cache.
  """

  cosines: base.Array
  sines: base.Array
  attend: Callable[[base.Array, base.Array, base.Array], base.Array]
  column: base.Array


def is_unrolled(num_layers: int) -> bool:
  """Returns whether a model runs layer by layer rather than in a scan."""
  return num_layers <= UNROLL_LIMIT


def normal(
  rngs: nnx.Rngs, shape: tuple[int, ...], axes: tuple, *, stddev: float
) -> nnx.Param:
  """Returns a parameter drawn from a normal; `axes` names its dimensions."""
  return nnx.Param(stddev * jax.random.normal(rngs.params(), shape), axes=axes)


def constant(value: float, shape: tuple[int, ...], axes: tuple) -> nnx.Param:
  """Returns a parameter of equal entries; `axes` names its dimensions."""
  return nnx.Param(jnp.full(shape, value, jnp.float32), axes=axes)


def unsplit(array: base.Array, logical_axes: tuple) -> base.Array:
  """Returns the array itself: the `base.ConstrainFn` of one device."""
  del logical_axes
  return array


def look_up(
  embedding: base.Array,
  tokens_BT: base.Array,
  *,
  dtype: Any,
  constrain_fn: base.ConstrainFn,
) -> base.Array:
  """Returns the embeddings of tokens, `[B, T, D]`, from a `[V, D]` table.

  Each device reads its channels for more rows than its own, and then exchanges
  them for all channels of its rows. No device has the whole table or all rows.
  """
  tokens_BT = constrain_fn(tokens_BT, ('data_rows', None))
  x_BTD = constrain_fn(embedding[tokens_BT], ('data_rows', None, 'embed'))
  return constrain_fn(x_BTD.astype(dtype), ('rows', None, None))


def split_vocab(
  weight_VD: base.Array, constrain_fn: base.ConstrainFn
) -> base.Array:
  """Returns an output projection, `[V, D]`, arranged as `logits` reads it."""
  return constrain_fn(weight_VD, ('fsdp_vocab', None))


def logits(
  x: base.Array, weight_VD: base.Array, *, constrain_fn: base.ConstrainFn
) -> base.Array:
  """Returns float32 logits of hidden states, `[B, D]` or `[B, T, D]`.

  Each device computes its part of the vocabulary for more rows than its own.
  The rows are far smaller than the weights, so this saves to collect the output
  projection and to add up its gradient over `fsdp`. The compiler collects it
  after all where `tensor` x `fsdp` does not divide V.
  """
  inner = (None,) * (x.ndim - 2)
  x = constrain_fn(x, ('data_rows', *inner, None))
  rows = 'bt'[: x.ndim - 1]
  result = matmul(f'{rows}d,vd->{rows}v', jnp.float32, x, weight_VD)
  return constrain_fn(result, ('data_rows', *inner, 'fsdp_vocab'))


class Layer(nnx.Module):
  """A layer. Its constructor draws the parameters of all layers, stacked.

  Matrices that read the same input are one array: `key_value[..., c, :, :]` has
  keys for c = 0 and values for c = 1, `gate_up[..., c, :]` has gate and up.
  Weights start normal with variance 1 / fan-in. The two that write to the
  residual stream are divided by sqrt(2 num_layers), as in GPT-2.
  """

  def __init__(
    self,
    config: architecture.TransformerConfig,
    *,
    rngs: nnx.Rngs,
    constrain_fn: base.ConstrainFn,
  ):
    """Draws the parameters of every layer."""
    N, D, F = config.num_layers, config.d_model, config.d_ff
    H, K, d = config.num_heads, config.num_kv_heads, config.head_dim
    residual_scale = (2 * N) ** -0.5
    self.config = config
    self.constrain_fn = constrain_fn
    self.attention_norm = constant(1.0, (N, D), ('layers', 'embed'))
    self.query = normal(
      rngs,
      (N, D, H, d),
      ('layers', 'embed', 'heads', 'head_dim'),
      stddev=D**-0.5,
    )
    self.key_value = normal(
      rngs,
      (N, D, 2, K, d),
      ('layers', 'embed', None, 'kv_heads', 'head_dim'),
      stddev=D**-0.5,
    )
    self.output = normal(
      rngs,
      (N, H, d, D),
      ('layers', 'heads', 'head_dim', 'embed'),
      stddev=residual_scale * (H * d) ** -0.5,
    )
    if config.qkv_bias:
      self.query_bias = constant(
        0.0, (N, H, d), ('layers', 'heads', 'head_dim')
      )
      self.key_value_bias = constant(
        0.0, (N, 2, K, d), ('layers', None, 'kv_heads', 'head_dim')
      )
    if config.qk_norm:
      self.query_norm = constant(1.0, (N, d), ('layers', 'head_dim'))
      self.key_norm = constant(1.0, (N, d), ('layers', 'head_dim'))
    self.mlp_norm = constant(1.0, (N, D), ('layers', 'embed'))
    self.gate_up = normal(
      rngs, (N, D, 2, F), ('layers', 'embed', None, 'mlp'), stddev=D**-0.5
    )
    self.down = normal(
      rngs,
      (N, F, D),
      ('layers', 'mlp', 'embed'),
      stddev=residual_scale * F**-0.5,
    )

  def __call__(
    self,
    x_BTD: base.Array,
    context: Context,
    cache: KeyValues | None,
    index: base.Array | int,
  ) -> tuple[base.Array, KeyValues | None]:
    """Returns the residual stream after this layer, and the cache.

    Args:
      x_BTD: `[B, T, D]` residual stream.
      context: positions and attention.
      cache: None to attend to the T tokens alone. Otherwise the layer writes
        their keys and values to the columns from `context.column` on, and
        attends to all columns.
      index: `[]` int32, index of this layer in the cache.
    """
    epsilon = self.config.norm_eps
    h_BTD = rms_norm(x_BTD, self.attention_norm[...], epsilon)
    q_BKGTd, keys_BKSd, values_BKSd = self._project(h_BTD, context)
    if cache is not None:
      # If it were read before the write, XLA would copy the cache.
      start = (index, 0, 0, context.column, 0)
      cache = KeyValues(
        jax.lax.dynamic_update_slice(cache.keys, keys_BKSd[None], start),
        jax.lax.dynamic_update_slice(cache.values, values_BKSd[None], start),
      )
      keys_BKSd, values_BKSd = cache.keys[index], cache.values[index]
    heads_BKGTd = context.attend(q_BKGTd, keys_BKSd, values_BKSd)
    B, K, G, T, d = heads_BKGTd.shape
    heads_BTHd = heads_BKGTd.transpose(0, 3, 1, 2, 4).reshape(B, T, K * G, d)
    x_BTD = _add(
      x_BTD, matmul('bthk,hkd->btd', _SUM, heads_BTHd, self.output[...])
    )
    h_BTD = rms_norm(x_BTD, self.mlp_norm[...], epsilon)
    h_BTcF = matmul('btd,dcf->btcf', h_BTD.dtype, h_BTD, self.gate_up[...])
    h_BTF = jax.nn.silu(h_BTcF[:, :, 0]) * h_BTcF[:, :, 1]
    x_BTD = _add(x_BTD, matmul('btf,fd->btd', _SUM, h_BTF, self.down[...]))
    # The same split as after the look-up, so that the compiler chooses no
    # other.
    return self.constrain_fn(x_BTD, ('rows', None, None)), cache

  def _project(
    self, h_BTD: base.Array, context: Context
  ) -> tuple[base.Array, base.Array, base.Array]:
    """Returns queries `[B, K, G, T, d]`, keys and values `[B, K, T, d]`."""
    config = self.config
    dtype = h_BTD.dtype
    q_BTHd = matmul('btd,dhk->bthk', dtype, h_BTD, self.query[...])
    kv_BTcKd = matmul('btd,dchk->btchk', dtype, h_BTD, self.key_value[...])
    if config.qkv_bias:
      q_BTHd = _add(q_BTHd, self.query_bias[None, None])
      kv_BTcKd = _add(kv_BTcKd, self.key_value_bias[None, None])
    k_BTKd, v_BTKd = kv_BTcKd[:, :, 0], kv_BTcKd[:, :, 1]
    if config.qk_norm:
      q_BTHd = rms_norm(q_BTHd, self.query_norm[...], config.norm_eps)
      k_BTKd = rms_norm(k_BTKd, self.key_norm[...], config.norm_eps)
    cosines, sines = context.cosines[:, :, None], context.sines[:, :, None]
    q_BTHd = rope.rotate(q_BTHd, cosines, sines)
    k_BTKd = rope.rotate(k_BTKd, cosines, sines)
    B, T, H, d = q_BTHd.shape
    K = config.num_kv_heads
    q_BKGTd = q_BTHd.reshape(B, T, K, H // K, d).transpose(0, 2, 3, 1, 4)
    return q_BKGTd, k_BTKd.transpose(0, 2, 1, 3), v_BTKd.transpose(0, 2, 1, 3)


def rms_norm(x: base.Array, scale_D: base.Array, epsilon: float) -> base.Array:
  """Divides the last axis by its root mean square, in float32, and scales it.

  Zhang and Sennrich, 'Root Mean Square Layer Normalization',
  arXiv:1910.07467, Eq. 4, with `epsilon` inside the root.
  """
  x_float32 = x.astype(jnp.float32)
  mean_square = jnp.mean(jnp.square(x_float32), axis=-1, keepdims=True)
  normed = x_float32 * jax.lax.rsqrt(mean_square + epsilon)
  scale = jnp.expand_dims(scale_D, tuple(range(x.ndim - 1)))
  return (normed * scale).astype(x.dtype)


def matmul(
  subscripts: str, dtype: Any, x: base.Array, weight: base.Array
) -> base.Array:
  """Returns the einsum of activations and float32 weights.

  Factors have the type of `x`. Sums that may cross devices are float32: the
  sums of both gradients, and of a float32 result. The gradient of the weights
  stays float32, so that rows on several devices or in several microbatches add
  up in float32.

  Args:
    subscripts: two operands; each letter of an operand is also in the other one
      or in the result.
    dtype: type of the result.
    x: activations.
    weight: float32.
  """
  return _matmul(subscripts, dtype, x, weight)  # pyright: ignore


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _matmul(subscripts, dtype, x, weight):
  return jnp.einsum(
    subscripts, x, weight.astype(x.dtype), preferred_element_type=dtype
  )


def _matmul_forward(subscripts, dtype, x, weight):
  return _matmul(subscripts, dtype, x, weight), (x, weight)


def _matmul_backward(subscripts, dtype, saved, gradient):
  del dtype
  x, weight = saved
  operands, result = subscripts.split('->')
  left, right = operands.split(',')
  product = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
  gradient = gradient.astype(x.dtype)
  of_x = product(f'{result},{right}->{left}', gradient, weight.astype(x.dtype))
  of_weight = product(f'{left},{result}->{right}', x, gradient)
  return of_x.astype(x.dtype), of_weight


_matmul.defvjp(_matmul_forward, _matmul_backward)


def _add(x: base.Array, y_float32: base.Array) -> base.Array:
  """Adds in float32 and rounds once; gradients of a bias sum in float32."""
  return (x.astype(jnp.float32) + y_float32).astype(x.dtype)
