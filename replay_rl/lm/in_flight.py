"""Generation in pieces: the continuous sampler as programs of a model.

    state = in_flight.init(graphdef, params, prompts, rollout_id, ...)
    while not in_flight.is_over(state):
      state = in_flight.step(graphdef, params, rng_key, state, chunk=16, ...)
      state, harvested = in_flight.harvest(state)

`sampler.generate` with `num_slots` is the same loop in one program. Here the
host may judge a response while others are written, and may keep the state, a
pytree, with the responses in flight. The functions are pure and jitted.

Tokens and their records do not depend on `chunk`, nor on whether the loop is
one program, but for the rounding of another program; on the CPU of the tests
every bit is equal.
"""

import functools
from collections.abc import Callable
from typing import Annotated
from typing import NamedTuple

import jax
from flax import nnx

from replay_rl import base
from replay_rl import constants
from replay_rl.lm import arguments
from replay_rl.lm import continuous
from replay_rl.lm import decoding
from replay_rl.lm import model
from replay_rl.lm import prefill

_COUNT = constants.interval('[1, inf)')


class Pieces(NamedTuple):
  """The functions of a generation in pieces, with the settings of a run.

  init: (params, prompts, rollout_id) -> state, see `init`.
  step: (params, rng_key, state) -> state, see `step`.
  responses: steps `[B, R]` -> `decoding.Responses`.
  completions: (prompts of the groups, steps `[F, R]`) -> completions.
  """

  init: Callable[..., continuous.State]
  step: Callable[..., continuous.State]
  responses: Callable[[decoding.Step], decoding.Responses]
  completions: Callable[[base.Prompts, decoding.Step], base.Completions]


def pieces(
  graphdef: nnx.GraphDef,
  *,
  max_new_tokens: int,
  eos_ids: tuple[int, ...],
  pad_id: int,
  num_slots: int,
  chunk: int,
) -> Pieces:
  """Returns the functions, of which `step` needs temperature, top_k and top_p.

  Args:
    graphdef, max_new_tokens, eos_ids, pad_id: see `sampler.generate`.
    num_slots: see `init`.
    chunk: see `step`.
  """

  def completions(prompts, steps):
    group_size = steps.tokens.shape[0] // prompts.tokens.shape[0]
    rows = prefill.repeat(prompts, group_size)
    return decoding.completions(rows, steps, eos_ids, pad_id)

  sizes = {'max_new_tokens': max_new_tokens, 'num_slots': num_slots}
  return Pieces(
    init=functools.partial(init, graphdef, **sizes),
    step=functools.partial(step, graphdef, chunk=chunk, eos_ids=eos_ids),
    responses=functools.partial(
      decoding.responses, eos_ids=eos_ids, pad_id=pad_id
    ),
    completions=completions,
  )


@constants.checked
def init(
  graphdef: nnx.GraphDef,
  params: base.PyTree,
  prompts: base.Prompts,
  rollout_id: base.Array,
  *,
  max_new_tokens: Annotated[int, _COUNT],
  num_slots: Annotated[int, _COUNT],
) -> continuous.State:
  """Reads the prompts into the queue, and gives a slot to the first responses.

  Args:
    graphdef, params, prompts, rollout_id, max_new_tokens: see
      `sampler.generate`.
    num_slots: S, responses that are written at a time; fewer than B.

  Raises:
    ValueError: an argument is outside its interval, or `sampler.generate`
      refuses it.
  """
  return _init(
    graphdef,
    params,
    prompts,
    rollout_id,
    max_new_tokens=max_new_tokens,
    num_slots=num_slots,
  )


@functools.partial(
  jax.jit,
  static_argnames=(
    'graphdef',
    'max_new_tokens',
    'num_slots',
  ),
)
def _init(
  graphdef: nnx.GraphDef,
  params: base.PyTree,
  prompts: base.Prompts,
  rollout_id: base.Array,
  *,
  max_new_tokens: int,
  num_slots: int,
) -> continuous.State:
  num_rows, num_prompts = rollout_id.shape[0], prompts.tokens.shape[0]
  config = model.config_of(graphdef, params)
  arguments.check_rows(
    config,
    prompts,
    rollout_id,
    max_new_tokens=max_new_tokens,
    num_slots=num_slots,
  )
  if num_slots >= num_rows:
    raise ValueError(
      f'num_slots = {num_slots}: must be below the {num_rows} responses, so '
      'that some of them wait'
    )
  prefix = prefill.read(
    graphdef,
    config,
    arguments.weights_of(config, params, None)(0),
    prompts,
    group_size=num_rows // num_prompts,
  )
  return continuous.init(
    config,
    prefix,
    rollout_id,
    num_slots=num_slots,
    max_new_tokens=max_new_tokens,
  )


@constants.checked
def step(
  graphdef: nnx.GraphDef,
  params: base.PyTree,
  rng_key: base.Array,
  state: continuous.State,
  *,
  chunk: Annotated[int, _COUNT],
  eos_ids: tuple[int, ...],
  temperature: Annotated[base.Scalar | None, constants.TEMPERATURE],
  top_k: Annotated[int | None, _COUNT],
  top_p: Annotated[base.Scalar | None, constants.interval('(0, 1]')],
) -> continuous.State:
  """Draws at most `chunk` tokens of each response in flight.

  It ends before where a harvest would start other responses, and where none is
  in flight.

  Args:
    graphdef, params: see `sampler.generate`.
    rng_key: random key of the generation, the same at each call.
    state: the responses.
    chunk: most decoding steps.
    eos_ids, temperature, top_k, top_p: see `sampler.generate`.

  Raises:
    ValueError: an argument is outside its interval, or `sampler.generate`
      refuses it.
  """
  return _step(
    graphdef,
    params,
    rng_key,
    state,
    chunk=chunk,
    eos_ids=eos_ids,
    temperature=arguments.as_input(temperature),
    top_k=top_k,
    top_p=arguments.as_input(top_p),
  )


@functools.partial(
  jax.jit, static_argnames=('graphdef', 'chunk', 'eos_ids', 'top_k')
)
def _step(
  graphdef: nnx.GraphDef,
  params: base.PyTree,
  rng_key: base.Array,
  state: continuous.State,
  *,
  chunk: int,
  eos_ids: tuple[int, ...],
  temperature: base.Array | None,
  top_k: int | None,
  top_p: base.Array | None,
) -> continuous.State:
  config = model.config_of(graphdef, params)
  arguments.check_tokens(config, eos_ids=eos_ids, pad_id=None, top_k=top_k)
  params = arguments.weights_of(config, params, None)(0)
  read_fn, draw_fn = decoding.functions(
    graphdef,
    rng_key,
    eos_ids=eos_ids,
    temperature=temperature,
    top_k=top_k,
    top_p=top_p,
  )
  return continuous.step(
    state,
    read_fn=functools.partial(read_fn, params),
    draw_fn=functools.partial(draw_fn, params),
    chunk=chunk,
  )


harvest = jax.jit(continuous.harvest)
collect = jax.jit(continuous.collect)
is_over = jax.jit(continuous.is_over)
