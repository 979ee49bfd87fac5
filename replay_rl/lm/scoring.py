"""Log-probabilities of given tokens, for the learner."""

import functools

import jax
import jax.numpy as jnp
from flax import nnx

from replay_rl import base
from replay_rl.lm import attention
from replay_rl.lm import layers
from replay_rl.lm import model
from replay_rl.lm import packing


def token_logprobs(
  graphdef: nnx.GraphDef,
  params: base.PyTree,
  tokens: base.Array,
  segments: packing.Segments | None = None,
  *,
  temperature: float | base.Array,
  chunk_size: int | None,
  remat: bool,
  attend_fn: attention.AttendFn = attention.automatic,
) -> tuple[base.Array, base.Array]:
  """Returns the log-probability of each token given those before it.

  Args:
    graphdef: from `model.init`.
    params: from `model.init`.
    tokens: `[B, T]` int32, right-padded; with segments, packed.
    segments: `[B, T]`, where the rows are in packed tokens.
    temperature: `[]` positive; logits are divided by it.
    chunk_size: tokens of a row whose logits exist at once; None for all. The
      largest array is `[B, chunk_size, V]` then, not `[B, T, V]`; the backward
      pass computes logits again.
    remat: whether the backward pass computes the activations of a layer again,
      so that only the input of each layer is kept.
    attend_fn: how tokens attend to those before them.

  Returns:
    `[B, T]` float32 each: log p(token t | tokens < t), and the entropy in nats
    of this distribution; both zero at t = 0. With segments, log p(target t |
    tokens <= t of its segment), and its entropy; both zero on padding.

  Raises:
    ValueError: `chunk_size` is less than 1.
  """
  if chunk_size is not None and chunk_size < 1:
    raise ValueError(f'chunk_size = {chunk_size}: must be None or at least 1')
  if segments is None:
    inputs_BT, targets_BT = tokens[:, :-1], tokens[:, 1:]
  else:
    inputs_BT, targets_BT = tokens, segments.targets
  x_BTD = model.hidden_states(
    *(graphdef, params, inputs_BT, None),
    remat=remat,
    segments=segments,
    attend_fn=attend_fn,
  )
  constrain_fn = model.merge(graphdef, params).constrain_fn
  # Before the loop over chunks, so that devices exchange the weights once.
  weight_VD = layers.split_vocab(model.output_projection(params), constrain_fn)
  score = functools.partial(_score, constrain_fn, weight_VD, temperature)
  num_scored = targets_BT.shape[1]
  if chunk_size is None or chunk_size >= num_scored:
    logprobs_BT, entropy_BT = score(x_BTD, targets_BT)
  else:
    # Each chunk has all rows, since rows may be split over devices.
    num_chunks = -(-num_scored // chunk_size)
    chunks = jax.tree.map(
      lambda leaf: _split_tokens(leaf, num_chunks, chunk_size),
      (x_BTD, targets_BT),
    )
    again = jax.checkpoint(score, prevent_cse=False)  # As for a layer.
    scored = jax.lax.map(lambda chunk: again(*chunk), chunks)
    logprobs_BT, entropy_BT = jax.tree.map(
      lambda leaf: jnp.moveaxis(leaf, 0, 1).reshape(leaf.shape[1], -1)[
        :, :num_scored
      ],
      scored,
    )
  if segments is not None:
    is_token_BT = segments.ids > 0
    return (
      jnp.where(is_token_BT, logprobs_BT, 0.0),
      jnp.where(is_token_BT, entropy_BT, 0.0),
    )
  pad = ((0, 0), (1, 0))
  return jnp.pad(logprobs_BT, pad), jnp.pad(entropy_BT, pad)


def _score(
  constrain_fn: base.ConstrainFn,
  weight_VD: base.Array,
  temperature: float | base.Array,
  x_BTD: base.Array,
  tokens_BT: base.Array,
) -> tuple[base.Array, base.Array]:
  """Returns the log-probabilities of the tokens, and the entropy."""
  logits_BTV = layers.logits(x_BTD, weight_VD, constrain_fn=constrain_fn)
  logprobs_BTV = jax.nn.log_softmax(logits_BTV / temperature)
  # A masked sum, because the transpose of a gather is a scatter.
  ids_11V = jnp.arange(logits_BTV.shape[-1])[None, None, :]
  is_token_BTV = ids_11V == tokens_BT[:, :, None]
  logprobs_BT = jnp.sum(jnp.where(is_token_BTV, logprobs_BTV, 0.0), axis=-1)
  entropy_BT = -jnp.sum(jnp.exp(logprobs_BTV) * logprobs_BTV, axis=-1)
  return logprobs_BT, entropy_BT


def _split_tokens(
  leaf: base.Array, num_chunks: int, chunk_size: int
) -> base.Array:
  """Returns `[num_chunks, B, chunk_size, ...]` of `[B, T, ...]`, padded."""
  B, T = leaf.shape[:2]
  padding = [(0, 0)] * leaf.ndim
  padding[1] = (0, num_chunks * chunk_size - T)
  split = jnp.pad(leaf, padding).reshape(
    B, num_chunks, chunk_size, *leaf.shape[2:]
  )
  return jnp.moveaxis(split, 1, 0)
