"""Builds a run from its configuration."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import jax
import numpy as np

from replay_rl import base
from replay_rl import choices
from replay_rl import rng
from replay_rl.lm import architecture
from replay_rl.lm import attention
from replay_rl.lm import in_flight
from replay_rl.lm import model
from replay_rl.lm import sampler
from replay_rl.lm import scoring
from replay_rl.lm.hf import checkpoint as hf_checkpoint
from replay_rl.lm.hf import config as hf_config
from replay_rl.parallel import mesh as mesh_lib
from replay_rl.run import budget
from replay_rl.run import config as config_lib
from replay_rl.run import functions as functions_lib
from replay_rl.run import pairs
from replay_rl.run import placement
from replay_rl.run import rules
from replay_rl.run import schedule
from replay_rl.run import state
from replay_rl.run import tracing
from replay_rl.run import warm_start
from replay_rl.tasks import task as task_lib


class Experiment(NamedTuple):
  """A run as its config describes it, without its task and its devices.

  parts: the functions and sizes of the run.
  schedule: number of a cycle -> its events.
  stop: says when a seed has had enough; None if nothing does.
  chosen: field of the config -> the choice that it names.
  """

  parts: state.Parts
  schedule: schedule.Schedule
  stop: budget.StopFn | None
  chosen: Mapping[str, choices.Choice]

  @property
  def records(self) -> dict[str, Any]:
    """The records of the choices for `config.json`, by field of the config.

    Without that of `stop`, which may change when a run resumes.
    """
    return {
      field: choice.record
      for field, choice in self.chosen.items()
      if field != 'stop'
    }

  @property
  def users(self) -> list[Callable]:
    """The functions of the choices that are not of this package."""
    return [user for choice in self.chosen.values() for user in choice.users]


def experiment(
  config: config_lib.Config,
  shape: task_lib.Shape,
  functions: Mapping[str, Callable] | None = None,
) -> Experiment:
  """Returns the functions and sizes of a run.

  Args:
    config: the run.
    shape: sizes of its task.
    functions: by key of `functions.KINDS`, such as 'weights', replacements for
      what the config names.

  Raises:
    ValueError: a field has a value that is not allowed.
  """
  rules.validate(config)
  rules.check_packing(config.optimizer, shape)
  chosen = functions_lib.choose(config, functions or {})
  if config.warm_start.num_steps:
    functions_lib.choose_warm_start(config)
    rules.check_tokens(
      'warm_start.batch_size', config.warm_start.batch_size, shape
    )
  transformer = transformer_of(config.model, shape)
  graphdef = _graphdef(transformer)
  of_cycles = chosen['schedule'].bind(chosen['schedule'].scalars)
  needs = schedule.needs(of_cycles)
  num_slots = config.sampler.num_slots
  if num_slots is not None and needs.num_spans > 1:
    raise ValueError(
      f'sampler.num_slots = {num_slots}: must be None for schedule = '
      f'{chosen["schedule"].text!r}, whose weights change at the same token of '
      'all responses'
    )
  options = {
    'max_new_tokens': shape.max_new_tokens,
    'eos_ids': shape.eos_ids,
    'pad_id': shape.pad_id,
    'num_slots': num_slots,
  }
  generate_fn = functools.partial(
    sampler.generate, graphdef, **options, top_k=None, top_p=None
  )  # Without top_k and top_p, unless the config has them.
  chunk, pieces = config.text and config.text.judge_every, None
  if chunk is not None:
    pieces = in_flight.pieces(graphdef, chunk=chunk, **options)
  parts = state.Parts(
    shape=shape,
    transformer=transformer,
    init_params_fn=lambda rng_key: model.init(transformer, rng_key)[1],
    greedy_fn=functools.partial(generate_fn, temperature=None),
    bind=functools.partial(
      functions_lib.bind,
      config,
      chosen,
      generate_fn,
      functools.partial(
        scoring.token_logprobs,
        graphdef,
        chunk_size=config.optimizer.logits_chunk,
        remat=config.optimizer.remat,
      ),
      pieces,
    ),
    hyper=functions_lib.numbers(config, chosen),
    drop_zero_variance=config.replay.drop_zero_variance,
    capacity=config.replay.capacity,
    num_known_prompts=config.replay.num_prompts,
    num_distinct_prompts=config.sampler.num_distinct_prompts,
    num_prompts=config.sampler.num_prompts,
    group_size=config.sampler.group_size,
    num_rows=0,
    num_publications=(
      needs.num_publications or rules.lag_in_iterations(config)
    ),
    num_spans=needs.num_spans,
    judges_beside=pieces is not None,
    microbatch_rows=config.optimizer.microbatch_rows,
    packed_tokens=config.optimizer.packed_tokens,
    loss_reads=frozenset(),
    histogram_bins=config.logging.histogram_bins,
    age_edges=config.logging.age_buckets or (),
    age_grad_norms=config.logging.age_grad_norms,
  )
  parts = parts._replace(loss_reads=tracing.loss_reads(parts))
  num_rows = tracing.check(
    chosen, parts, truncation=pairs.truncation(config.sampler)
  )
  parts = parts._replace(num_rows=num_rows)
  stop = chosen.get('stop')
  return Experiment(
    parts,
    schedule=of_cycles,
    stop=stop and stop.bind(stop.scalars),
    chosen=chosen,
  )


def attention_note(parts: state.Parts, mesh: jax.sharding.Mesh) -> str:
  """Returns which attention the learner uses, for the user."""
  packed, platform = parts.packed, mesh.devices.flat[0].platform
  num_tokens = packed.capacity if packed else parts.shape.num_tokens - 1
  attend = attention.choose(
    platform,
    num_tokens=num_tokens,
    head_dim=parts.transformer.head_dim,
    dtype=parts.transformer.compute_dtype,
    is_packed=packed is not None,
  )
  return (
    f'Attention of the learner: {attend.__name__}, for '
    f'{"packed" if packed else "padded"} rows of {num_tokens} tokens on '
    f'{platform}.'
  )


def task(
  config: config_lib.Config, functions: Mapping[str, Callable] | None = None
) -> task_lib.Task | task_lib.TextTask:
  """Returns the task of a run, and reads the files of a task in text.

  Args:
    config: the run.
    functions: as in `experiment`; only 'task' and 'reward' are used.

  Raises:
    ValueError: a field has a value that is not allowed, or a file is missing.
  """
  rules.validate(config)
  chosen = functions_lib.choose(config, functions or {}, ('task', 'reward'))
  reward = chosen['reward']
  reward_fn = reward.bind(reward.scalars)
  if config.text is None:
    tracing.check_reward(reward)
    in_jax = chosen['task'].bind(chosen['task'].scalars)()
    return dataclasses.replace(in_jax, shaping_fn=reward_fn)
  # This import needs the packages of the extra [math].
  from replay_rl.tasks.text import text_task

  settings = dataclasses.asdict(config.text)
  del settings['judge_every']  # Says when the run judges.
  evaluation = config.evaluation
  return text_task.make(
    shaping_fn=reward_fn,
    num_evaluation_prompts=evaluation.num_prompts if evaluation.is_on else None,
    **settings,
  )


def planned_shape(config: config_lib.Config) -> task_lib.Shape:
  """Returns the shape of a run's task, without reading files.

  Raises:
    ValueError: the task is in text, and `model.vocab_size` is None.
  """
  if config.text is None:
    return task(config).shape
  if config.model.vocab_size is None:
    raise ValueError(
      'model.vocab_size = None: must be given to plan a task in text'
    )
  return task_lib.Shape(
    vocab_size=config.model.vocab_size,
    prompt_length=config.text.max_prompt_tokens,
    max_new_tokens=config.text.max_new_tokens,
    eos_ids=(0,),  # Any token: a plan generates nothing.
    pad_id=0,
  )


def base_weights(
  config: config_lib.Config,
  experiment: Experiment,
  task: task_lib.Task | task_lib.TextTask,
) -> base.PyTree:
  """Returns the weights that every seed of a run starts from.

  Args:
    config: names a checkpoint, or how many steps of a warm start to train.
    experiment: what was built from it.
    task: has the teacher of the warm start.

  Raises:
    ValueError: the checkpoint does not have the shape of the model, or the
      cache of warm starts cannot be written.
  """
  parts, settings = experiment.parts, config.warm_start
  if config.model.checkpoint is not None:
    return _pretrained(config.model.checkpoint, parts.transformer)
  initial = parts.init_params_fn(rng.stream_key(settings.seed, 'weights'))
  if not settings.num_steps:
    return initial
  transform = functions_lib.choose_warm_start(config)
  task, of_task = task_lib.in_jax(task), experiment.chosen['task']
  return warm_start.load_or_train(
    pathlib.Path(config.cache_dir).expanduser() / 'warm_starts',
    {
      'task': config.task,
      'model': dataclasses.asdict(config.model),
      'warm_start': dataclasses.asdict(settings),
      'transform': transform.record,
    },
    task,
    initial,
    functools.partial(
      warm_start.train,
      initial,
      settings.seed,
      make_teacher=lambda hyper: of_task.bind(hyper['task'])().teacher_fn,
      logprobs_fn=functools.partial(
        scoring.token_logprobs,
        _graphdef(parts.transformer),
        **{'temperature': 1.0, 'chunk_size': None, 'remat': False},
      ),
      make_transform=lambda hyper: transform.bind(
        hyper.get('warm_start.transform', {})
      ),
      hyper={
        'warm_start': {
          'learning_rate': settings.learning_rate,
          'max_grad_norm': settings.max_grad_norm,
        },
        'warm_start.transform': transform.scalars,
        'task': of_task.scalars,
      },
      warmup_steps=settings.warmup_steps,
      num_steps=settings.num_steps,
      batch_size=settings.batch_size,
    ),
  )


def _graphdef(transformer: architecture.TransformerConfig) -> Any:
  init = functools.partial(
    model.init, transformer, constrain_fn=mesh_lib.constrain
  )
  return jax.eval_shape(init, jax.random.key(0))[0]


def transformer_of(
  settings: config_lib.Model, shape: task_lib.Shape
) -> architecture.TransformerConfig:
  """Returns the shape of the model, from the config or from its checkpoint.

  Args:
    settings: the section of the config.
    shape: of the task.

  Raises:
    ValueError: a field is not allowed, or differs from the checkpoint.
  """
  if settings.checkpoint is not None and rules.missing_shape(settings):
    transformer = _of_checkpoint(
      settings.checkpoint, shape.num_tokens, settings.compute_dtype
    )
    _check_same(settings.checkpoint, settings, transformer)
  else:
    fields = dataclasses.asdict(settings)
    del fields['checkpoint']
    if fields['vocab_size'] is None:
      fields['vocab_size'] = shape.vocab_size
    if fields['rope_scaling'] is not None:
      fields['rope_scaling'] = architecture.RopeScaling(
        **fields['rope_scaling']
      )
    try:
      transformer = architecture.TransformerConfig(
        max_context=shape.num_tokens, **fields
      )
    except ValueError as error:
      raise ValueError(f'model.{error}') from error
  if transformer.vocab_size < shape.vocab_size:
    raise ValueError(
      f'model.vocab_size = {transformer.vocab_size}: must be at least the '
      f'{shape.vocab_size} tokens of the task'
    )
  return transformer


def _of_checkpoint(
  folder: str, max_context: int, compute_dtype: str
) -> architecture.TransformerConfig:
  path = pathlib.Path(folder).expanduser()
  return hf_config.read_config(
    path, max_context=max_context, compute_dtype=compute_dtype
  )


def _check_same(
  folder: str,
  given: config_lib.Model | architecture.TransformerConfig,
  there: architecture.TransformerConfig,
) -> None:
  """Raises ValueError if a given field differs from the checkpoint."""
  differing = []
  for field in dataclasses.fields(there):
    value, stored = getattr(given, field.name, None), getattr(there, field.name)
    if isinstance(value, dict):  # `rope_scaling` of a config.
      value = architecture.RopeScaling(**value)
    if value is not None and value != stored:
      differing.append(f'{field.name} = {value} (there: {stored})')
  if differing:
    raise ValueError(
      f'model.checkpoint = {folder!r}: must have the shape that the config '
      f'gives; {"; ".join(differing)}'
    )


def _pretrained(
  folder: str, transformer: architecture.TransformerConfig
) -> base.PyTree:
  """Returns the weights of a checkpoint, split over the current mesh."""
  there = _of_checkpoint(
    folder, transformer.max_context, transformer.compute_dtype
  )
  _check_same(folder, transformer, there)
  # `_check_same` skips fields that are None, and here None means no scaling.
  if there.rope_scaling != transformer.rope_scaling:
    raise ValueError(
      f'model.checkpoint = {folder!r}: must have rope_scaling = '
      f'{transformer.rope_scaling} (there: {there.rope_scaling})'
    )
  path, mesh = pathlib.Path(folder).expanduser(), jax.sharding.get_mesh()
  if mesh.empty:
    return hf_checkpoint.load(path, transformer)
  shardings = placement.of_params(model.logical_axes(transformer), mesh)
  # The reader copies to single devices, which an active mesh does not allow.
  with jax.set_mesh(jax.sharding.Mesh(np.empty((), object), ())):
    return hf_checkpoint.load(path, transformer, shardings)
