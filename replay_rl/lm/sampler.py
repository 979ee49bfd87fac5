"""Generation: one jitted program of prefill and decode with a KV cache."""

import functools
from typing import NamedTuple

import chex
from flax import nnx
import jax
import jax.numpy as jnp

from replay_rl import base
from replay_rl.lm import model
from replay_rl.lm import truncation


class _Step(NamedTuple):
  """One sampled token of every row, `[B]`; `[R, B]` for all of them."""

  tokens: base.Array
  behavior_logprobs: base.Array
  full_logprobs: base.Array
  entropy: base.Array
  is_sampled: base.Array


class _Loop(NamedTuple):
  """num_steps: `[]` tokens sampled. steps: `_Step` `[R, B]`."""

  num_steps: base.Array
  steps: _Step
  is_finished: base.Array
  cache: model.Cache


@functools.partial(
  jax.jit,
  static_argnames=(
    'graphdef',
    'max_new_tokens',
    'eos_id',
    'pad_id',
    'temperature',
    'top_k',
    'top_p',
  ),
)
def generate(
  graphdef: nnx.GraphDef,
  params: base.PyTree,
  rng_key: base.Array,
  prompts: base.Prompts,
  *,
  max_new_tokens: int,
  eos_id: int,
  pad_id: int,
  temperature: float,
  top_k: int | None,
  top_p: float | None,
) -> base.Completions:
  """Samples one response to each prompt.

  What a row samples depends on its prompt, its index in the batch and the key,
  not on the other rows nor on the padding of the prompts.

  Args:
    graphdef: from `model.init`.
    params: from `model.init`.
    rng_key: random key, consumed.
    prompts: right-padded `[B, L]` tokens and their lengths, at least 1.
    max_new_tokens: R, the longest response, end-of-sequence included.
    eos_id: token that ends a response.
    pad_id: token written after the end of a row; any id of the vocabulary.
    temperature: divides the logits. At 0 the most probable token is taken,
      with log-probability and entropy 0.
    top_k: sample among the k most probable tokens only; None for all.
    top_p: sample among the fewest tokens of at least this mass; None for all.

  Returns:
    `Completions` with T = L + R.

  Raises:
    ValueError: if an argument is outside its range, or `L + R` exceeds the
      model's context.
  """
  chex.assert_rank([prompts.tokens, prompts.lengths], [2, 1])
  chex.assert_type([prompts.tokens, prompts.lengths], jnp.int32)
  chex.assert_equal_shape_prefix([prompts.tokens, prompts.lengths], 1)
  B, L = prompts.tokens.shape
  config = model.config_of(graphdef, params)
  _check_arguments(
    config,
    prompt_columns=L,
    max_new_tokens=max_new_tokens,
    eos_id=eos_id,
    pad_id=pad_id,
    temperature=temperature,
    top_k=top_k,
    top_p=top_p,
  )
  params = model.unstack(params)

  def draw(logits_BV, num_steps, is_finished_B):
    step = _draw(
      jax.random.fold_in(rng_key, num_steps),
      logits_BV,
      temperature=temperature,
      top_k=top_k,
      top_p=top_p,
    )
    blank = _Step(pad_id, 0.0, 0.0, 0.0, False)
    step = jax.tree.map(
      lambda new, old: jnp.where(is_finished_B, old, new), step, blank
    )
    return step, is_finished_B | (step.tokens == eos_id)

  def is_running(loop):
    return (loop.num_steps < max_new_tokens) & ~_all_rows(loop.is_finished)

  def decode(loop):
    tokens_B1 = loop.steps.tokens[loop.num_steps - 1][:, None]
    logits_B1V, cache = model.apply(
      graphdef,
      params,
      tokens_B1,
      is_valid=~loop.is_finished[:, None],
      cache=loop.cache,
    )
    step, is_finished = draw(logits_B1V[:, 0], loop.num_steps, loop.is_finished)
    steps = jax.tree.map(
      lambda all_RB, new_B: all_RB.at[loop.num_steps].set(new_B),
      loop.steps,
      step,
    )
    return _Loop(loop.num_steps + 1, steps, is_finished, cache)

  is_prompt_BL = jnp.arange(L)[None, :] < prompts.lengths[:, None]
  x_BLD, cache = model.hidden_states(
    graphdef,
    params,
    prompts.tokens,
    is_valid=is_prompt_BL,
    cache=model.init_cache(config, batch_size=B, num_columns=L),
  )
  logits_BV = model.unembed(params, x_BLD[jnp.arange(B), prompts.lengths - 1])
  step, is_finished = draw(logits_BV, 0, jnp.zeros((B,), bool))
  steps = jax.tree.map(
    lambda new_B, blank: jnp.full((max_new_tokens, B), blank, new_B.dtype)
    .at[0]
    .set(new_B),
    step,
    _Step(pad_id, 0.0, 0.0, 0.0, False),
  )
  # The last token is never read, so it needs no column.
  cache = model.grow_cache(cache, max_new_tokens - 1)
  loop = jax.lax.while_loop(
    is_running, decode, _Loop(jnp.int32(1), steps, is_finished, cache)
  )
  return _completions(prompts, loop, pad_id)


def _draw(
  rng_key: base.Array,
  logits_BV: base.Array,
  *,
  temperature: float,
  top_k: int | None,
  top_p: float | None,
) -> _Step:
  """Returns one token per row and what is recorded about it."""
  is_sampled_B = jnp.ones(logits_BV.shape[:1], bool)
  if temperature == 0.0:
    tokens_B = jnp.argmax(logits_BV, axis=-1).astype(jnp.int32)
    zeros_B = jnp.zeros(tokens_B.shape, jnp.float32)
    return _Step(tokens_B, zeros_B, zeros_B, zeros_B, is_sampled_B)
  full_BV = jax.nn.log_softmax(logits_BV / temperature)
  entropy_B = -jnp.sum(jnp.exp(full_BV) * full_BV, axis=-1)
  if top_k is None and top_p is None:
    tokens_B = jax.random.categorical(rng_key, full_BV).astype(jnp.int32)
    full_B = _pick(full_BV, tokens_B)
    return _Step(tokens_B, full_B, full_B, entropy_B, is_sampled_B)
  kept_BK, ids_BK = truncation.truncate(full_BV, top_k=top_k, top_p=top_p)
  choices_B = jax.random.categorical(rng_key, kept_BK)
  tokens_B = _pick(ids_BK, choices_B)
  return _Step(
    tokens=tokens_B,
    behavior_logprobs=_pick(kept_BK, choices_B),
    full_logprobs=_pick(full_BV, tokens_B),
    entropy=entropy_B,
    is_sampled=is_sampled_B,
  )


def _completions(
  prompts: base.Prompts, loop: _Loop, pad_id: int
) -> base.Completions:
  """Moves each response to the end of its prompt."""
  steps_BR = jax.tree.map(jnp.transpose, loop.steps)
  B, L = prompts.tokens.shape
  T = L + steps_BR.tokens.shape[1]
  columns_BT = jnp.arange(T)[None, :] - prompts.lengths[:, None]
  is_prompt_BT = columns_BT < 0

  def place(prompt_BL, response_BR):
    both_BT = jnp.concatenate([prompt_BL, response_BR], axis=1)
    sources_BT = jnp.where(is_prompt_BT, jnp.arange(T)[None, :], L + columns_BT)
    return jnp.take_along_axis(
      both_BT, jnp.minimum(sources_BT, T - 1), axis=1
    )
  return place


@jax.custom_batching.custom_vmap
def _all_rows(is_true: base.Array) -> base.Array:
  """Returns whether all are True, over the mapped axis of a vmap as well.

  A loop whose condition is mapped would copy its whole carry, the cache, at
  every step.
  """
  return jnp.all(is_true)


@_all_rows.def_vmap
def _all_rows_mapped(axis_size, in_batched, is_true):
  del axis_size, in_batched
  return _all_rows(is_true), False


def _pick(table_BV: base.Array, ids_B: base.Array) -> base.Array:
  return jnp.take_along_axis(table_BV, ids_B[:, None], axis=1)[:, 0]
