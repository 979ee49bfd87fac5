"""Continuous batching: a response that ends leaves its slot to the next one.

`init` puts prompts into the queue, `step` draws tokens, and `harvest` takes out
the responses that have ended and starts the next ones. `decode` calls the three
in a loop; `in_flight` has them as programs of a model, with a host between.

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
from typing import Any
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
  is_ripe: `[S]` bool, True from then until the response is harvested.
  hidden: `[S, D]`, of the last token of the prompt.
  steps: `[S, R]`, the tokens.
  cache: S rows of L + W columns.
  """

  rows: base.Array
  rollout_id: base.Array
  num_drawn: base.Array
  is_busy: base.Array
  is_ripe: base.Array
  hidden: base.Array
  steps: decoding.Step
  cache: cache_lib.Cache


class State(NamedTuple):
  """F responses: some wait in the queue, some are in flight, some have ended.

  num_ticks: `[]` int32, steps of all slots so far.
  num_started: `[N]` int32, responses of each part that have had a slot.
  prefix: U prompts.
  rollout_id: `[F]` uint32; F / U of them for each prompt, side by side.
  slots: the responses in flight.
  """

  num_ticks: base.Array
  num_started: base.Array
  prefix: prefill.Prefix
  rollout_id: base.Array
  slots: Slots


class Harvest(NamedTuple):
  """The responses that ended since the harvest before, in S rows.

  is_valid: `[S]` bool, False for a row without such a response.
  rows: `[S]` int32, which of the F responses each is.
  steps: `[S, R]`, the tokens.
  """

  is_valid: base.Array
  rows: base.Array
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
    config, prefix, rollout_id, num_slots, max_new_tokens: see `init`.
    read_fn, draw_fn: see `step`.
  """
  state = init(
    config,
    prefix,
    rollout_id,
    num_slots=num_slots,
    max_new_tokens=max_new_tokens,
  )

  def advance(carry):
    state, steps_FR = carry
    state = step(state, read_fn=read_fn, draw_fn=draw_fn, chunk=None)
    state, harvested = harvest(state)
    return state, collect(steps_FR, harvested)

  steps_FR = mesh_lib.split_rows(
    decoding.empty(rollout_id.shape[0], max_new_tokens)
  )
  # The last harvest takes all out, so none is left where no slot is busy.
  return jax.lax.while_loop(
    lambda carry: ~is_over(carry[0]), advance, (state, steps_FR)
  )[1]


def init(
  config: architecture.TransformerConfig,
  prefix: prefill.Prefix,
  rollout_id: base.Array,
  *,
  num_slots: int,
  max_new_tokens: int,
) -> State:
  """Returns the state in which the first S responses have a slot.

  Args:
    config: of the model.
    prefix: U prompts.
    rollout_id: `[F]` uint32; F / U of them for each prompt, side by side.
    num_slots: S, at most F. It is a multiple of N, as are U and F.
    max_new_tokens: R.
  """
  num_parts = mesh_lib.num_current_parts('rows')
  num_prompt_columns = prefix.cache.is_valid.shape[1]
  return _start(
    State(
      num_ticks=jnp.int32(0),
      num_started=jnp.zeros(num_parts, jnp.int32),
      prefix=prefix,
      rollout_id=rollout_id,
      slots=_empty_slots(
        config,
        num_slots=num_slots,
        num_columns=num_prompt_columns + max(max_new_tokens - 1, 1),
        max_new_tokens=max_new_tokens,
      ),
    )
  )


def step(
  state: State, *, read_fn: ReadFn, draw_fn: DrawFn, chunk: int | None
) -> State:
  """Draws tokens until a harvest starts other responses, or none is in flight.

  Args:
    state: the responses.
    read_fn: reads a token of every slot.
    draw_fn: draws a token of every slot.
    chunk: most tokens of a response to draw; None for no limit.
  """
  # Seeds that are mapped step together, so they have the same number.
  first = decoding.of_all_seeds(state.num_ticks)
  tick = functools.partial(
    _tick,
    read_fn=read_fn,
    draw_fn=draw_fn,
    num_prompt_columns=state.prefix.cache.is_valid.shape[1],
  )

  def is_to_go_on(carry):
    num_ticks, slots = carry
    now = state._replace(slots=slots)
    goes_on = ~is_over(now) & ~_is_refill_due(now)
    return goes_on if chunk is None else goes_on & (num_ticks < first + chunk)

  num_ticks, slots = jax.lax.while_loop(
    is_to_go_on,
    lambda carry: (carry[0] + 1, tick(*carry)),
    (first, state.slots),
  )
  return state._replace(num_ticks=num_ticks, slots=slots)


def harvest(state: State) -> tuple[State, Harvest]:
  """Takes out the responses that have ended, and starts the next ones.

  The next ones start once enough slots are free, whenever the harvests are. So
  a response has the same place in the cache at any `chunk`.
  """
  slots, num_parts = state.slots, state.num_started.shape[0]
  num_of_part = state.rollout_id.shape[0] // num_parts
  offsets_N1 = num_of_part * jnp.arange(num_parts)[:, None]
  harvested = Harvest(
    is_valid=slots.is_ripe,
    rows=(_by_part(slots.rows, num_parts) + offsets_N1).reshape(-1),
    steps=slots.steps,
  )
  state = state._replace(
    slots=slots._replace(is_ripe=jnp.zeros_like(slots.is_ripe))
  )
  return _start(state), harvested


def collect(steps_FR: decoding.Step, harvested: Harvest) -> decoding.Step:
  """Returns all F responses `[F, R]`, with those of a harvest among them."""
  num_rows = steps_FR.tokens.shape[0]
  num_parts = mesh_lib.num_current_parts('rows')
  num_of_part = num_rows // num_parts
  offsets_N1 = num_of_part * jnp.arange(num_parts)[:, None]
  rows_NM = jnp.where(
    _by_part(harvested.is_valid, num_parts),
    _by_part(harvested.rows, num_parts) - offsets_N1,
    num_of_part,  # Out of bounds, where nothing is written.
  )

  def put(all_FR, of_slots_SR):
    # By part, so that no device writes to the rows of another.
    put_part = jax.vmap(
      lambda to, rows, values: to.at[rows].set(values, mode='drop')
    )
    return put_part(
      _by_part(all_FR, num_parts), rows_NM, _by_part(of_slots_SR, num_parts)
    ).reshape(all_FR.shape)

  return jax.tree.map(put, steps_FR, harvested.steps)


def is_over(state: State) -> base.Array:
  """Returns whether no response is in flight, `[]` bool, of all mapped seeds.

  A harvest has to come before, as it starts the responses that wait.
  """
  return decoding.all_rows(~state.slots.is_busy)


def places(place: Callable[[tuple[str | None, ...]], Any]) -> State:
  """Returns what `place` makes of the logical axes of each array.

  A record of arrays that are alike has one place for all, as JAX allows.
  """
  rows, whole = place(('rows',)), place(())
  cache = cache_lib.Cache(
    layers=place((None, 'rows', 'kv_heads')),
    is_valid=rows,
    num_tokens=rows,
    num_columns=whole,
  )
  of_slots: dict[str, Any] = dict.fromkeys(Slots._fields, rows) | {
    'cache': cache
  }
  return State(
    num_ticks=whole,
    num_started=rows,
    prefix=prefill.Prefix(hidden=rows, cache=cache),
    rollout_id=rows,
    slots=Slots(**of_slots),
  )


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
      is_ripe=numbers > 0,
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


def _is_refill_due(state: State) -> base.Array:
  """Returns whether enough slots of any part are free for a refill, `[]`."""
  is_busy_NM = _by_part(state.slots.is_busy, state.num_started.shape[0])
  num_parts, num_slots = is_busy_NM.shape
  enough = max(1, int(_REFILL_SHARE * num_slots))
  num_free_N = num_slots - jnp.sum(is_busy_NM, axis=1)
  num_waiting_N = state.rollout_id.shape[0] // num_parts - state.num_started
  wants_N = (num_waiting_N > 0) & (
    num_free_N >= jnp.minimum(num_waiting_N, enough)
  )
  return ~decoding.all_rows(~wants_N)


def _start(state: State) -> State:
  """Gives the free slots to the responses that wait, if enough are free."""
  slots, num_parts = state.slots, state.num_started.shape[0]
  prefix, rollout_id = state.prefix, state.rollout_id
  num_of_part = rollout_id.shape[0] // num_parts
  num_prompts = prefix.hidden.shape[0] // num_parts
  is_free_NM = ~_by_part(slots.is_busy, num_parts) & _is_refill_due(state)
  next_NM = state.num_started[:, None] + jnp.cumsum(is_free_NM, axis=1) - 1
  is_new_NM = is_free_NM & (next_NM < num_of_part)
  rows_NM = jnp.where(is_new_NM, next_NM, _by_part(slots.rows, num_parts))
  prompts_NM = rows_NM // (num_of_part // num_prompts)
  is_new_S = is_new_NM.reshape(-1)
  hidden_SD = cache_lib.take(prefix.hidden, prompts_NM)
  num_new_N = jnp.sum(is_new_NM, axis=1, dtype=jnp.int32)
  return state._replace(
    num_started=state.num_started + num_new_N,
    slots=slots._replace(
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
  )


def _tick(
  num_ticks: base.Array,
  slots: Slots,
  *,
  read_fn: ReadFn,
  draw_fn: DrawFn,
  num_prompt_columns: int,
) -> Slots:
  """Draws the next token of each busy slot."""
  num_columns = slots.cache.is_valid.shape[1] - num_prompt_columns
  max_new_tokens = slots.steps.tokens.shape[1]
  # The first token follows from the prompt, of which `hidden` is the end.
  is_first_S = slots.num_drawn == 0
  last_S1 = jnp.maximum(slots.num_drawn - 1, 0)[:, None]
  column = num_prompt_columns + num_ticks % num_columns
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
  is_busy = slots.is_busy & ~is_end_S & (num_drawn < max_new_tokens)
  return slots._replace(
    num_drawn=num_drawn,
    is_busy=is_busy,
    is_ripe=slots.is_ripe | (slots.is_busy & ~is_busy),
    steps=jax.tree.map(
      lambda all_SR, new_S: jnp.where(is_new_SR, new_S[:, None], all_SR),
      slots.steps,
      step,
    ),
    cache=cache,
  )


def _by_part(array: base.Array, num_parts: int) -> base.Array:
  return array.reshape(num_parts, -1, *array.shape[1:])
