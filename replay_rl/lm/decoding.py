"""What all ways to decode share: reads and draws of a token, and the result."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from replay_rl import base
from replay_rl.lm import cache as cache_lib
from replay_rl.lm import model
from replay_rl.lm import truncation


class Step(NamedTuple):
  """One token of every row, `[B]`; `[B, R]` for all of them.

  is_sampled: bool, False if the row had finished; its other fields then have no
    meaning.
  """

  tokens: base.Array
  behavior_logprobs: base.Array
  full_logprobs: base.Array
  entropy: base.Array
  is_sampled: base.Array


class Responses(NamedTuple):
  """B responses, without their prompts.

  tokens: `[B, R]` int32, padded.
  lengths: `[B]` int32, tokens, end-of-sequence included.
  is_finished: `[B]` bool, True where it ended with end-of-sequence.
  """

  tokens: base.Array
  lengths: base.Array
  is_finished: base.Array


def empty(batch_size: int, max_new_tokens: int) -> Step:
  """Returns the steps `[B, R]` of responses without a token."""
  numbers = jnp.zeros((batch_size, max_new_tokens), jnp.float32)
  return Step(numbers.astype(jnp.int32), numbers, numbers, numbers, numbers > 0)


# (params, tokens [B], cache, is_valid [B]) -> (hidden states [B, D], cache)
ReadFn = Callable[..., tuple[base.Array, cache_lib.Cache]]
# (params, hidden states [B, D], rollout_id [B], number of the token [B],
# is_sampled [B]) -> (token and its record, whether it ends its response [B])
DrawFn = Callable[..., tuple[Step, base.Array]]


def functions(
  graphdef: nnx.GraphDef,
  rng_key: base.Array,
  *,
  eos_ids: tuple[int, ...],
  temperature: base.Array | None,
  top_k: int | None,
  top_p: base.Array | None,
) -> tuple[ReadFn, DrawFn]:
  """Returns what reads a token of every row, and what draws the next one.

  The random numbers of a token depend on the key, its rollout and its number.

  Args:
    graphdef: from `model.init`.
    rng_key: random key of the generation.
    eos_ids, temperature, top_k, top_p: see `sampler.generate`.
  """

  def read(params, tokens_B, cache, is_valid_B):
    x_B1D, cache = model.extend(
      graphdef,
      params,
      tokens_B[:, None],
      cache,
      is_valid=is_valid_B[:, None],
    )
    return x_B1D[:, 0], cache

  def draw_next(params, x_BD, rollout_id_B, numbers_B, is_sampled_B):
    fold_in = jax.vmap(jax.random.fold_in, (None, 0))
    step = draw(
      jax.vmap(jax.random.fold_in)(fold_in(rng_key, rollout_id_B), numbers_B),
      model.unembed(graphdef, params, x_BD),
      is_sampled_B,
      temperature=temperature,
      top_k=top_k,
      top_p=top_p,
    )
    return step, is_end(step.tokens, eos_ids)

  return read, draw_next


def draw(
  rng_keys_B: base.Array,
  logits_BV: base.Array,
  is_sampled_B: base.Array,
  *,
  temperature: base.Array | None,
  top_k: int | None,
  top_p: base.Array | None,
) -> Step:
  """Returns one token of every row and its record.

  Args:
    rng_keys_B: `[B]`, a key for each row, consumed.
    logits_BV: `[B, V]` float32.
    is_sampled_B: see `Step`.
    temperature, top_k, top_p: see `sampler.generate`.
  """
  if temperature is None:
    tokens_B = jnp.argmax(logits_BV, axis=-1).astype(jnp.int32)
    zeros_B = jnp.zeros(tokens_B.shape, jnp.float32)
    return Step(tokens_B, zeros_B, zeros_B, zeros_B, is_sampled_B)
  full_BV = jax.nn.log_softmax(logits_BV / temperature)
  if top_k is None and top_p is None:
    tokens_B = _categorical(rng_keys_B, full_BV)
    behavior_B = _pick(full_BV, tokens_B)
  else:
    kept_BK, ids_BK = truncation.truncate(full_BV, top_k=top_k, top_p=top_p)
    choices_B = _categorical(rng_keys_B, kept_BK)
    tokens_B = _pick(ids_BK, choices_B)
    behavior_B = _pick(kept_BK, choices_B)
  return Step(
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
def all_rows(is_true: base.Array) -> base.Array:
  """Returns whether all are True, over the mapped axis of a vmap as well.

  With a mapped loop condition, the loop would copy its state, also the cache,
  at every step.
  """
  return jnp.all(is_true)


@all_rows.def_vmap
def _all_rows_mapped(axis_size, in_batched, is_true):
  del axis_size, in_batched
  return all_rows(is_true), False


@jax.custom_batching.custom_vmap
def of_all_seeds(number: base.Array) -> base.Array:
  """Returns a number that is the same for all seeds, outside of a vmap.

  A mapped number would make the column that all rows write to another one for
  each seed, and the write a scatter.
  """
  return jnp.max(number)


@of_all_seeds.def_vmap
def _of_all_seeds_mapped(axis_size, in_batched, number):
  del axis_size, in_batched
  return of_all_seeds(number), False


def is_end(tokens: base.Array, eos_ids: tuple[int, ...]) -> base.Array:
  """Returns which tokens end a response."""
  return jnp.isin(tokens, jnp.array(eos_ids))


def responses(
  steps_BR: Step, eos_ids: tuple[int, ...], pad_id: int
) -> Responses:
  """Returns the tokens of each response, and how long it is.

  Args:
    steps_BR: the tokens.
    eos_ids, pad_id: see `sampler.generate`.
  """
  is_sampled_BR = steps_BR.is_sampled
  return Responses(
    tokens=jnp.where(is_sampled_BR, steps_BR.tokens, pad_id),
    lengths=jnp.sum(is_sampled_BR, axis=1, dtype=jnp.int32),
    is_finished=jnp.any(
      is_sampled_BR & is_end(steps_BR.tokens, eos_ids), axis=1
    ),
  )


def completions(
  prompts: base.Prompts,
  steps_BR: Step,
  eos_ids: tuple[int, ...],
  pad_id: int,
) -> base.Completions:
  """Moves each response to the end of its prompt and clears the rest.

  Args:
    prompts: one for each row, `[B, L]`.
    steps_BR: the tokens.
    eos_ids, pad_id: see `sampler.generate`.
  """
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

  of_rows = responses(steps_BR, eos_ids, pad_id)
  zeros_BL = jnp.zeros((B, L), jnp.float32)
  return base.Completions(
    tokens=place(prompts.tokens, steps_BR.tokens, pad_id),
    loss_mask=place(zeros_BL.astype(bool), is_sampled_BR, False),
    behavior_logprobs=place(zeros_BL, steps_BR.behavior_logprobs, 0.0),
    full_logprobs=place(zeros_BL, steps_BR.full_logprobs, 0.0),
    entropy=place(zeros_BL, steps_BR.entropy, 0.0),
    responses=of_rows.tokens,
    lengths=of_rows.lengths,
    is_finished=of_rows.is_finished,
  )
