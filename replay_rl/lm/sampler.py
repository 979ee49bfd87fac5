"""Generation: one jitted program of prefill and decode with a KV cache."""

import functools
from collections.abc import Callable
from typing import Annotated
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
from flax import nnx

from replay_rl import base
from replay_rl import constants
from replay_rl.lm import architecture
from replay_rl.lm import cache as cache_lib
from replay_rl.lm import model
from replay_rl.lm import truncation


class _Step(NamedTuple):
  """One token of every row, `[B]`; `[R, B]` for all of them.

  is_sampled: bool, False if the row had finished; its other fields then have no
    meaning.
  """

  tokens: base.Array
  behavior_logprobs: base.Array
  full_logprobs: base.Array
  entropy: base.Array
  is_sampled: base.Array


class Spans(NamedTuple):
  """Which of N weights sample each token: the K spans of a response.

  A worker of an asynchronous system gets new weights while it writes. Its cache
  keeps the keys and values that earlier weights made.

  slots: `[K]` int32, index of the weights of each span.
  first_tokens: `[K]` int32, first token of each span, in order. The first is 0.
    A span that starts where the next one does, or after the last token, samples
    nothing.
  """

  slots: base.Array
  first_tokens: base.Array

  def slots_of_tokens(self, max_new_tokens: int) -> base.Array:
    """Returns the index of the weights of each token of a response, `[R]`."""
    spans_R = jnp.searchsorted(
      self.first_tokens, jnp.arange(max_new_tokens), side='right'
    )
    return self.slots[spans_R - 1]


class _Loop(NamedTuple):
  """The state of decoding: num_steps `[]` tokens drawn so far of each row."""

  num_steps: base.Array
  steps: _Step
  is_finished: base.Array
  cache: cache_lib.Cache


@constants.checked
def generate(
  graphdef: nnx.GraphDef,
  params: base.PyTree,
  rng_key: base.Array,
  prompts: base.Prompts,
  rollout_id: base.Array,
  *,
  max_new_tokens: Annotated[int, constants.interval('[1, inf)')],
  eos_ids: tuple[int, ...],
  pad_id: int,
  temperature: Annotated[base.Scalar | None, constants.TEMPERATURE],
  top_k: Annotated[int | None, constants.interval('[1, inf)')],
  top_p: Annotated[base.Scalar | None, constants.interval('(0, 1]')],
  spans: Spans | None = None,
) -> base.Completions:
  """Samples one response to each prompt.

  The response of a row depends on its prompt, its rollout_id and the key. It
  does not depend on the other rows, on the place of the row in the batch, or on
  the padding of the prompt.

  Args:
    graphdef: from `model.init`.
    params: from `model.init`.
    rng_key: random key, consumed.
    prompts: right-padded `[B, L]` tokens and their lengths, at least 1.
    rollout_id: `[B]` uint32. Rows with the same prompt and the same id have the
      same response.
    max_new_tokens: R, the longest response, end-of-sequence included.
    eos_ids: tokens that end a response; at least one.
    pad_id: token after the end of a row; any id of the vocabulary.
    temperature: `[]`, divides the logits. None takes the most probable token,
      with log-probability and entropy 0.
    top_k: sample among the k most probable tokens only; None for all.
    top_p: `[]`, sample among the fewest tokens of at least this mass; None for
      all. Other values of temperature and top_p need no compilation, as opposed
      to None.
    spans: which weights sample each token; `params` then have a leading axis
      `[N]`. None samples all tokens with the same weights.

  Returns:
    `Completions` with T = L + R.

  Raises:
    ValueError: an argument is outside its interval, or `L + R` exceeds the
      context of the model.
  """
  return _generate(
    graphdef,
    params,
    rng_key,
    prompts,
    rollout_id,
    max_new_tokens=max_new_tokens,
    eos_ids=eos_ids,
    pad_id=pad_id,
    temperature=_as_input(temperature),
    top_k=top_k,
    top_p=_as_input(top_p),
    spans=spans,
  )


@functools.partial(
  jax.jit,
  static_argnames=('graphdef', 'max_new_tokens', 'eos_ids', 'pad_id', 'top_k'),
)
def _generate(
  graphdef: nnx.GraphDef,
  params: base.PyTree,
  rng_key: base.Array,
  prompts: base.Prompts,
  rollout_id: base.Array,
  *,
  max_new_tokens: int,
  eos_ids: tuple[int, ...],
  pad_id: int,
  temperature: base.Array | None,
  top_k: int | None,
  top_p: base.Array | None,
  spans: Spans | None,
) -> base.Completions:
  chex.assert_rank([prompts.tokens, prompts.lengths, rollout_id], [2, 1, 1])
  chex.assert_type([prompts.tokens, prompts.lengths], jnp.int32)
  chex.assert_type(rollout_id, jnp.uint32)
  chex.assert_equal_shape_prefix(
    [prompts.tokens, prompts.lengths, rollout_id], 1
  )
  B, L = prompts.tokens.shape
  weights = _weights(params, spans)
  config = model.config_of(graphdef, weights(0))
  _check_arguments(
    config,
    prompt_columns=L,
    max_new_tokens=max_new_tokens,
    eos_ids=eos_ids,
    pad_id=pad_id,
    top_k=top_k,
  )
  row_keys_B = jax.vmap(jax.random.fold_in, (None, 0))(rng_key, rollout_id)

  def draw(params, x_BD, num_steps, is_finished_B):
    """Returns the next token of every row, and which rows it finishes."""
    step = _draw(
      jax.vmap(jax.random.fold_in, (0, None))(row_keys_B, num_steps),
      model.unembed(graphdef, params, x_BD),
      ~is_finished_B,
      temperature=temperature,
      top_k=top_k,
      top_p=top_p,
    )
    is_end_B = jnp.any(step.tokens[:, None] == jnp.array([eos_ids]), axis=1)
    return step, is_finished_B | is_end_B

  def decode(params, loop):
    x_B1D, cache = model.extend(
      graphdef,
      params,
      loop.steps.tokens[loop.num_steps - 1][:, None],
      loop.cache,
      is_valid=~loop.is_finished[:, None],
    )
    step, is_finished = draw(
      params, x_B1D[:, 0], loop.num_steps, loop.is_finished
    )
    steps = jax.tree.map(
      lambda leaf_RB, leaf_B: leaf_RB.at[loop.num_steps].set(leaf_B),
      loop.steps,
      step,
    )
    return _Loop(loop.num_steps + 1, steps, is_finished, cache)

  def decode_until(end, params, loop):
    return jax.lax.while_loop(
      lambda loop: (loop.num_steps < end) & ~_all_rows(loop.is_finished),
      functools.partial(decode, params),
      loop,
    )

  # Prefill: the gap after a short prompt stays masked, so that responses grow
  # in the same column of all rows.
  params = weights(0)
  x_BLD, cache = model.extend(
    graphdef,
    params,
    prompts.tokens,
    cache_lib.init(config, batch_size=B, num_columns=L),
    is_valid=jnp.arange(L)[None, :] < prompts.lengths[:, None],
  )
  last_B11 = prompts.lengths[:, None, None] - 1
  last_BD = jnp.take_along_axis(x_BLD, last_B11, axis=1)[:, 0]
  step, is_finished = draw(params, last_BD, 0, jnp.zeros((B,), bool))
  steps = jax.tree.map(
    lambda leaf_B: (
      jnp.zeros((max_new_tokens, B), leaf_B.dtype).at[0].set(leaf_B)
    ),
    step,
  )
  # The last token is never read, so it needs no column.
  cache = cache_lib.grow(cache, max_new_tokens - 1)
  loop = _Loop(jnp.int32(1), steps, is_finished, cache)
  if spans is None:
    loop = decode_until(max_new_tokens, params, loop)
  else:
    ends_K = jnp.append(spans.first_tokens[1:], max_new_tokens)
    loop = jax.lax.fori_loop(
      0,
      ends_K.shape[0],
      lambda k, loop: decode_until(ends_K[k], weights(k), loop),
      loop,
    )
  return _completions(prompts, loop, pad_id)


def _weights(
  params: base.PyTree, spans: Spans | None
) -> Callable[[base.Array | int], base.PyTree]:
  """Returns the function that gives the weights of a span."""
  if spans is None:
    whole = model.unstack(params)
    return lambda span: whole
  return lambda span: model.unstack(
    jax.tree.map(lambda leaf: leaf[spans.slots[span]], params)
  )


def _as_input(value: base.Scalar | None) -> base.Array | None:
  # Otherwise jit would compile anew for an int, a float and an array.
  return None if value is None else jnp.asarray(value, jnp.float32)


def _draw(
  rng_keys_B: base.Array,
  logits_BV: base.Array,
  is_sampled_B: base.Array,
  *,
  temperature: base.Array | None,
  top_k: int | None,
  top_p: base.Array | None,
) -> _Step:
  """Returns one token of every row and its record."""
  if temperature is None:
    tokens_B = jnp.argmax(logits_BV, axis=-1).astype(jnp.int32)
    zeros_B = jnp.zeros(tokens_B.shape, jnp.float32)
    return _Step(tokens_B, zeros_B, zeros_B, zeros_B, is_sampled_B)
  full_BV = jax.nn.log_softmax(logits_BV / temperature)
  if top_k is None and top_p is None:
    tokens_B = _categorical(rng_keys_B, full_BV)
    behavior_B = _pick(full_BV, tokens_B)
  else:
    kept_BK, ids_BK = truncation.truncate(full_BV, top_k=top_k, top_p=top_p)
    choices_B = _categorical(rng_keys_B, kept_BK)
    tokens_B = _pick(ids_BK, choices_B)
    behavior_B = _pick(kept_BK, choices_B)
  return _Step(
    tokens=tokens_B,
    behavior_logprobs=behavior_B,
    full_logprobs=_pick(full_BV, tokens_B),
    entropy=-jnp.sum(jnp.exp(full_BV) * full_BV, axis=-1),
    is_sampled=is_sampled_B,
  )


def _categorical(rng_keys_B: base.Array, logprobs_BV: base.Array) -> base.Array:
  # Each row has a key of its own.
  return jax.vmap(jax.random.categorical)(rng_keys_B, logprobs_BV).astype(
    jnp.int32
  )


def _pick(table_BV: base.Array, ids_B: base.Array) -> base.Array:
  return jnp.take_along_axis(table_BV, ids_B[:, None], axis=1)[:, 0]


@jax.custom_batching.custom_vmap
def _all_rows(is_true: base.Array) -> base.Array:
  """Returns whether all are True, over the mapped axis of a vmap as well.

  With a mapped loop condition, the loop would copy its state, also the cache,
  at every step.
  """
  return jnp.all(is_true)


@_all_rows.def_vmap
def _all_rows_mapped(axis_size, in_batched, is_true):
  del axis_size, in_batched
  return _all_rows(is_true), False


def _completions(
  prompts: base.Prompts, loop: _Loop, pad_id: int
) -> base.Completions:
  """Moves each response to the end of its prompt and clears the rest."""
  steps_BR = jax.tree.map(jnp.transpose, loop.steps)
  is_sampled_BR = steps_BR.is_sampled
  B, L = prompts.tokens.shape
  T = L + is_sampled_BR.shape[1]
  # Column of the response that each column of the result shows.
  columns_BT = jnp.arange(T)[None, :] - prompts.lengths[:, None]
  sources_BT = jnp.where(columns_BT < 0, jnp.arange(T)[None, :], L + columns_BT)

  def place(prompt_BL, response_BR, blank):
    both_BT = jnp.concatenate(
      [prompt_BL, jnp.where(is_sampled_BR, response_BR, blank)], axis=1
    )
    return jnp.take_along_axis(
      both_BT, sources_BT, axis=1, mode='fill', fill_value=blank
    )

  zeros_BL = jnp.zeros((B, L), jnp.float32)
  return base.Completions(
    tokens=place(prompts.tokens, steps_BR.tokens, pad_id),
    loss_mask=place(zeros_BL.astype(bool), is_sampled_BR, False),
    behavior_logprobs=place(zeros_BL, steps_BR.behavior_logprobs, 0.0),
    full_logprobs=place(zeros_BL, steps_BR.full_logprobs, 0.0),
    entropy=place(zeros_BL, steps_BR.entropy, 0.0),
    responses=jnp.where(is_sampled_BR, steps_BR.tokens, pad_id),
    lengths=jnp.sum(is_sampled_BR, axis=1, dtype=jnp.int32),
    is_finished=loop.is_finished,
  )


def _check_arguments(
  config: architecture.TransformerConfig,
  *,
  prompt_columns: int,
  max_new_tokens: int,
  eos_ids: tuple[int, ...],
  pad_id: int,
  top_k: int | None,
) -> None:
  if prompt_columns + max_new_tokens > config.max_context:
    raise ValueError(
      f'max_new_tokens = {max_new_tokens}: must be at most max_context = '
      f'{config.max_context} less the {prompt_columns} columns of prompts'
    )
  for name, tokens in (('eos_ids', eos_ids), ('pad_id', (pad_id,))):
    if not tokens or not all(0 <= t < config.vocab_size for t in tokens):
      raise ValueError(
        f'{name} = {tokens}: must be at least one token in '
        f'[0, {config.vocab_size})'
      )
  if top_k is not None and top_k > config.vocab_size:
    raise ValueError(
      f'top_k = {top_k}: must be at most vocab_size = {config.vocab_size}'
    )
