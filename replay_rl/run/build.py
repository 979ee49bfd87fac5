"""Builds a run from its configuration: here strings become functions."""

import dataclasses
import functools
import pathlib

import jax
import jax.numpy as jnp
import optax

from replay_rl import base
from replay_rl import rng
from replay_rl.lm import architecture
from replay_rl.lm import model
from replay_rl.lm import sampler
from replay_rl.replay import compose
from replay_rl.replay import sampling
from replay_rl.rl import advantages
from replay_rl.rl import losses
from replay_rl.run import calls
from replay_rl.run import config as config_lib
from replay_rl.run import iteration
from replay_rl.run import warm_start
from replay_rl.tasks import addition
from replay_rl.tasks import countdown

TASKS = {'addition': addition.make, 'countdown': countdown.make}
KEEP_NEWEST = 'ring()'

_LOSS_ARGUMENTS = ('logprobs', 'behavior_logprobs', 'advantages', 'loss_mask')


def parts(
  config: config_lib.Config, *, weight_rule: base.SlotRule | None = None
) -> iteration.Parts:
  """Returns the functions and sizes of a run.

  Args:
    config: what to build.
    weight_rule: a rule to sample by instead of `config.replay.weights`, for a
      rule that is not (yet) in `replay/rules.py`.

  Raises:
    ValueError: a field has a value that is not allowed.
  """
  config_lib.validate(config)
  task = calls.choose('task', config.task, TASKS)()
  transformer = architecture.TransformerConfig(
    vocab_size=task.vocab_size,
    max_context=task.prompt_length + task.max_new_tokens,
    rope_scaling=None,
    **dataclasses.asdict(config.model),
  )
  graphdef = model.define(transformer)
  generate_fn = functools.partial(
    sampler.generate,
    graphdef,
    max_new_tokens=task.max_new_tokens,
    eos_id=task.eos_id,
    pad_id=task.pad_id,
  )
  whole = functools.partial(generate_fn, top_k=None, top_p=None)
  built = iteration.Parts(
    task=task,
    transformer=transformer,
    init_params_fn=functools.partial(model.init, transformer),
    generate_fn=functools.partial(
      generate_fn,
      temperature=config.sampler.temperature,
      top_k=config.sampler.top_k,
      top_p=config.sampler.top_p,
    ),
    greedy_fn=functools.partial(whole, temperature=0.0),
    unbiased_fn=functools.partial(whole, temperature=1.0),
    logprobs_fn=functools.partial(
      model.token_logprobs, graphdef, temperature=config.sampler.temperature
    ),
    optimizer=_optimizer(config.optimizer, _warmed_up(config.optimizer)),
    advantage_fn=calls.choose(
      'loss.advantage',
      config.loss.advantage,
      calls.functions_like(advantages, 'rewards', 'group_id'),
    ),
    loss_fn=calls.choose(
      'loss.policy',
      config.loss.policy,
      calls.functions_like(losses, *_LOSS_ARGUMENTS),
    ),
    normalizer_fn=_normalizer(config),
    compose_fn=_compose(config, weight_rule),
    keep_rule=_keep_rule(config),
    drop_zero_variance=config.replay.drop_zero_variance,
    capacity=config.replay.capacity,
    num_prompts=config.sampler.num_prompts,
    group_size=config.sampler.group_size,
    lag_iterations=(
      config.sampler.weight_lag // config.replay.updates_per_iteration
    ),
    updates_per_iteration=config.replay.updates_per_iteration,
    num_microbatches=config.optimizer.num_microbatches,
    histogram_bins=config.logging.histogram_bins,
  )
  _check_constants(config, built)
  return built


def base_weights(
  config: config_lib.Config, built: iteration.Parts
) -> base.PyTree:
  """Returns the weights that every seed of a run starts from."""
  settings = config.warm_start
  initial = built.init_params_fn(rng.stream_key(settings.seed, 'weights'))
  if not settings.num_steps:
    return initial
  schedule = optax.cosine_decay_schedule(
    settings.learning_rate, settings.num_steps
  )
  # Everything the weights depend on, and nothing else: arms share them.
  dependencies = {
    'task': config.task,
    'model': dataclasses.asdict(config.model),
    'warm_start': dataclasses.asdict(settings),
    'optimizer': dataclasses.asdict(config.optimizer)
    | {'learning_rate': None, 'warmup_steps': None, 'num_microbatches': None},
    'normalizer': config.loss.normalizer,
  }
  return warm_start.load_or_train(
    pathlib.Path(config.cache_dir).expanduser() / 'warm_starts',
    dependencies,
    initial,
    functools.partial(
      warm_start.train,
      initial,
      settings.seed,
      task=built.task,
      logprobs_fn=built.logprobs_fn,
      normalizer_fn=built.normalizer_fn,
      optimizer=_optimizer(config.optimizer, schedule),
      num_steps=settings.num_steps,
      batch_size=settings.batch_size,
    ),
  )


def _optimizer(
  settings: config_lib.Optimizer, schedule: optax.Schedule
) -> optax.GradientTransformation:
  return optax.chain(
    optax.clip_by_global_norm(settings.max_grad_norm),
    optax.adamw(
      schedule,
      b1=settings.b1,
      b2=settings.b2,
      eps=settings.eps,
      weight_decay=settings.weight_decay,
    ),
  )


def _warmed_up(settings: config_lib.Optimizer) -> optax.Schedule:
  # The first update already moves, by 1 / (warmup_steps + 1) of the rate.
  return optax.linear_schedule(
    settings.learning_rate / (settings.warmup_steps + 1),
    settings.learning_rate,
    settings.warmup_steps,
  )


def _normalizer(config: config_lib.Config) -> base.NormalizerFn:
  return calls.choose(
    'loss.normalizer',
    config.loss.normalizer,
    calls.functions_like(losses, 'loss_mask'),
  )


def _compose(
  config: config_lib.Config, weight_rule: base.SlotRule | None
) -> base.ComposeFn:
  draw = calls.choose(
    'replay.draw',
    config.replay.draw,
    calls.functions_like(sampling, 'rng_key', 'weights', 'num_draws'),
  )
  rule = weight_rule or calls.product('replay.weights', config.replay.weights)
  return calls.choose(
    'replay.compose',
    config.replay.compose,
    calls.functions_like(compose, 'state', 'fresh', 'rng_key', 'step'),
    {
      'weight_rule': rule,
      'draw': draw,
      'batch_size': config.replay.batch_size,
    },
  )


def _keep_rule(config: config_lib.Config) -> base.SlotRule | None:
  if config.replay.keep == KEEP_NEWEST:
    return None
  rows = config.sampler.num_prompts * config.sampler.group_size
  return calls.product(
    'replay.keep', config.replay.keep, {'num_incoming': rows}
  )


def _check_constants(config: config_lib.Config, built: iteration.Parts) -> None:
  """Raises ValueError, with the field's name, if a constant is not allowed.

  The chosen functions check their own constants when they are traced. Here
  they are traced on shapes alone, before anything is written or computed.
  """
  run = jax.eval_shape(
    lambda: iteration.init(
      built, {'weights': jnp.zeros(())}, jnp.zeros((), jnp.uint32)
    )
  )
  rows = jax.eval_shape(
    lambda state: jax.tree.map(
      lambda leaf: leaf[: built.num_prompts * built.group_size], state.rollouts
    ),
    run.buffer,
  )
  step = run.learner.step
  mask, scalars = rows.loss_mask, rows.rewards
  fresh = base.Fresh(
    rows, rows.group_id, jax.eval_shape(lambda x: x > 0, scalars)
  )
  rng_key = jax.eval_shape(lambda: jax.random.key(0))
  replay = config.replay
  checks = [
    (
      f'replay.compose = {replay.compose!r} with replay.weights = '
      f'{replay.weights!r}',
      built.compose_fn,
      (run.buffer, fresh, rng_key, step),
    ),
    (
      f'loss.advantage = {config.loss.advantage!r}',
      built.advantage_fn,
      (scalars, rows.group_id),
    ),
    (
      f'loss.policy = {config.loss.policy!r}',
      built.loss_fn,
      (rows.behavior_logprobs, rows.behavior_logprobs, scalars, mask),
    ),
    (
      f'loss.normalizer = {config.loss.normalizer!r}',
      built.normalizer_fn,
      (mask,),
    ),
  ]
  if built.keep_rule is not None:
    checks.append(
      (f'replay.keep = {replay.keep!r}', built.keep_rule, (run.buffer, step))
    )
  for field, function, arguments in checks:
    try:
      jax.eval_shape(function, *arguments)
    except ValueError as error:
      raise ValueError(f'{field}: {error}') from error
