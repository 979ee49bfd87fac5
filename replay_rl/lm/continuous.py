"""Continuous batching: a response that ends leaves its slot to the next one.

A slot is a row of the decoding program. With fewer slots than responses, short
responses do not wait for the longest one. Yu et al., "Orca", OSDI 2022, section
3, call this iteration-level scheduling; here one program does all of it.

All slots write their next token to the same column of the cache, which saves a
scatter. The columns behind those of the prompts are a ring: W = R - 1 columns
are enough, because a response reads at most R - 1 of its tokens, one at a step.

Letters beyond those of `base`: S slots, N parts into which the devices split
the rows, M = S / N slots and Q = F / N responses of a part. Each part has a
queue of its own, so that no device reads the rows of another.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from replay_rl import base
from replay_rl.lm import architecture
from replay_rl.lm import cache as cache_lib
from replay_rl.lm import decoding
from replay_rl.lm import prefill
from replay_rl.parallel import mesh as mesh_lib

# Free slots of a part, as a share of its slots, at which they are filled. Fewer
# would load prompts more often, more would leave slots empty for longer.
_REFILL_SHARE = 1 / 16


class Slots(NamedTuple):
  """S responses in progress.

  rows: `[S]` int32, which of the part's Q responses the slot writes, or has
    written.
  rollout_id: `[S]` uint32, of that response.
  num_drawn: `[S]` int32, tokens of the response.
  is_busy: `[S]` bool, False once the response has ended.
  hidden: `[S, D]`, of the last token of the prompt.
  steps: `[S, R]`, the tokens.
  cache: S rows of L + W columns.
  """

  rows: base.Array
  rollout_id: base.Array
  num_drawn: base.Array
  is_busy: base.Array
  hidden: base.Array
  steps: decoding.Step
  cache: cache_lib.Cache


class _Loop(NamedTuple):
  """The state of decoding.

  num_ticks: `[]` int32, steps of all slots so far.
  num_started: `[N]` int32, responses of each part that have had a slot.
  steps: `[F, R]`, the responses as of the latest refill.
  """

  num_ticks: base.Array
  num_started: base.Array
  slots: Slots
  steps: decoding.Step


# (tokens [B], cache, is_valid [B]) -> (hidden states [B, D], cache)
ReadFn = Callable[
  [base.Array, cache_lib.Cache, base.Array], tuple[base.Array, cache_lib.Cache]
]
# (hidden states [B, D], rollout_id [B], number of the token [B], is_sampled
# [B]) -> (token and its record, whether the token ends its response [B])
DrawFn = Callable[
  [base.Array, base.Array, base.Array, base.Array],
  tuple[decoding.Step, base.Array],
]


def decode(
  config: architecture.TransformerConfig,
  prefix: prefill.Prefix,
  rollout_id: base.Array,
  *,
  read_fn: ReadFn,
  draw_fn: DrawFn,
  num_slots: int,
  max_new_tokens: int,
) -> decoding.Step:
  """Returns the tokens `[F, R]` of a response for each id.

  Args:
    config: of the model.
    prefix: U prompts.
    rollout_id: `[F]` uint32; F / U of them for each prompt, side by side.
    read_fn: reads a token of every slot.
    draw_fn: draws a token of every slot.
    num_slots: S. It is a multiple of N, as are U and F.
    max_new_tokens: R.
  """
  num_rows = rollout_id.shape[0]
  num_parts = mesh_lib.num_current_parts('rows')
  num_of_part = num_rows // num_parts
  num_prompt_columns = prefix.cache.is_valid.shape[1]
  empty = _Loop(
    num_ticks=jnp.int32(0),
    num_started=jnp.zeros(num_parts, jnp.int32),
    slots=_empty_slots(
      config,
      num_slots=num_slots,
      num_columns=num_prompt_columns + max(max_new_tokens - 1, 1),
      max_new_tokens=max_new_tokens,
    ),
    steps=mesh_lib.split_rows(decoding.empty(num_rows, max_new_tokens)),
  )
  refill = functools.partial(_refill, prefix, rollout_id)
  tick = functools.partial(
    _tick,
    read_fn=read_fn,
    draw_fn=draw_fn,
    num_prompt_columns=num_prompt_columns,
  )

  def is_any_busy(loop):
    return ~decoding.all_rows(~loop.slots.is_busy)

  def is_to_go_on(loop):
    return is_any_busy(loop) & decoding.all_rows(
      ~_wants_refill(loop, num_of_part)
    )

  # The refill at the end of a round also takes the last responses out.
  return jax.lax.while_loop(
    is_any_busy,
    lambda loop: refill(jax.lax.while_loop(is_to_go_on, tick, loop)),
    refill(empty),
  ).steps


def _empty_slots(
  config: architecture.TransformerConfig,
  *,
  num_slots: int,
  num_columns: int,
  max_new_tokens: int,
) -> Slots:
  numbers = jnp.zeros(num_slots, jnp.int32)
  cache = cache_lib.init(config, batch_size=num_slots, num_columns=num_columns)
  slots = mesh_lib.split_rows(
    Slots(
      rows=numbers,
      rollout_id=numbers.astype(jnp.uint32),
      num_drawn=numbers,
      is_busy=numbers > 0,
      hidden=jnp.zeros((num_slots, config.d_model), config.compute_dtype),
      steps=decoding.empty(num_slots, max_new_tokens),
      cache=cache._replace(layers=(), num_columns=numbers),
    )
  )
  layers = jax.tree.map(
    lambda leaf: mesh_lib.constrain(leaf, (None, 'rows', 'kv_heads')),
    cache.layers,
  )
  cache = slots.cache._replace(layers=layers, num_columns=cache.num_columns)
  return slots._replace(cache=cache)


def _wants_refill(loop: _Loop, num_of_part: int) -> base.Array:
  """Returns whether enough slots of a part are free for a refill, `[N]`."""
  is_busy_NM = _by_part(loop.slots.is_busy, loop.num_started.shape[0])
  num_slots = is_busy_NM.shape[1]
  enough = max(1, int(_REFILL_SHARE * num_slots))
  num_free_N = num_slots - jnp.sum(is_busy_NM, axis=1)
  num_waiting_N = num_of_part - loop.num_started
  return (num_waiting_N > 0) & (
    num_free_N >= jnp.minimum(num_waiting_N, enough)
  )


def _refill(
  prefix: prefill.Prefix, rollout_id: base.Array, loop: _Loop
) -> _Loop:
  """Takes out the responses that have ended, and starts the next ones."""
  slots, num_parts = loop.slots, loop.num_started.shape[0]
  num_of_part = rollout_id.shape[0] // num_parts
  num_prompts = prefix.hidden.shape[0] // num_parts
  is_free_NM = ~_by_part(slots.is_busy, num_parts)
  rows_NM = _by_part(slots.rows, num_parts)
  # A response in progress is written too, and again when it has ended.
  steps = jax.tree.map(
    functools.partial(_put, rows_NM=rows_NM), loop.steps, slots.steps
  )
  next_NM = loop.num_started[:, None] + jnp.cumsum(is_free_NM, axis=1) - 1
  is_new_NM = is_free_NM & (next_NM < num_of_part)
  rows_NM = jnp.where(is_new_NM, next_NM, rows_NM)
  prompts_NM = rows_NM // (num_of_part // num_prompts)
  is_new_S = is_new_NM.reshape(-1)
  hidden_SD = cache_lib.take(prefix.hidden, prompts_NM)
  return _Loop(
    num_ticks=loop.num_ticks,
    num_started=loop.num_started + jnp.sum(is_new_NM, axis=1, dtype=jnp.int32),
    slots=Slots(
      rows=rows_NM.reshape(-1),
      rollout_id=cache_lib.take(rollout_id, rows_NM),
      num_drawn=jnp.where(is_new_S, 0, slots.num_drawn),
      is_busy=slots.is_busy | is_new_S,
      hidden=jnp.where(is_new_S[:, None], hidden_SD, slots.hidden),
      steps=slots.steps._replace(
        is_sampled=slots.steps.is_sampled & ~is_new_S[:, None]
      ),
      cache=cache_lib.load(slots.cache, prefix.cache, prompts_NM, is_new_S),
    ),
    steps=steps,
  )


def _tick(
  loop: _Loop, *, read_fn: ReadFn, draw_fn: DrawFn, num_prompt_columns: int
) -> _Loop:
  """Draws the next token of each busy slot."""
  slots = loop.slots
  num_columns = slots.cache.is_valid.shape[1] - num_prompt_columns
  max_new_tokens = slots.steps.tokens.shape[1]
  # The first token follows from the prompt, of which `hidden` is the end.
  is_first_S = slots.num_drawn == 0
  last_S1 = jnp.maximum(slots.num_drawn - 1, 0)[:, None]
  column = num_prompt_columns + loop.num_ticks % num_columns
  read_SD, cache = read_fn(
    jnp.take_along_axis(slots.steps.tokens, last_S1, axis=1)[:, 0],
    slots.cache._replace(num_columns=column),
    slots.is_busy & ~is_first_S,
  )
  step, is_end_S = draw_fn(
    jnp.where(is_first_S[:, None], slots.hidden, read_SD),
    slots.rollout_id,
    slots.num_drawn,
    slots.is_busy,
  )
  # What a free slot draws is not `is_sampled`, and so has no meaning.
  is_new_SR = jnp.arange(max_new_tokens)[None, :] == slots.num_drawn[:, None]
  num_drawn = slots.num_drawn + slots.is_busy
  return loop._replace(
    num_ticks=loop.num_ticks + 1,
    slots=slots._replace(
      num_drawn=num_drawn,
      is_busy=slots.is_busy & ~is_end_S & (num_drawn < max_new_tokens),
      steps=jax.tree.map(
        lambda all_SR, new_S: jnp.where(is_new_SR, new_S[:, None], all_SR),
        slots.steps,
        step,
      ),
      cache=cache,
    ),
  )


def _by_part(array: base.Array, num_parts: int) -> base.Array:
  return array.reshape(num_parts, -1, *array.shape[1:])


def _put(
  all_FR: base.Array, of_slots_SR: base.Array, rows_NM: base.Array
) -> base.Array:
  """Returns all responses, with those of the slots in rows of their part."""
  num_parts = rows_NM.shape[0]
  put = jax.vmap(lambda to, rows, values: to.at[rows].set(values))
  return put(
    _by_part(all_FR, num_parts), rows_NM, _by_part(of_slots_SR, num_parts)
  ).reshape(all_FR.shape)
