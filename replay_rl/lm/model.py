"""Decoder-only transformer with the architecture of Llama 3, Qwen2.5 or Qwen3.

`init` splits the module once into a static graph definition and a nested dict
of arrays; all functions here are pure in the arrays. The sampler and the
learner run the same code, so that their log-probabilities agree.
"""

import functools
from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp
from flax import nnx

from replay_rl import base
from replay_rl.lm import architecture
from replay_rl.lm import attention
from replay_rl.lm import cache as cache_lib
from replay_rl.lm import layers
from replay_rl.lm import packing
from replay_rl.lm import rope

_OUTPUT = 'output_projection'  # The leaf that `untie` adds.
# The leaves that are only read in the compute dtype, by `layers.matmul` and
# `layers.look_up`. Norms and biases are read in float32.
_MATRICES = frozenset(
  ('embedding', 'unembedding', _OUTPUT)
  + ('query', 'key_value', 'output', 'gate_up', 'down')
)


class Transformer(nnx.Module):
  """Embedding, stacked layers, final norm and output layer.

  Embedding and output layer start normal with variance 1 / d_model: logits
  start with variance 1.
  """

  def __init__(
    self,
    config: architecture.TransformerConfig,
    *,
    rngs: nnx.Rngs,
    constrain_fn: base.ConstrainFn,
  ):
    """Draws all parameters."""
    V, D = config.vocab_size, config.d_model
    self.config = config
    self.constrain_fn = constrain_fn
    self.embedding = layers.normal(
      rngs, (V, D), ('vocab', 'embed'), stddev=D**-0.5
    )
    self.layers = layers.Layer(config, rngs=rngs, constrain_fn=constrain_fn)
    self.final_norm = layers.constant(1.0, (D,), ('embed',))
    if not config.tied_embeddings:
      self.unembedding = layers.normal(
        rngs, (V, D), ('vocab', 'embed'), stddev=D**-0.5
      )


@functools.partial(jax.jit, static_argnames=('config', 'constrain_fn'))
def init(
  config: architecture.TransformerConfig,
  rng_key: base.Array,
  *,
  constrain_fn: base.ConstrainFn | None = None,
) -> tuple[nnx.GraphDef, base.PyTree]:
  """Returns the static definition of the model and its parameters.

  Args:
    config: architecture.
    rng_key: random key, consumed.
    constrain_fn: splits activations over devices; None on one device.

  Returns:
    The graph definition, hashable and the same for every key, and a nested
    dict of float32 arrays.
  """
  module = Transformer(
    config, rngs=nnx.Rngs(rng_key), constrain_fn=constrain_fn or layers.unsplit
  )
  graphdef, state = nnx.split(module)
  return graphdef, nnx.to_pure_dict(state)


def merge(graphdef: nnx.GraphDef, params: base.PyTree) -> Transformer:
  """Returns the module; of unrolled layers it has only the first."""
  used = {name: leaf for name, leaf in params.items() if name != _OUTPUT}
  if isinstance(used['layers'], list):
    used['layers'] = used['layers'][0]
  return nnx.merge(graphdef, used)


def config_of(
  graphdef: nnx.GraphDef, params: base.PyTree
) -> architecture.TransformerConfig:
  """Returns the architecture that `init` was given."""
  return merge(graphdef, params).config


def logical_axes(config: architecture.TransformerConfig) -> base.PyTree:
  """Returns the names of the dimensions of each parameter.

  Returns:
    The nested dict of `init` with a tuple of names in place of each array:
    'layers', 'vocab', 'embed', 'heads', 'kv_heads', 'head_dim', 'mlp', or None
    for the axis of fused matrices.
  """
  abstract = nnx.eval_shape(
    lambda: Transformer(config, rngs=nnx.Rngs(0), constrain_fn=layers.unsplit)
  )
  axes = jax.tree.map(
    lambda variable: variable.replace(variable.axes),
    nnx.state(abstract),
    is_leaf=lambda leaf: isinstance(leaf, nnx.Variable),
  )
  return nnx.to_pure_dict(axes)


def unstack(params: base.PyTree) -> base.PyTree:
  """Returns the parameters with a list of layers, if the layers run unrolled.

  All functions of this module take both forms. A caller that loops over the
  model converts once, before the loop, so that no step slices the weights.
  """
  stacked = params['layers']
  if isinstance(stacked, list):
    return params
  num_layers = jax.tree.leaves(stacked)[0].shape[0]
  if not layers.is_unrolled(num_layers):
    return params
  per_layer = [
    jax.tree.map(lambda leaf, i=i: leaf[i], stacked) for i in range(num_layers)
  ]
  return {**params, 'layers': per_layer}


def rounded(
  config: architecture.TransformerConfig, params: base.PyTree
) -> base.PyTree:
  """Returns the parameters with all matrices in the compute dtype.

  The model rounds a matrix wherever it reads it, so that its results are the
  same, bit for bit. A caller that loops over the model rounds once, before the
  loop. Gradients need the parameters themselves.

  Args:
    config: of the model.
    params: from `init`, with any leading axes, or `unstack` of it.
  """
  dtype = jnp.dtype(config.compute_dtype)
  return jax.tree_util.tree_map_with_path(
    lambda path, leaf: (
      leaf.astype(dtype) if path[-1].key in _MATRICES else leaf
    ),
    params,
  )


def untie(params: base.PyTree) -> base.PyTree:
  """Returns parameters with the output projection as a leaf of its own.

  The model reads tied embeddings twice, at the input and at the output. The
  gradient of the result has a leaf for each: 'embedding' and
  'output_projection'.
  """
  return {**params, _OUTPUT: output_projection(params)}


def retie(untied: base.PyTree) -> base.PyTree:
  """Returns the gradient of `params` from that of `untie(params)`."""
  grads = dict(untied)
  owner = 'unembedding' if 'unembedding' in grads else 'embedding'
  grads[owner] = grads[owner] + grads.pop(_OUTPUT)
  return grads


def apply(
  graphdef: nnx.GraphDef,
  params: base.PyTree,
  tokens: base.Array,
  *,
  is_valid: base.Array | None = None,
) -> base.Array:
  """Returns the logits of the token after each token.

  Args:
    graphdef: from `init`.
    params: from `init`, or `unstack` of it.
    tokens: `[B, T]` int32.
    is_valid: `[B, T]` bool, False for padding on any side: no token attends to
      it, and positions do not count it. None is enough for right padding, which
      causal attention never reads.

  Returns:
    `[B, T, V]` float32.
  """
  x_BTD = hidden_states(graphdef, params, tokens, is_valid, remat=False)
  return unembed(graphdef, params, x_BTD)


def extend(
  graphdef: nnx.GraphDef,
  params: base.PyTree,
  tokens: base.Array,
  cache: cache_lib.Cache,
  *,
  is_valid: base.Array,
) -> tuple[base.Array, cache_lib.Cache]:
  """Reads T more tokens of each row, in prefill or decode.

  Args:
    graphdef: from `init`.
    params: from `init`, or `unstack` of it.
    tokens: `[B, T]` int32.
    cache: the tokens before, with room for T columns from `num_columns` on.
    is_valid: `[B, T]` bool, as in `apply`.

  Returns:
    Hidden states `[B, T, D]`, for `unembed`, and the cache with the tokens.
  """
  chex.assert_rank(tokens, 2)
  chex.assert_equal_shape([tokens, is_valid])
  column = cache.num_columns
  is_valid_BS = jax.lax.dynamic_update_slice(
    cache.is_valid, is_valid, (0, column)
  )
  positions_BT = cache.num_tokens[:, None] + jnp.cumsum(is_valid, axis=1) - 1
  x_BTD, key_values = _forward(
    graphdef,
    params,
    tokens,
    positions_BT,
    is_valid_BS,
    column=column,
    key_values=cache.layers,
    remat=False,
  )
  return x_BTD, cache_lib.Cache(
    layers=key_values,
    is_valid=is_valid_BS,
    num_tokens=positions_BT[:, -1] + 1,
    num_columns=column + tokens.shape[1],
  )


def unembed(
  graphdef: nnx.GraphDef, params: base.PyTree, x: base.Array
) -> base.Array:
  """Returns float32 logits `[B, V]` or `[B, T, V]` of hidden states."""
  constrain_fn = merge(graphdef, params).constrain_fn
  weight_VD = layers.split_vocab(output_projection(params), constrain_fn)
  logits = layers.logits(x, weight_VD, constrain_fn=constrain_fn)
  return constrain_fn(logits, ('rows', *(None,) * (x.ndim - 2), 'vocab'))


def output_projection(params: base.PyTree) -> base.Array:
  """Returns `[V, D]`: the leaf of `untie`, or else the one of the model."""
  for name in (_OUTPUT, 'unembedding'):
    if name in params:
      return params[name]
  return params['embedding']


def hidden_states(
  graphdef: nnx.GraphDef,
  params: base.PyTree,
  tokens_BT: base.Array,
  is_valid_BT: base.Array | None,
  *,
  remat: bool,
  segments: packing.Segments | None = None,
  attend_fn: attention.AttendFn = attention.automatic,
) -> base.Array:
  """Returns the input of the output layer, `[B, T, D]`, without a cache.

  Args:
    graphdef, params, tokens_BT, is_valid_BT: see `apply`.
    remat: see `scoring.token_logprobs`.
    segments: of packed rows. A token then attends to those before it in its own
      segment, and `is_valid_BT` is None.
    attend_fn: how tokens attend where `is_valid_BT` is None.
  """
  chex.assert_rank(tokens_BT, 2)
  ids_BT = None if segments is None else segments.ids
  if is_valid_BT is not None:
    chex.assert_equal_shape([tokens_BT, is_valid_BT])
    positions_BT = jnp.cumsum(is_valid_BT, axis=1) - 1
  elif segments is not None:
    chex.assert_equal_shape([tokens_BT, *segments])
    positions_BT = segments.positions
  else:
    positions_BT = jnp.arange(tokens_BT.shape[1])[None, :]

  def attend(q_BKGTd, keys_BKTd, values_BKTd):
    return attend_fn(q_BKGTd, keys_BKTd, values_BKTd, ids_BT)

  x_BTD, _ = _forward(
    graphdef,
    params,
    tokens_BT,
    positions_BT,
    is_valid_BT,
    column=jnp.int32(0),
    key_values=None,
    remat=remat,
    attend=attend if is_valid_BT is None else None,
  )
  return x_BTD


def _forward(
  graphdef: nnx.GraphDef,
  params: base.PyTree,
  tokens_BT: base.Array,
  positions_BT: base.Array,
  is_valid_BS: base.Array | None,
  *,
  column: base.Array,
  key_values: base.PyTree,
  remat: bool,
  attend: Callable | None = None,
) -> tuple[base.Array, base.PyTree]:
  """Returns hidden states, and `key_values` with the tokens if not None.

  Without `attend`, tokens attend to the valid columns up to their own.
  """
  chex.assert_type(tokens_BT, jnp.int32)
  params = unstack(params)
  per_layer = params['layers']
  is_unrolled = isinstance(per_layer, list)
  module = merge(graphdef, params)
  config, layer_def = module.config, nnx.graphdef(module.layers)
  cosines_BTd, sines_BTd = rope.rotations(
    positions_BT, rope.frequencies(config)
  )
  if attend is None:
    assert is_valid_BS is not None
    chex.assert_type(is_valid_BS, bool)
    end = column + tokens_BT.shape[1]
    columns_T = column + jnp.arange(tokens_BT.shape[1])
    columns_S = jnp.arange(is_valid_BS.shape[1])
    is_past_TS = columns_S[None, :] <= columns_T[:, None]
    # A valid column behind the new ones has an earlier token, see `continuous`.
    is_past_TS |= columns_S[None, :] >= end
    mask_BTS = is_past_TS[None] & is_valid_BS[:, None, :]
    attend = functools.partial(attention.plain, mask_BTS=mask_BTS)
  context = layers.Context(
    cosines=cosines_BTd,
    sines=sines_BTd,
    attend=attend,
    column=column,
  )

  def run_layer(carry, layer):
    x_BTD, key_values = carry
    layer_params, index = layer
    module = nnx.merge(layer_def, layer_params)
    with jax.named_scope('layer'):
      return module(x_BTD, context, key_values, index), None

  if remat:
    # In a scan, both passes may share the weights that devices collected.
    run_layer = jax.checkpoint(run_layer, prevent_cse=is_unrolled)
  x_BTD = layers.look_up(
    module.embedding[...],
    tokens_BT,
    dtype=config.compute_dtype,
    constrain_fn=module.constrain_fn,
  )
  if is_unrolled:
    pasts = key_values or [None] * config.num_layers
    key_values = []
    for layer_params, past in zip(per_layer, pasts, strict=True):
      (x_BTD, present), _ = run_layer((x_BTD, past), (layer_params, 0))
      key_values.append(present)
  else:
    (x_BTD, key_values), _ = jax.lax.scan(
      run_layer,
      (x_BTD, key_values),
      (per_layer, jnp.arange(config.num_layers)),
    )
  x_BTD = layers.rms_norm(x_BTD, module.final_norm[...], config.norm_eps)
  return x_BTD, key_values
