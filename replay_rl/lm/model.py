"""Decoder-only transformer with the architecture of Llama 3, Qwen2.5 or Qwen3.

The module is split once into a static graph definition and a nested dict of
arrays; all functions here are pure in the arrays. The sampler and the learner
run the same code, so that their log-probabilities agree.
"""

from typing import NamedTuple

import chex
from flax import nnx
import jax
import jax.numpy as jnp

from replay_rl import base
from replay_rl.lm import architecture
from replay_rl.lm import layers
from replay_rl.lm import rope

# Models of at most this many layers run unrolled, which saves the copies that
# a scan makes of weights and activations (a fifth of a step on CPU). Deeper
# ones are scanned, so that compile time does not grow with depth.
UNROLL_LIMIT = 8


class Cache(NamedTuple):
  """Keys and values of the tokens read so far.

  keys, values: `[layers, B, K, S, head_dim]`.
  is_valid: `[B, S]` bool, True where the column holds a token of the row.
  num_columns: `[]` int32, columns written so far, the same for all rows.
  """

  keys: base.Array
  values: base.Array
  is_valid: base.Array
  num_columns: base.Array


class Transformer(nnx.Module):
  """Embedding, stacked layers, final norm and output layer.

  Embedding and output layer start normal with variance 1 / d_model: logits
  start with variance 1.
  """

  def __init__(
    self, config: architecture.TransformerConfig, *, rngs: nnx.Rngs
  ):
    """Draws all parameters."""
    V, D = config.vocab_size, config.d_model
    self.config = config
    self.embedding = layers.normal(
      rngs, (V, D), ('vocab', 'embed'), stddev=D**-0.5
    )
    self.layers = layers.Layer(config, rngs=rngs)
    self.final_norm = layers.constant(1.0, (D,), ('embed',))
    if not config.tied_embeddings:
      self.unembedding = layers.normal(
        rngs, (V, D), ('vocab', 'embed'), stddev=D**-0.5
      )


def init(
  config: architecture.TransformerConfig, rng_key: base.Array
) -> tuple[nnx.GraphDef, base.PyTree]:
  """Returns the static definition of the model and its parameters.

  Args:
    config: architecture.
    rng_key: random key, consumed.

  Returns:
    The graph definition, hashable and the same for every key, and a nested
    dict of float32 arrays.
  """
  graphdef, state = nnx.split(Transformer(config, rngs=nnx.Rngs(rng_key)))
  return graphdef, nnx.to_pure_dict(state)


def config_of(
  graphdef: nnx.GraphDef, params: base.PyTree
) -> architecture.TransformerConfig:
  """Returns the architecture that `init` was given."""
  return nnx.merge(graphdef, params).config


def logical_axes(config: architecture.TransformerConfig) -> base.PyTree:
  """Returns the names of the dimensions of each parameter.

  Returns:
    The nested dict of `init` with a tuple of names in place of each array:
    'layers', 'vocab', 'embed', 'heads', 'kv_heads', 'head_dim', 'mlp', or None
    for the axis of fused matrices.
  """
  abstract = nnx.eval_shape(lambda: Transformer(config, rngs=nnx.Rngs(0)))
  is_variable = lambda leaf: isinstance(leaf, nnx.Variable)
  return nnx.to_pure_dict(
    jax.tree.map(
      lambda variable: variable.replace(variable.axes),
      nnx.state(abstract),
      is_leaf=is_variable,
    )
  )


def init_cache(
  config: architecture.TransformerConfig, *, batch_size: int, num_columns: int
) -> Cache:
  """Returns an empty cache of `num_columns` columns."""
  shape = (
    config.num_layers,
    batch_size,
    config.num_kv_heads,
    num_columns,
    config.head_dim,
  )
  return Cache(
    keys=jnp.zeros(shape, config.compute_dtype),
    values=jnp.zeros(shape, config.compute_dtype),
    is_valid=jnp.zeros((batch_size, num_columns), bool),
    num_columns=jnp.zeros((), jnp.int32),
  )


def grow_cache(cache: Cache, num_columns: int) -> Cache:
  """Returns the cache with empty columns appended."""
  pad = ((0, 0), (0, 0), (0, 0), (0, num_columns), (0, 0))
  return cache._replace(
    keys=jnp.pad(cache.keys, pad),
    values=jnp.pad(cache.values, pad),
    is_valid=jnp.pad(cache.is_valid, pad[2:4]),
  )


def unstack(params: base.PyTree) -> base.PyTree:
  """Returns the parameters with a list of layers, if these are few enough.

  All functions of this module take both forms. A caller with a loop around
  the model converts once, outside, so that no step slices the weights.
  """
  stacked = params['layers']
  if isinstance(stacked, list):
    return params
  num_layers = jax.tree.leaves(stacked)[0].shape[0]
  if num_layers > UNROLL_LIMIT:
    return params
  per_layer = [
    jax.tree.map(lambda leaf, i=i: leaf[i], stacked) for i in range(num_layers)
  ]
  return {**params, 'layers': per_layer}


def hidden_states(
  graphdef: nnx.GraphDef,
  params: base.PyTree,
  tokens: base.Array,
  *,
  is_valid: base.Array | None = None,
  cache: Cache | None = None,
) -> tuple[base.Array, Cache | None]:
  """Returns what the output layer reads, `[B, T, D]`; the rest as `apply`."""
  chex.assert_rank(tokens, 2)
  chex.assert_type(tokens, jnp.int32)
  if is_valid is not None:
    chex.assert_equal_shape([tokens, is_valid])
    chex.assert_type(is_valid, bool)
  params = unstack(params)
  per_layer = params['layers']
  is_unrolled = isinstance(per_layer, list)
  module = nnx.merge(
    graphdef, {**params, 'layers': per_layer[0] if is_unrolled else per_layer}
  )
  config, layer_def = module.config, nnx.graphdef(module.layers)
  context, is_valid_BS = _context(config, tokens, is_valid, cache)

  def step(x_BTD, key_values, index, layer_params):
    layer = nnx.merge(layer_def, layer_params)
    return layer(x_BTD, context, key_values, index)

  x_BTD = module.embedding[...][tokens].astype(config.compute_dtype)
  key_values = cache and layers.KeyValues(cache.keys, cache.values)
  if is_unrolled:
    for index, layer_params in enumerate(per_layer):
      x_BTD, key_values = step(x_BTD, key_values, index, layer_params)
  else:
    (x_BTD, key_values), _ = jax.lax.scan(
      lambda carry, xs: (step(*carry, *xs), None),
      (x_BTD, key_values),
      (jnp.arange(config.num_layers), per_layer),
    )
  x_BTD = layers.rms_norm(x_BTD, module.final_norm[...], config.norm_eps)
  if cache is not None:
    num_columns = cache.num_columns + tokens.shape[1]
    cache = Cache(*key_values, is_valid_BS, num_columns)
  return x_BTD, cache


def unembed(params: base.PyTree, x: base.Array) -> base.Array:
  """Returns float32 logits `[..., V]` of hidden states `[..., D]`."""
  weights_VD = params.get('unembedding', params['embedding'])
  return jnp.einsum(
    '...d,vd->...v',
    x,
    weights_VD.astype(x.dtype),
    preferred_element_type=jnp.float32,
  )


def apply(
  graphdef: nnx.GraphDef,
  params: base.PyTree,
  tokens: base.Array,
  *,
  is_valid: base.Array | None = None,
  cache: Cache | None = None,
) -> tuple[base.Array, Cache | None]:
  """Returns the logits of the token after each token.

  Args:
    graphdef: from `init`.
    params: from `init`, or `unstack` of it.
    tokens: `[B, T]` int32.
    is_valid: `[B, T]` bool, False for padding on any side, which is neither
      attended to nor counted in positions; None if there is none to skip.
      Right padding needs no mask without a cache: attention is causal.
    cache: None, or the tokens that came before, with room for T more columns.

  Returns:
    Logits `[B, T, V]` float32, and the cache with these tokens written.
  """
  x_BTD, cache = hidden_states(
    graphdef, params, tokens, is_valid=is_valid, cache=cache
  )
  return unembed(params, x_BTD), cache


def token_logprobs(
  graphdef: nnx.GraphDef,
  params: base.PyTree,
  tokens: base.Array,
  *,
  temperature: float | base.Array,
) -> tuple[base.Array, base.Array]:
  """Returns the log-probability of each token given those before it.

  Args:
    graphdef: from `init`.
    params: from `init`.
    tokens: `[B, T]` int32, right-padded.
    temperature: `[]` positive; logits are divided by it.

  Returns:
    `[B, T]` float32 each: log p(token t | tokens < t), and the entropy in nats
    of the distribution it is scored under; both zero at t = 0.
  """
  x_BTD, _ = hidden_states(graphdef, params, tokens[:, :-1])
  logits_BTV = unembed(params, x_BTD) / temperature
  logprobs_BTV = jax.nn.log_softmax(logits_BTV)
  # A masked sum: the transpose of a gather would be a scatter.
  ids_11V = jnp.arange(logits_BTV.shape[-1])[None, None, :]
  is_token_BTV = ids_11V == tokens[:, 1:, None]
  logprobs_BT = jnp.sum(jnp.where(is_token_BTV, logprobs_BTV, 0.0), axis=-1)
  entropy_BT = -jnp.sum(jnp.exp(logprobs_BTV) * logprobs_BTV, axis=-1)
  pad = ((0, 0), (1, 0))
  return jnp.pad(logprobs_BT, pad), jnp.pad(entropy_BT, pad)


def _context(
  config: architecture.TransformerConfig,
  tokens_BT: base.Array,
  is_valid_BT: base.Array | None,
  cache: Cache | None,
) -> tuple[layers.Context, base.Array | None]:
  """Returns positions and mask, and which columns of the cache are valid."""
  T = tokens_BT.shape[1]
  positions_BT = jnp.arange(T)[None, :]
  if is_valid_BT is not None:
    positions_BT = jnp.cumsum(is_valid_BT, axis=1) - 1
  elif cache is None:
    is_valid_BT = jnp.ones((1, T), bool)
  else:
    is_valid_BT = jnp.ones(tokens_BT.shape, bool)
  column = jnp.zeros((), jnp.int32)
  is_valid_BS = is_valid_BT
  if cache is not None:
    column = cache.num_columns
    positions_BT += jnp.sum(cache.is_valid, axis=1, keepdims=True)
    is_valid_BS = jax.lax.dynamic_update_slice(
      cache.is_valid, is_valid_BT, (0, column)
    )
  columns_S = jnp.arange(is_valid_BS.shape[1])
  is_past_TS = columns_S[None, :] <= column + jnp.arange(T)[:, None]
  cosines_BTd, sines_BTd = rope.rotations(
    positions_BT, rope.frequencies(config)
  )
  return layers.Context(
    cosines=cosines_BTd,
    sines=sines_BTd,
    mask=is_past_TS[None] & is_valid_BS[:, None, :],
    column=column,
  ), is_valid_BS
