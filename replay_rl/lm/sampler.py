"""Generation: one jitted program of prefill and decode with a KV cache."""

import functools
from collections.abc import Callable
from typing import Annotated
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from replay_rl import base
from replay_rl import constants
from replay_rl.lm import arguments
from replay_rl.lm import cache as cache_lib
from replay_rl.lm import continuous
from replay_rl.lm import decoding
from replay_rl.lm import model
from replay_rl.lm import prefill


class _Loop(NamedTuple):
  """The state of decoding in lock step.

  num_steps: `[]` int32, tokens drawn so far of each row.
  steps: `[R, B]`.
  is_finished: `[B]` bool.
  """

  num_steps: base.Array
  steps: decoding.Step
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
  num_slots: Annotated[int | None, constants.interval('[1, inf)')] = None,
  spans: arguments.Spans | None = None,
) -> base.Completions:
  """Samples a group of responses to each prompt.

  A response depends on its prompt, its rollout_id and the key. It does not
  depend on the other rows, on the place of the row in the batch, or on the
  padding of the prompt. This is exact for the random numbers. The logits are
  rounded, and how depends on the shapes of the program: the size of a group,
  which prefill reads as one row, and `num_slots`. Where two tokens are equally
  good to rounding, another shape may have the other token.

  Args:
    graphdef: from `model.init`.
    params: from `model.init`.
    rng_key: random key, consumed.
    prompts: P right-padded `[P, L]` tokens and their lengths, at least 1.
    rollout_id: `[B]` uint32, with B = P x G; the G of a prompt are side by
      side. Rows with the same prompt and the same id have the same response.
    max_new_tokens: R, the longest response, end-of-sequence included.
    eos_ids: tokens that end a response; at least one.
    pad_id: token after the end of a row; any id of the vocabulary.
    temperature: `[]`, divides the logits. None takes the most probable token,
      with log-probability and entropy 0.
    top_k: sample among the k most probable tokens only; None for all.
    top_p: `[]`, sample among the fewest tokens of at least this mass; None for
      all. Other values of temperature and top_p need no compilation, as opposed
      to None.
    num_slots: responses that are written at a time, see `continuous`. None, and
      B or more, write all of them, until the longest one ends.
    spans: which weights sample each token; `params` then have a leading axis
      `[N]`. None samples all tokens with the same weights.

  Returns:
    `Completions` `[B, ...]` with T = L + R.

  Raises:
    ValueError: an argument is outside its interval, `L + R` exceeds the context
      of the model, P does not divide B, the current mesh does not divide the
      slots, or the weights change during a response in a slot.
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
    temperature=arguments.as_input(temperature),
    top_k=top_k,
    top_p=arguments.as_input(top_p),
    num_slots=num_slots,
    spans=spans,
  )


@functools.partial(
  jax.jit,
  static_argnames=(
    'graphdef',
    'max_new_tokens',
    'eos_ids',
    'pad_id',
    'top_k',
    'num_slots',
  ),
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
  num_slots: int | None,
  spans: arguments.Spans | None,
) -> base.Completions:
  config = model.config_of(graphdef, params)
  arguments.check_rows(
    config,
    prompts,
    rollout_id,
    max_new_tokens=max_new_tokens,
    num_slots=num_slots,
  )
  arguments.check_tokens(config, eos_ids=eos_ids, pad_id=pad_id, top_k=top_k)
  if num_slots is not None and spans is not None:
    arguments.check_one_span(num_slots, spans)
  weights = arguments.weights_of(config, params, spans)
  B, P = rollout_id.shape[0], prompts.tokens.shape[0]
  read, draw = decoding.functions(
    graphdef,
    rng_key,
    eos_ids=eos_ids,
    temperature=temperature,
    top_k=top_k,
    top_p=top_p,
  )
  prefix = prefill.read(
    graphdef, config, weights(0), prompts, group_size=B // P
  )
  if num_slots is None or num_slots >= B:
    steps = _in_lock_step(
      prefix,
      rollout_id,
      read_fn=read,
      draw_fn=draw,
      weights=weights,
      spans=spans,
      max_new_tokens=max_new_tokens,
    )
  else:
    steps = continuous.decode(
      config,
      prefix,
      rollout_id,
      read_fn=functools.partial(read, weights(0)),
      draw_fn=functools.partial(draw, weights(0)),
      num_slots=num_slots,
      max_new_tokens=max_new_tokens,
    )
  return decoding.completions(
    prefill.repeat(prompts, B // P), steps, eos_ids, pad_id
  )


def _in_lock_step(
  prefix: prefill.Prefix,
  rollout_id: base.Array,
  *,
  read_fn: Callable,
  draw_fn: Callable,
  weights: Callable[[base.Array | int], base.PyTree],
  spans: arguments.Spans | None,
  max_new_tokens: int,
) -> decoding.Step:
  """Returns the tokens `[B, R]` of all responses, written at the same time."""
  B = rollout_id.shape[0]

  def draw(params, x_BD, num_steps, is_finished_B):
    """Returns the next token of every row, and which rows have ended."""
    numbers_B = jnp.full((B,), num_steps, jnp.int32)
    step, is_end_B = draw_fn(
      params, x_BD, rollout_id, numbers_B, ~is_finished_B
    )
    return step, is_finished_B | is_end_B

  def decode(params, loop):
    x_BD, cache = read_fn(
      params,
      loop.steps.tokens[loop.num_steps - 1],
      loop.cache,
      ~loop.is_finished,
    )
    step, is_finished = draw(params, x_BD, loop.num_steps, loop.is_finished)
    steps = jax.tree.map(
      lambda leaf_RB, leaf_B: leaf_RB.at[loop.num_steps].set(leaf_B),
      loop.steps,
      step,
    )
    return _Loop(loop.num_steps + 1, steps, is_finished, cache)

  def decode_until(end, params, loop):
    return jax.lax.while_loop(
      lambda loop: (
        (loop.num_steps < end) & ~decoding.all_rows(loop.is_finished)
      ),
      functools.partial(decode, params),
      loop,
    )

  num_copies = B // prefix.hidden.shape[0]
  x_BD = jnp.repeat(prefix.hidden, num_copies, axis=0)
  step, is_finished = draw(weights(0), x_BD, 0, jnp.zeros((B,), bool))
  steps = jax.tree.map(
    lambda leaf_B: (
      jnp.zeros((max_new_tokens, B), leaf_B.dtype).at[0].set(leaf_B)
    ),
    step,
  )
  # The last token is never read, so it needs no column.
  cache = cache_lib.grow(
    cache_lib.repeat(prefix.cache, num_copies), max_new_tokens - 1
  )
  loop = _Loop(jnp.int32(1), steps, is_finished, cache)
  if spans is None:
    loop = decode_until(max_new_tokens, weights(0), loop)
  else:
    ends_K = jnp.append(spans.first_tokens[1:], max_new_tokens)
    loop = jax.lax.fori_loop(
      0,
      ends_K.shape[0],
      lambda k, loop: decode_until(ends_K[k], weights(k), loop),
      loop,
    )
  return jax.tree.map(jnp.transpose, loop.steps)
