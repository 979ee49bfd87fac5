"""Builds a run from its configuration: here strings become functions."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax

from replay_rl import base
from replay_rl import rng
from replay_rl.lm import architecture
from replay_rl.lm import model
from replay_rl.lm import sampler
from replay_rl.lm import scoring
from replay_rl.lm.hf import checkpoint as hf
from replay_rl.lm.hf import config as hf_config
from replay_rl.parallel import mesh as mesh_lib
from replay_rl.replay import compose
from replay_rl.replay import sampling
from replay_rl.rl import advantages
from replay_rl.rl import losses
from replay_rl.run import choices
from replay_rl.run import config as config_lib
from replay_rl.run import iteration
from replay_rl.run import placement
from replay_rl.run import warm_start
from replay_rl.tasks import addition
from replay_rl.tasks import countdown
from replay_rl.tasks import task as task_lib
from replay_rl.tasks.text import rewards

TASKS = {'addition': addition.make, 'countdown': countdown.make}
KEEP_NEWEST = 'ring()'

_REWARD_ARGUMENTS = ('is_correct', 'is_formatted', 'lengths', 'is_finished')
_LOSS_ARGUMENTS = ('logprobs', 'behavior_logprobs', 'advantages', 'loss_mask')


def parts(
  config: config_lib.Config,
  *,
  weight_rule: base.SlotRule | None = None,
  task: task_lib.Task | task_lib.TextTask | None = None,
) -> iteration.Parts:
  """Returns the functions and sizes of a run.

  Args:
    config: what to build.
    weight_rule: a rule to sample by instead of `config.replay.weights`, for a
      rule that is not (yet) in `replay/rules.py`.
    task: a task to use instead of making `config.task`, whose files may be
      elsewhere.

  Raises:
    ValueError: a field has a value that is not allowed.
  """
  config_lib.validate(config)
  task = task or _task(config)
  transformer = _transformer(config.model, task)
  graphdef, _ = jax.eval_shape(
    functools.partial(model.init, transformer, constrain_fn=mesh_lib.constrain),
    jax.random.key(0),
  )
  generate_fn = functools.partial(
    sampler.generate,
    graphdef,
    max_new_tokens=task.max_new_tokens,
    eos_ids=task.eos_ids,
    pad_id=task.pad_id,
  )
  whole = functools.partial(generate_fn, top_k=None, top_p=None)
  built = iteration.Parts(
    task=task,
    transformer=transformer,
    init_params_fn=lambda rng_key: model.init(transformer, rng_key)[1],
    generate_fn=functools.partial(
      generate_fn,
      temperature=config.sampler.temperature,
      top_k=config.sampler.top_k,
      top_p=config.sampler.top_p,
    ),
    greedy_fn=functools.partial(whole, temperature=0.0),
    unbiased_fn=functools.partial(whole, temperature=1.0),
    logprobs_fn=functools.partial(
      scoring.token_logprobs,
      graphdef,
      temperature=config.sampler.temperature,
      chunk_size=config.optimizer.logits_chunk,
      remat=config.optimizer.remat,
    ),
    optimizer=_optimizer(config.optimizer, warmed_up(config.optimizer)),
    advantage_fn=choices.choose(
      'loss.advantage',
      config.loss.advantage,
      choices.functions_like(advantages, 'rewards', 'group_id'),
    ),
    loss_fn=choices.choose(
      'loss.policy',
      config.loss.policy,
      choices.functions_like(losses, *_LOSS_ARGUMENTS),
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
  if config.model.checkpoint is not None:
    return _pretrained(config.model.checkpoint, built.transformer)
  settings = config.warm_start
  initial = built.init_params_fn(rng.stream_key(settings.seed, 'weights'))
  if not settings.num_steps:
    return initial
  schedule = optax.warmup_cosine_decay_schedule(
    init_value=0.0,
    peak_value=settings.learning_rate,
    warmup_steps=settings.warmup_steps,
    decay_steps=settings.num_steps,
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
      task=task_lib.in_jax(built.task),
      logprobs_fn=built.logprobs_fn,
      normalizer_fn=built.normalizer_fn,
      optimizer=_optimizer(config.optimizer, schedule),
      num_steps=settings.num_steps,
      batch_size=settings.batch_size,
    ),
  )


def _task(config: config_lib.Config) -> task_lib.Task | task_lib.TextTask:
  if config.text is None:
    return choices.choose('task', config.task, TASKS)()
  # Needs the packages of the extra [math].
  from replay_rl.tasks.text import text_task

  settings = dataclasses.asdict(config.text)
  reward_fn = choices.total(
    'text.reward',
    settings.pop('reward'),
    choices.functions_like(rewards, *_REWARD_ARGUMENTS),
  )
  return text_task.make(reward_fn=reward_fn, **settings)


def _transformer(
  settings: config_lib.Model, task: task_lib.Task | task_lib.TextTask
) -> architecture.TransformerConfig:
  shape = dataclasses.asdict(settings)
  del shape['checkpoint']
  if shape['vocab_size'] is None:
    shape['vocab_size'] = task.vocab_size
  if shape['vocab_size'] < task.vocab_size:
    raise ValueError(
      f'model.vocab_size = {settings.vocab_size}: must be at least the '
      f'{task.vocab_size} tokens of the task'
    )
  if shape['rope_scaling'] is not None:
    shape['rope_scaling'] = architecture.RopeScaling(**shape['rope_scaling'])
  return architecture.TransformerConfig(
    max_context=task.prompt_length + task.max_new_tokens, **shape
  )


def _pretrained(
  folder: str, transformer: architecture.TransformerConfig
) -> base.PyTree:
  """Returns the weights of a checkpoint, where the current mesh wants them."""
  path = pathlib.Path(folder).expanduser()
  found = hf_config.read_config(
    path,
    max_context=transformer.max_context,
    compute_dtype=transformer.compute_dtype,
  )
  differing = [
    f'{field.name} = {getattr(transformer, field.name)} '
    f'(there: {getattr(found, field.name)})'
    for field in dataclasses.fields(transformer)
    if getattr(transformer, field.name) != getattr(found, field.name)
  ]
  if differing:
    raise ValueError(
      f'model.checkpoint = {folder!r}: must have the shape that the config '
      f'gives; {"; ".join(differing)}'
    )
  mesh = jax.sharding.get_mesh()
  if mesh.empty:
    return hf.load(path, transformer)
  # Each device is written to by itself, which a mesh of all would refuse.
  with jax.set_mesh(jax.sharding.Mesh(np.empty((), object), ())):
    return hf.load(
      path,
      transformer,
      placement.of_params(model.logical_axes(transformer), mesh),
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


def warmed_up(settings: config_lib.Optimizer) -> optax.Schedule:
  """Returns the learning rate by update: a linear warm-up, then constant."""
  # The first update already moves, by 1 / (warmup_steps + 1) of the rate.
  return optax.linear_schedule(
    settings.learning_rate / (settings.warmup_steps + 1),
    settings.learning_rate,
    settings.warmup_steps,
  )


def _normalizer(config: config_lib.Config) -> base.NormalizerFn:
  return choices.choose(
    'loss.normalizer',
    config.loss.normalizer,
    choices.functions_like(losses, 'loss_mask'),
  )


def _compose(
  config: config_lib.Config, weight_rule: base.SlotRule | None
) -> base.ComposeFn:
  draw = choices.choose(
    'replay.draw',
    config.replay.draw,
    choices.functions_like(sampling, 'rng_key', 'weights', 'num_draws'),
  )
  rule = weight_rule or choices.product('replay.weights', config.replay.weights)
  return choices.choose(
    'replay.compose',
    config.replay.compose,
    choices.functions_like(compose, 'state', 'fresh', 'rng_key', 'step'),
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
  return choices.product(
    'replay.keep', config.replay.keep, {'num_incoming': rows}
  )


def _check_constants(config: config_lib.Config, built: iteration.Parts) -> None:
  """Raises ValueError, with the field's name, if a constant is not allowed.

  The chosen functions check their own constants when they are traced. Here
  they are traced on shapes alone, before anything is written or computed.
  """
  rng_key = jax.random.key(0)
  params = jax.eval_shape(built.init_params_fn, rng_key)
  run = jax.eval_shape(
    lambda params: iteration.init(built, params, jnp.zeros((), jnp.uint32)),
    params,
  )
  num_rows = built.num_prompts * built.group_size
  prompts = _prompts(built.task, rng_key, num_rows)
  fresh = jax.eval_shape(lambda state: _first_rows(state, num_rows), run.buffer)
  rows, step = fresh.rollouts, run.learner.step
  logprobs, mask = rows.behavior_logprobs, rows.loss_mask
  replay, loss = config.replay, config.loss

  _trace('sampler', built.generate_fn, params, rng_key, prompts)
  _trace(
    f'loss.advantage = {loss.advantage!r}',
    built.advantage_fn,
    rows.rewards,
    rows.group_id,
  )
  _trace(
    f'loss.policy = {loss.policy!r}',
    built.loss_fn,
    logprobs,
    logprobs,
    rows.advantages,
    mask,
  )
  _trace(f'loss.normalizer = {loss.normalizer!r}', built.normalizer_fn, mask)
  if built.keep_rule is not None:
    _trace(f'replay.keep = {replay.keep!r}', built.keep_rule, run.buffer, step)
  batch = _trace(
    f'replay.compose = {replay.compose!r}, replay.weights = '
    f'{replay.weights!r}, replay.draw = {replay.draw!r}',
    built.compose_fn,
    run.buffer,
    fresh,
    rng_key,
    step,
  )
  if batch.is_valid.shape[0] % built.num_microbatches:
    raise ValueError(
      f'optimizer.num_microbatches = {built.num_microbatches}: must divide the '
      f'{batch.is_valid.shape[0]} rows of an update'
    )


def _prompts(
  task: task_lib.Task | task_lib.TextTask, rng_key: base.Array, num_rows: int
) -> base.Prompts:
  if isinstance(task, task_lib.TextTask):
    return task.prompts_fn(0, 0, num_rows)
  return jax.eval_shape(lambda: task.prompts_fn(rng_key, num_rows))


def _first_rows(state: base.BufferState, num_rows: int) -> base.Fresh:
  return base.Fresh(
    rollouts=jax.tree.map(lambda leaf: leaf[:num_rows], state.rollouts),
    slots=jnp.arange(num_rows),
    is_valid=jnp.ones(num_rows, bool),
  )


def _trace(field: str, function: Callable, *arguments: base.PyTree):
  try:
    return jax.eval_shape(function, *arguments)
  except ValueError as error:
    raise ValueError(f'{field}: {error}') from error
