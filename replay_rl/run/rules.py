"""The checks of a config: each value by itself, and the rules between fields.

`constants.check` compares a value with the annotation of its field. Nothing
here reads a file or allocates an array.
"""

import dataclasses
import fractions
from typing import Any

from replay_rl import constants
from replay_rl.disk import paths
from replay_rl.lm import architecture
from replay_rl.run import config as config_lib
from replay_rl.tasks import task as task_lib

_SCALING = constants.interval('[0.001, 1000000000]')
_MAX_AGE_BUCKETS = 32  # Each adds three numbers to a line.


def validate(config: config_lib.Config) -> None:
  """Raises ValueError for the first value that is not allowed."""
  _check_fields(config)
  _check_folders(config)
  _check_model(config.model)
  _check_task(config)
  _check_replay(config)
  _check_totals(config)
  _check_evaluation(config)
  _check_age_buckets(config.logging)
  start = config.warm_start
  if start.num_steps and start.warmup_steps >= start.num_steps:
    raise ValueError(
      f'warm_start.warmup_steps = {start.warmup_steps}: must be below '
      f'warm_start.num_steps = {start.num_steps}'
    )
  memory = config.mesh.buffer_memory
  if memory not in config_lib.BUFFER_MEMORIES:
    raise ValueError(
      f'mesh.buffer_memory = {memory!r}: must be one of '
      f'{config_lib.BUFFER_MEMORIES}'
    )
  if memory != 'device' and config.num_seeds > 1:
    raise ValueError(
      f"mesh.buffer_memory = {memory!r}: must be 'device' for num_seeds = "
      f'{config.num_seeds}, because a program over seeds moves the buffer'
    )


def _check_folders(config: config_lib.Config) -> None:
  folders = [
    ('cache_dir', config.cache_dir),
    ('model.checkpoint', config.model.checkpoint),
  ]
  if config.text is not None:
    folders += [
      ('text.problems', config.text.problems),
      ('text.evaluation_problems', config.text.evaluation_problems),
      ('text.tokenizer', config.text.tokenizer),
    ]
  for name, folder in folders:
    if folder is not None:
      paths.check(name, folder)
    if folder == '':
      raise ValueError(
        f"{name} = '': must name a folder; '.' is the folder of the program"
      )


def missing_shape(settings: config_lib.Model) -> list[str]:
  """Returns the fields that are None and that the shape needs."""
  return [
    name
    for name, value in dataclasses.asdict(settings).items()
    if value is None
    and name not in ('vocab_size', 'rope_scaling', 'checkpoint')
  ]


def lag_in_iterations(config: config_lib.Config) -> int:
  """Returns `sampler.weight_lag` in iterations."""
  if not config.sampler.weight_lag:
    return 0
  updates = fractions.Fraction(str(config.replay.updates_per_iteration))
  return int(config.sampler.weight_lag / updates)


def check_tokens(name: str, num_rows: int, shape: task_lib.Shape) -> None:
  """Raises ValueError if programs would count more tokens than fit an int32.

  Args:
    name: of the rows, for messages.
    num_rows: rows that a program has at once.
    shape: the sizes of the task.
  """
  if num_rows * shape.num_tokens > constants.MAX_INT32:
    raise ValueError(
      f'{name} = {num_rows}: must be at most '
      f'{constants.MAX_INT32 // shape.num_tokens}, because the tokens of all '
      f'rows, {shape.num_tokens} each, are counted in an int32'
    )


def check_packing(
  optimizer: config_lib.Optimizer, shape: task_lib.Shape
) -> None:
  """Raises ValueError if a row may not fit a sequence of packed rows."""
  capacity, needed = optimizer.packed_tokens, shape.num_tokens - 1
  if capacity is not None and capacity < needed:
    raise ValueError(
      f'optimizer.packed_tokens = {capacity}: must be None or at least '
      f'{needed}, the tokens that the model reads of a row of '
      f'{shape.num_tokens}'
    )
  num_sequences = optimizer.microbatch_rows or 1
  if capacity is not None and capacity * num_sequences > constants.MAX_INT32:
    raise ValueError(
      f'optimizer.packed_tokens = {capacity}: must be at most '
      f'{constants.MAX_INT32 // num_sequences}, because the tokens of '
      f'optimizer.microbatch_rows = {optimizer.microbatch_rows} sequences are '
      'counted in an int32'
    )


def _check_fields(settings: Any, prefix: str = '') -> None:
  values = {
    field.name: getattr(settings, field.name)
    for field in dataclasses.fields(settings)
  }
  constants.check(prefix, type(settings), values)
  for name, value in values.items():
    if dataclasses.is_dataclass(value):
      _check_fields(value, f'{prefix}{name}.')


def _check_model(model: config_lib.Model) -> None:
  missing = missing_shape(model)
  if missing and model.checkpoint is None:
    names = ', '.join(f'model.{name}' for name in missing)
    raise ValueError(
      f'{names} = None: must be given where model.checkpoint = None'
    )
  scaling, names = model.rope_scaling, architecture.RopeScaling._fields
  if scaling is not None and not (
    set(scaling) == set(names)
    and all(type(x) in (int, float) and x in _SCALING for x in scaling.values())
    and scaling['low_freq_factor'] < scaling['high_freq_factor']
  ):
    raise ValueError(
      f'model.rope_scaling = {constants.shown(scaling)}: must have numbers in '
      f'{_SCALING} for {", ".join(names)}, and a low_freq_factor below '
      'high_freq_factor'
    )


def _check_task(config: config_lib.Config) -> None:
  text, steps = config.text, config.warm_start.num_steps
  if text is None and config.task == config_lib.TEXT_TASK:
    raise ValueError(
      f'text = None: must be given for task = {config_lib.TEXT_TASK!r}'
    )
  if text is not None and config.task != config_lib.TEXT_TASK:
    raise ValueError(
      f'text = {constants.shown(text)}: must be None for task = {config.task!r}'
    )
  if steps and text is not None:
    raise ValueError(
      f'warm_start.num_steps = {steps}: must be 0 for task = '
      f'{config_lib.TEXT_TASK!r}, which has no teacher'
    )
  if steps and config.model.checkpoint is not None:
    raise ValueError(
      f'warm_start.num_steps = {steps}: must be 0 where model.checkpoint = '
      f'{config.model.checkpoint!r}'
    )
  if text is not None and text.judge_every is not None:
    _check_beside(text.judge_every, config.sampler)
  num_distinct = config.sampler.num_distinct_prompts
  if text is not None and num_distinct is not None:
    raise ValueError(
      f'sampler.num_distinct_prompts = {num_distinct}: must be None for task = '
      f'{config_lib.TEXT_TASK!r}, whose problems are its training set'
    )
  evaluation = config.evaluation
  if evaluation.is_on and text is not None and text.evaluation_problems is None:
    name = 'every' if evaluation.every else 'every_cost'
    raise ValueError(
      f'evaluation.{name} = {getattr(evaluation, name)}: must be '
      f'{0 if evaluation.every else None} where text.evaluation_problems = None'
    )


def _check_beside(judge_every: int, sampler: config_lib.Sampler) -> None:
  num_fresh = sampler.num_prompts * sampler.group_size
  if sampler.num_slots is None or sampler.num_slots >= num_fresh:
    raise ValueError(
      f'text.judge_every = {judge_every}: must be None where '
      f'sampler.num_slots = {sampler.num_slots}; only in fewer slots than the '
      f'{num_fresh} responses do some end before others begin'
    )


def _check_replay(config: config_lib.Config) -> None:
  sampler, replay = config.sampler, config.replay
  num_fresh = sampler.num_prompts * sampler.group_size
  if replay.capacity < num_fresh:
    raise ValueError(
      f'replay.capacity = {replay.capacity}: must be at least {num_fresh}, the '
      f'rollouts of an iteration (sampler.num_prompts = {sampler.num_prompts} '
      f'x sampler.group_size = {sampler.group_size})'
    )
  if replay.batch_size is not None and replay.capacity < replay.batch_size:
    raise ValueError(
      f'replay.capacity = {replay.capacity}: must be at least '
      f'replay.batch_size = {replay.batch_size}'
    )
  if replay.num_prompts is not None and (
    replay.num_prompts < sampler.num_prompts
  ):
    raise ValueError(
      f'replay.num_prompts = {replay.num_prompts}: must be at least '
      f'sampler.num_prompts = {sampler.num_prompts}, those of a generation'
    )
  updates = replay.updates_per_iteration
  # The decimal 0.1 divides 1; the float 0.1 does not.
  if sampler.weight_lag and (
    updates is None or sampler.weight_lag % fractions.Fraction(str(updates))
  ):
    raise ValueError(
      f'sampler.weight_lag = {sampler.weight_lag}: must be 0 or a multiple of '
      f'replay.updates_per_iteration = {updates}, so that it is a whole number '
      'of iterations'
    )


def _check_evaluation(config: config_lib.Config) -> None:
  evaluation = config.evaluation
  if evaluation.every and evaluation.every_cost is not None:
    raise ValueError(
      f'evaluation.every = {evaluation.every}: must be 0 where '
      f'evaluation.every_cost = {evaluation.every_cost}'
    )


def _check_age_buckets(logging: config_lib.Logging) -> None:
  edges: tuple[Any, ...] | None = logging.age_buckets
  if logging.age_grad_norms and not edges:
    raise ValueError(
      'logging.age_grad_norms = True: must be False where '
      f'logging.age_buckets = {edges}'
    )
  if edges is None:
    return
  if not (
    all(
      type(edge) is int and 1 <= edge <= constants.MAX_INT32 for edge in edges
    )
    and list(edges) == sorted(set(edges))
    and len(edges) <= _MAX_AGE_BUCKETS
  ):
    raise ValueError(
      f'logging.age_buckets = {constants.shown(edges)}: must be None or at '
      f'most {_MAX_AGE_BUCKETS} rising whole numbers from 1 to '
      f'{constants.MAX_INT32}'
    )


def _check_totals(config: config_lib.Config) -> None:
  """Checks what the run counts in 32 bits, and that it updates at all."""
  if config.seed + config.num_seeds - 1 > constants.MAX_UINT32:
    raise ValueError(
      f'seed = {config.seed}: must be at most '
      f'{constants.MAX_UINT32 - config.num_seeds + 1}, because the last of '
      f'num_seeds = {config.num_seeds} seeds is a uint32'
    )
  evaluation = config.evaluation
  num_samples = evaluation.num_prompts * evaluation.num_samples
  if evaluation.is_on and num_samples > constants.MAX_INT32:
    raise ValueError(
      f'evaluation.num_prompts = {evaluation.num_prompts}: must be at most '
      f'{constants.MAX_INT32 // evaluation.num_samples}, so that with '
      f'evaluation.num_samples = {evaluation.num_samples} the responses fit an '
      'int32'
    )
  updates = config.replay.updates_per_iteration
  if updates is None:
    return
  num_updates = config.num_iterations * fractions.Fraction(str(updates))
  if not 1 <= num_updates <= constants.MAX_INT32:
    raise ValueError(
      f'replay.updates_per_iteration = {updates}: must give 1 to '
      f'{constants.MAX_INT32} updates in num_iterations = '
      f'{config.num_iterations}'
    )
  if lag_in_iterations(config) > constants.MAX_INT32:
    raise ValueError(
      f'sampler.weight_lag = {config.sampler.weight_lag}: must be at most '
      f'{constants.MAX_INT32} iterations of replay.updates_per_iteration = '
      f'{updates}'
    )
