"""Whether the functions of a run fit each other, without computing them."""

import functools
from collections.abc import Callable
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from replay_rl import base
from replay_rl import choices
from replay_rl.run import learner
from replay_rl.run import microbatches
from replay_rl.run import rules
from replay_rl.run import state
from replay_rl.tasks import rewards

# Fields of `base.LossInputs` that a run computes for a loss that needs them.
_COMPUTED = ('reference_logprobs', 'proximal_logprobs', 'row_grad_norms')


def check(
  chosen: Mapping[str, choices.Choice],
  parts: state.Parts,
  *,
  truncation: str | None,
) -> int:
  """Returns B, the rows of an update, after a trace of each function.

  The trace needs only shapes, so it comes before any file or computation.

  Args:
    chosen: what `choose` returned.
    parts: the functions and sizes; `num_rows` is not read.
    truncation: see `pairs.truncation`.

  Raises:
    ValueError: a function does not accept these shapes; names the config field.
  """
  rules.check_tokens(
    'sampler.num_prompts x sampler.group_size', parts.num_fresh, parts.shape
  )
  rng_key = jax.random.key(0)
  params = jax.eval_shape(parts.init_params_fn, rng_key)
  hyper = state.as_arrays(parts.hyper)
  run = _shapes(
    f'replay.capacity = {parts.capacity}',
    lambda params: state.init(parts, params, jnp.zeros((), jnp.uint32), hyper),
    params,
  )
  functions = parts.bind(parts.hyper)
  rows = jax.tree.map(
    lambda leaf: jax.ShapeDtypeStruct(
      (parts.num_fresh, *leaf.shape[1:]), leaf.dtype
    ),
    run.buffer.rollouts,
  )
  is_valid = jax.ShapeDtypeStruct((parts.num_fresh,), bool)
  fresh = jax.eval_shape(learner.fresh_batch, rows, rows.group_id, is_valid)
  step = run.learner.step
  prompts = jax.eval_shape(
    lambda: state.empty_prompts(parts.shape, parts.num_prompts)
  )

  named = functools.partial(_named, chosen)
  _shapes(
    'sampler', functions.generate_fn, params, rng_key, prompts, rows.rollout_id
  )
  _shapes(
    named('loss.advantage'), functions.advantage_fn, rows.rewards, rows.group_id
  )
  if functions.keep_rule is not None:
    _shapes(named('replay.keep'), functions.keep_rule, run.buffer, step)
  _check_prompts(
    named('sampler.prompts'), functions, run.buffer, parts.num_prompts
  )
  batch = _shapes(
    named('replay.compose', 'replay.weights', 'replay.draw'),
    functions.compose_fn,
    *(run.buffer, fresh, rng_key, step),
  )
  num_rows = batch.is_valid.shape[0]
  rules.check_tokens('rows of an update', num_rows, parts.shape)
  parts = parts._replace(num_rows=num_rows)
  batch = jax.eval_shape(
    functools.partial(
      microbatches.padded,
      num_microbatches=parts.num_microbatches,
      capacity=parts.capacity,
    ),
    batch,
  )
  if functions.batch_advantage_fn is not None:
    what = named('loss.batch_advantage')
    advantages = _shapes(what, functions.batch_advantage_fn, batch)
    _check_rows(what, advantages, batch.is_valid.shape[0])
  inputs = []  # Each trace of the loss appends the shapes of its inputs.
  update, loss_fn = functions.update, functions.update.loss_fn

  def watched(of_loss):
    inputs.append(jax.tree.map(jax.typeof, of_loss))
    return loss_fn(of_loss)

  _, outcome, _ = _shapes(
    named(
      *('loss.policy', 'loss.statistics', 'loss.normalizer'),
      *('loss.row_weights', 'optimizer.transform', 'optimizer.gate'),
    ),
    lambda learner_state, batch: learner.update(
      learner_state,
      batch,
      functions=update._replace(loss_fn=watched),
      num_updates_since_fresh=0,
      num_microbatches=parts.num_microbatches,
      packed=parts.packed,
      proximal_params=parts.proximal_params(learner_state),
      has_row_grad_norms='row_grad_norms' in parts.loss_reads,
    ),
    run.learner,
    batch,
  )
  if update.statistics_fn and not _reads(loss_fn, inputs[0], 'statistics'):
    raise ValueError(
      f'{named("loss.statistics")}: must be None, because loss.policy ignores '
      f'it ({named("loss.policy")})'
    )
  if truncation and _reads(loss_fn, inputs[0], 'behavior_logprobs'):
    raise ValueError(
      f'{truncation} with {named("loss.policy")}, whose ratio would not be 1 '
      'on rollouts of the same weights'
    )
  if functions.batch_advantage_fn is not None and not (
    _reads(loss_fn, inputs[0], 'advantages')
  ):
    raise ValueError(
      f'{named("loss.batch_advantage")}: must be None, because loss.policy '
      f'ignores the advantages ({named("loss.policy")})'
    )
  if functions.feedback_fn is not None:
    _shapes(named('replay.feedback'), functions.feedback_fn, batch, outcome)
  return num_rows


def _named(chosen: Mapping[str, choices.Choice], *fields: str) -> str:
  """Returns the choices of some fields as text, without those that are None."""
  return ', '.join(
    f'{field} = {chosen[field].text!r}' for field in fields if field in chosen
  )


def _check_prompts(
  what: str,
  functions: state.Functions,
  buffer: base.BufferState,
  num_prompts: int,
) -> None:
  """Checks that the choice of prompts gives as many as a generation has."""
  indices = _shapes(
    what,
    functions.choose_prompts_fn,
    buffer._replace(rollouts=None),
    jax.ShapeDtypeStruct((num_prompts,), jnp.uint32),
    jax.random.key(0),
  )
  _check_rows(what, indices, num_prompts, jnp.uint32)


def loss_reads(parts: state.Parts) -> frozenset[str]:
  """Returns the fields that the loss or its statistic gets by `base.required`.

  Args:
    parts: the functions and sizes; `loss_reads` and `num_rows` are not read.
  """
  update = parts.bind(parts.hyper).update

  def make_inputs() -> base.LossInputs:
    tokens = jnp.zeros((parts.num_fresh, parts.shape.num_tokens))
    rows = tokens[:, 0]
    return base.LossInputs(
      logprobs=tokens,
      behavior_logprobs=tokens,
      rewards=rows,
      advantages=rows,
      loss_mask=tokens > 0,
      age=rows.astype(jnp.int32),
      prompt_id=rows.astype(jnp.uint32),
      is_fresh=rows > 0,
      token_versions=tokens.astype(jnp.int32) if parts.num_spans else None,
    )

  # Shapes alone: the arrays may be larger than the memory.
  inputs = jax.eval_shape(make_inputs)

  def loss_fn(inputs):
    if update.statistics_fn is not None:
      inputs = inputs._replace(statistics=update.statistics_fn(inputs))
    return update.loss_fn(inputs)

  for _ in _COMPUTED:
    try:
      jax.eval_shape(loss_fn, inputs)
    except base.MissingFieldError as error:
      if error.field in _COMPUTED:
        is_of_rows = error.field == 'row_grad_norms'
        value = inputs.rewards if is_of_rows else inputs.logprobs
        inputs = inputs._replace(**{error.field: value})
    except (ValueError, TypeError):  # `check` refuses it, with its field.
      break
  return frozenset(x for x in _COMPUTED if getattr(inputs, x) is not None)


def check_reward(reward: choices.Choice) -> None:
  """Raises ValueError for a reward that a task in JAX cannot have.

  Such a task says whether an answer is right, and not whether it is formatted.
  """
  terms = reward.bind(reward.scalars)
  kinds = (jnp.float32, jnp.float32, jnp.int32, jnp.bool_)
  rows = jax.eval_shape(
    lambda: rewards.Verdicts(*(jnp.zeros(1, kind) for kind in kinds))
  )
  _shapes(f'reward = {reward.text!r}', terms, *rows)
  if _reads(lambda rows: terms(*rows), rows, 'is_formatted'):
    raise ValueError(
      f'reward = {reward.text!r}: must not read is_formatted, which only tasks '
      'in text have'
    )


def _shapes(
  what: str, function: Callable, *arguments: base.PyTree
) -> base.PyTree:
  """Returns the shapes of what a function returns.

  Raises:
    ValueError: the function does not accept the arguments; names `what`.
  """
  try:
    return jax.eval_shape(function, *arguments)
  except (ValueError, TypeError) as error:
    reason = ' '.join(str(error).split())  # Some of JAX have many lines.
    raise ValueError(f'{what}: must fit the run ({reason})') from error


def _check_rows(
  what: str,
  values: base.PyTree,
  num_rows: int,
  expected: jax.typing.DTypeLike = jnp.float32,
) -> None:
  """Raises ValueError if a function does not return one number of each row."""
  shape, dtype = getattr(values, 'shape', ()), getattr(values, 'dtype', None)
  if shape != (num_rows,) or dtype != expected:
    raise ValueError(
      f'{what}: must return {jnp.dtype(expected)}[{num_rows}], not '
      f'{dtype}{list(shape)}'
    )


def _reads(function: Callable, record: base.PyTree, field: str) -> bool:
  """Returns whether a function computes with a field of a record of shapes."""
  program = jax.make_jaxpr(function)(record).jaxpr
  read = {id(x) for step in program.eqns for x in step.invars}
  leaves, _ = jax.tree_util.tree_flatten_with_path(record)
  return any(
    path[0].name == field and id(variable) in read
    for (path, _), variable in zip(leaves, program.invars, strict=True)
  )
