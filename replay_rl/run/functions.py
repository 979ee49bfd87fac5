"""The functions of a run: what its configuration names, and their numbers."""

import functools
import types
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from replay_rl import base
from replay_rl import choices
from replay_rl.replay import compose
from replay_rl.replay import feedback
from replay_rl.replay import keep
from replay_rl.replay import sampling
from replay_rl.replay import weights
from replay_rl.rl import advantages
from replay_rl.rl import gates
from replay_rl.rl import importance
from replay_rl.rl import losses
from replay_rl.rl import optimizers
from replay_rl.rl import statistics
from replay_rl.run import config as config_lib
from replay_rl.run import learner
from replay_rl.run import schedule
from replay_rl.run import state
from replay_rl.tasks import addition
from replay_rl.tasks import countdown
from replay_rl.tasks.text import rewards

TASKS = {'addition': addition.make, 'countdown': countdown.make}
KEEP_NEWEST = 'ring()'

# What a compose function takes that its text in the config cannot give.
_OFFERED = ('weight_rule', 'draw', 'batch_size')


def _kind(
  module: types.ModuleType, *positionals: str, **joined: Any
) -> choices.Kind:
  return choices.Kind(
    choices.functions_like(module, *positionals), positionals, **joined
  )


# Argument of `train` -> field of the config, and what may be chosen for it.
KINDS = {
  'weights': (
    'replay.weights',
    _kind(weights, 'state', 'step', operator='*', join=weights.product),
  ),
  'keep': ('replay.keep', _kind(keep, 'state', 'step')),
  'draw': (
    'replay.draw',
    _kind(sampling, 'rng_key', 'weights', 'num_draws'),
  ),
  'compose': (
    'replay.compose',
    _kind(compose, 'state', 'fresh', 'rng_key', 'step'),
  ),
  'feedback': ('replay.feedback', _kind(feedback, 'batch', 'outcome')),
  'advantage': ('loss.advantage', _kind(advantages, 'rewards', 'group_id')),
  'loss': ('loss.policy', _kind(losses, 'inputs')),
  'statistics': ('loss.statistics', _kind(statistics, 'inputs')),
  'normalizer': ('loss.normalizer', _kind(losses, 'loss_mask')),
  'row_weights': ('loss.row_weights', _kind(importance, 'batch')),
  'gate': ('optimizer.gate', _kind(gates)),
  'optimizer': ('optimizer.transform', _kind(optimizers, 'learning_rate')),
  'schedule': ('schedule', _kind(schedule, 'iteration')),
  'task': ('task', choices.Kind(TASKS, ())),
  'reward': (
    'text.reward',
    _kind(
      rewards,
      'is_correct',
      'is_formatted',
      'lengths',
      'is_finished',
      operator='+',
      join=choices.total,
    ),
  ),
}
# Fields whose functions judge responses; the compiled programs have no part of
# their constants.
_OF_TASK = ('task', 'text.reward')


def choose(
  config: config_lib.Config, functions: Mapping[str, Callable]
) -> dict[str, choices.Choice]:
  """Returns the choices of a config by field; a field that is None has none.

  Args:
    config: names the functions.
    functions: to use in place of these, by the name of the kind.

  Raises:
    ValueError: an unknown kind, or a choice that is not allowed.
  """
  ignored = 'task' if config.text else 'reward'
  for name in functions:
    if name not in KINDS:
      raise ValueError(f'{name}: must be one of {", ".join(KINDS)}')
    if name == ignored:
      raise ValueError(f'{name}: must not be given, task = {config.task!r}')
  values = config_lib.flatten(config)
  offered = {
    'replay.compose': dict.fromkeys(_OFFERED),
    'schedule': {'updates_per_iteration': config.replay.updates_per_iteration},
  }
  chosen = {}
  for name, (field, kind) in KINDS.items():
    # A task in text has no choice of a task, and the others none of a reward.
    given = functions.get(name, values.get(field))
    if given not in (None, KEEP_NEWEST, config_lib.TEXT_TASK):
      chosen[field] = choices.choose(field, given, kind, offered.get(field))
  _check_ignored(config, chosen)
  return chosen


def _check_ignored(
  config: config_lib.Config, chosen: Mapping[str, choices.Choice]
) -> None:
  """Raises ValueError if what the batch needs is missing, or is ignored."""
  choice = chosen['replay.compose']
  given = {
    'weight_rule': 'replay.weights' in chosen,
    'draw': 'replay.draw' in chosen,
    'batch_size': config.replay.batch_size is not None,
  }
  for argument, is_given in given.items():
    if is_given == (argument in choice.takes):
      continue
    field = 'weights' if argument == 'weight_rule' else argument
    must = (
      'be None, because replay.compose ignores it'
      if is_given
      else 'be given, because replay.compose needs it'
    )
    raise ValueError(
      f'replay.{field} = {getattr(config.replay, field)!r}: must {must} '
      f'(replay.compose = {choice.text!r})'
    )


def numbers(
  config: config_lib.Config, chosen: Mapping[str, choices.Choice]
) -> state.Hyper:
  """Returns the numbers of a config that set no shape."""
  sampler, optimizer = config.sampler, config.optimizer
  numbers: dict[str, Mapping[str, base.Scalar]] = {
    'sampler': {'temperature': float(sampler.temperature)},
    'optimizer': {
      'learning_rate': float(optimizer.learning_rate),
      'warmup_steps': optimizer.warmup_steps,
      'max_grad_norm': float(optimizer.max_grad_norm),
    },
  }
  if sampler.top_p is not None:
    numbers['sampler'] = {**numbers['sampler'], 'top_p': float(sampler.top_p)}
  return numbers | {
    field: choice.scalars
    for field, choice in chosen.items()
    if choice.scalars and field not in _OF_TASK
  }


def bind(
  config: config_lib.Config,
  chosen: Mapping[str, choices.Choice],
  generate_fn: Callable,
  logprobs_fn: Callable,
  hyper: state.Hyper,
) -> state.Functions:
  """Returns the functions of a run with the numbers of `hyper` bound."""

  def bound(field, **offered) -> Any:
    if field not in chosen:
      return None
    return chosen[field].bind(hyper.get(field, {}), **offered)

  def generate(params, rng_key, prompts, rollout_id):
    return generate_fn(
      params,
      rng_key,
      prompts,
      rollout_id,
      temperature=hyper['sampler']['temperature'],
      top_p=hyper['sampler'].get('top_p'),
    )

  numbers = hyper['optimizer']
  make_gate = bound('optimizer.gate')
  return state.Functions(
    generate_fn=generate,
    update=learner.UpdateFunctions(
      logprobs_fn=functools.partial(
        logprobs_fn, temperature=hyper['sampler']['temperature']
      ),
      loss_fn=bound('loss.policy'),
      statistics_fn=bound('loss.statistics'),
      normalizer_fn=bound('loss.normalizer'),
      row_weight_fn=bound('loss.row_weights'),
      optimizer=clipped(
        bound('optimizer.transform'),
        functools.partial(_warmed_up, **_rates(numbers)),
        numbers['max_grad_norm'],
      ),
      gate=make_gate() if make_gate else None,
    ),
    advantage_fn=bound('loss.advantage'),
    compose_fn=bound(
      'replay.compose',
      weight_rule=bound('replay.weights'),
      draw=bound('replay.draw'),
      batch_size=config.replay.batch_size,
    ),
    keep_rule=bound('replay.keep'),
    feedback_fn=bound('replay.feedback'),
  )


def _rates(numbers: Mapping[str, base.Scalar]) -> dict[str, base.Scalar]:
  return {name: numbers[name] for name in ('learning_rate', 'warmup_steps')}


def clipped(
  transform: Callable, rates: optax.Schedule, max_grad_norm: base.Scalar
) -> optax.GradientTransformation:
  """Returns the optimizer behind a bound on the gradient's global norm."""
  return optax.chain(optax.clip_by_global_norm(max_grad_norm), transform(rates))


def _warmed_up(
  count: base.Array, *, learning_rate: base.Scalar, warmup_steps: base.Scalar
) -> base.Array:
  """Returns the rate of an update: a linear warm-up, then constant.

  The first update already moves, by 1 / (warmup_steps + 1) of the rate.
  """
  return learning_rate * (
    (jnp.minimum(count, warmup_steps) + 1) / (warmup_steps + 1)
  )


def check(
  config: config_lib.Config,
  chosen: Mapping[str, choices.Choice],
  parts: state.Parts,
) -> int:
  """Returns the rows of an update; raises ValueError that names a field.

  Traces each function on shapes alone, before anything is written or computed:
  a function refuses what does not fit, or a field that a rollout does not have.
  """
  rng_key = jax.random.key(0)
  params = jax.eval_shape(parts.init_params_fn, rng_key)
  hyper = state.as_arrays(parts.hyper)
  run = _trace(
    'replay.capacity',
    lambda params: state.init(parts, params, jnp.zeros((), jnp.uint32), hyper),
    params,
  )
  functions = parts.bind(parts.hyper)
  fresh = jax.eval_shape(
    functools.partial(_first_rows, num_rows=parts.num_fresh), run.buffer
  )
  rows, step = fresh.rollouts, run.learner.step
  prompts = jax.eval_shape(
    lambda: state.empty_prompts(parts.shape, parts.num_fresh)
  )

  def named(*fields):
    return ', '.join(
      f'{field} = {chosen[field].text!r}' for field in fields if field in chosen
    )

  _trace(
    'sampler',
    functions.generate_fn,
    params,
    rng_key,
    prompts,
    rows.rollout_id,
  )
  _trace(
    named('loss.advantage'), functions.advantage_fn, rows.rewards, rows.group_id
  )
  if functions.keep_rule is not None:
    _trace(named('replay.keep'), functions.keep_rule, run.buffer, step)
  batch = _trace(
    named('replay.compose', 'replay.weights', 'replay.draw'),
    functions.compose_fn,
    run.buffer,
    fresh,
    rng_key,
    step,
  )
  num_rows = batch.is_valid.shape[0]
  if num_rows % parts.num_microbatches:
    raise ValueError(
      f'optimizer.num_microbatches = {parts.num_microbatches}: must divide the '
      f'{num_rows} rows of an update'
    )
  _, outcome, _ = _trace(
    named(
      'loss.policy',
      'loss.statistics',
      'loss.normalizer',
      'loss.row_weights',
      'optimizer.transform',
      'optimizer.gate',
    ),
    functools.partial(
      learner.update,
      functions=functions.update,
      num_updates_since_fresh=0,
      num_microbatches=parts.num_microbatches,
    ),
    run.learner,
    batch,
  )
  if functions.feedback_fn is not None:
    _trace(named('replay.feedback'), functions.feedback_fn, batch, outcome)
  return num_rows


def _first_rows(stored: base.BufferState, num_rows: int) -> base.Batch:
  is_valid = jnp.ones(num_rows, bool)
  return base.Batch(
    rollouts=jax.tree.map(lambda leaf: leaf[:num_rows], stored.rollouts),
    slots=jnp.arange(num_rows),
    is_valid=is_valid,
    is_fresh=is_valid,
    probs=jnp.zeros(num_rows),
    num_eligible=jnp.int32(num_rows),
  )


def _trace(what: str, function: Callable, *arguments: base.PyTree):
  try:
    return jax.eval_shape(function, *arguments)
  except (ValueError, TypeError) as error:
    raise ValueError(f'{what}: {error}') from error
