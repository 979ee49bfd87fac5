"""The configuration of a run, and its checks.

Every setting of a run is a field here, with a value in a file of `configs/`;
nothing else has defaults. A choice is written as the call it stands for, such
as `recency(half_life=8) * max_age(limit=16)`: any public function of the module
named beside the field, with its keyword constants. `build.py` resolves it.

The annotation of a field is its type and, for a number, its range. `validate`
checks both with `constants.check`, and then the rules between fields.
"""

import dataclasses
import fractions
import math
from typing import Annotated
from typing import Any

from replay_rl import constants
from replay_rl import overrides
from replay_rl.lm import architecture
from replay_rl.lm import families

TEXT_TASK = 'problems()'
BUFFER_MEMORIES = ('device', 'pinned_host')

_AT_LEAST_1 = constants.interval('[1, inf)')

Count = Annotated[int, _AT_LEAST_1]
NumBytes = Annotated[int, constants.interval('[1, 9e18]')]
Natural = Annotated[int, constants.NON_NEGATIVE]
Positive = Annotated[float, constants.POSITIVE]
NonNegative = Annotated[float, constants.NON_NEGATIVE]
Norm = Annotated[float, constants.interval('(0, inf]')]
OptionalCount = Annotated[int | None, _AT_LEAST_1]
OptionalPositive = Annotated[float | None, constants.POSITIVE]
OptionalFraction = Annotated[float | None, constants.interval('(0, 1]')]
# Annotated, as the numbers are, so that an override can say None.
OptionalStr = Annotated[str | None, 'see overrides.AnnotatedParser']


@dataclasses.dataclass(kw_only=True)
class Model:
  """Shape of the decoder-only transformer, and its pre-trained weights.

  With a checkpoint, a field that is None has the value of its `config.json`.
  """

  vocab_size: OptionalCount  # Rows of the embedding; None: the task's.
  d_model: OptionalCount
  num_layers: OptionalCount
  num_heads: OptionalCount
  num_kv_heads: OptionalCount
  head_dim: OptionalCount
  d_ff: OptionalCount
  rope_theta: OptionalPositive
  rope_scaling: dict[str, float] | None  # Of architecture.RopeScaling.
  norm_eps: OptionalPositive
  qk_norm: bool | None  # RMSNorm on queries and keys, as in Qwen3.
  qkv_bias: bool | None  # As in Qwen2.5.
  tied_embeddings: bool | None
  compute_dtype: str  # 'float32' or 'bfloat16'; weights are float32.
  checkpoint: OptionalStr  # Hugging Face folder; None: random weights.


@dataclasses.dataclass(kw_only=True)
class Text:
  """Problems in text, and the verifier of their answers."""

  problems: str  # Folder that scripts/prepare_data.py made.
  split: str  # Part of `problems` to learn from, such as 'train'.
  evaluation_problems: OptionalStr  # Folder to evaluate on; None: none.
  evaluation_split: OptionalStr  # Part of `evaluation_problems`.
  tokenizer: str  # Folder with tokenizer.json, or vocab.json and merges.txt.
  template: str  # Of a prompt; {problem} stands for the problem.
  use_chat_template: bool  # Make the prompt a user's message.
  system_message: OptionalStr  # None: none, or that of the chat template.
  max_prompt_tokens: Count  # Prompts are padded to this length.
  drop_long_prompts: bool  # Leave out longer prompts; else they are refused.
  max_new_tokens: Count  # Of a response, end-of-sequence included.
  reward: str  # Sum of functions of tasks.text.rewards.
  num_workers: Count  # Processes that verify answers.
  answer_timeout: Positive  # Seconds for one answer.
  memory_limit: NumBytes  # Address space of a worker.
  max_answer_chars: Count  # The verifier counts longer answers as wrong.


@dataclasses.dataclass(kw_only=True)
class WarmStart:
  """Supervised imitation of the task's teacher, before any reward."""

  num_steps: Natural  # 0 starts from random weights.
  batch_size: Count  # Rows per step.
  learning_rate: NonNegative  # Peak; rises linearly, decays to 0 by a cosine.
  warmup_steps: Natural
  transform: str  # A function of rl.optimizers.
  max_grad_norm: Norm  # As that of Optimizer.
  seed: Natural  # All seeds of a run start from the same weights.


@dataclasses.dataclass(kw_only=True)
class Sampler:
  """Generation."""

  num_prompts: Count  # Prompts per iteration.
  # Rollouts per prompt. Their mean is the baseline of the advantages.
  group_size: Annotated[int, constants.interval('[2, inf)')]
  # Above 0: greedy rollouts have no log-probabilities to learn from.
  temperature: Positive
  top_k: OptionalCount  # None: no truncation.
  top_p: OptionalFraction  # None: no truncation.
  weight_lag: Natural  # Learner steps by which the sampler's weights trail.


@dataclasses.dataclass(kw_only=True)
class Replay:
  """What the buffer keeps, and what an update learns from.

  `batch_size`, `weights` and `draw` are None where the function of `compose`
  does not take them.
  """

  capacity: Count  # Rollouts, this iteration's included.
  batch_size: OptionalCount  # Rollouts per update.
  updates_per_iteration: Positive  # With 2.5: two and three updates in turn.
  compose: str  # A function of replay.compose.
  weights: OptionalStr  # Product of functions of replay.weights.
  draw: OptionalStr  # A function of replay.sampling.
  keep: str  # 'ring()': the newest; or a function of replay.keep.
  feedback: OptionalStr  # Of replay.feedback; None: priorities never change.
  drop_zero_variance: bool  # Drop groups whose rewards are all equal.


@dataclasses.dataclass(kw_only=True)
class Loss:
  """What an update minimises."""

  advantage: str  # A function of rl.advantages.
  policy: str  # A loss of rl.losses.
  normalizer: str  # A normalizer of rl.losses.
  row_weights: OptionalStr  # Of rl.importance; None: all rows count the same.
  statistics: OptionalStr  # Of rl.statistics; None: the loss takes none.


@dataclasses.dataclass(kw_only=True)
class Optimizer:
  """How a gradient changes the weights."""

  learning_rate: NonNegative  # Constant after the warm-up.
  warmup_steps: Natural  # Linear, in updates. A cold Adam dips the reward.
  transform: str  # A function of rl.optimizers.
  gate: OptionalStr  # A function of rl.gates; None: every update is taken.
  # Global norm that a larger gradient is scaled down to; inf: never.
  max_grad_norm: Norm
  num_microbatches: Count  # Splits an update's rows; the gradient is the same.
  logits_chunk: OptionalCount  # Tokens whose logits exist at once; None: all.
  remat: bool  # Compute activations again in the backward pass, to save memory.


@dataclasses.dataclass(kw_only=True)
class Evaluation:
  """Evaluation on prompts of a stream of their own."""

  every: Natural  # Iterations; 0 never evaluates.
  num_prompts: Count
  num_samples: Count  # Samples per prompt at temperature 1, for pass@k.


@dataclasses.dataclass(kw_only=True)
class Logging:
  """What is written while a run goes on."""

  histogram_bins: Count  # The last bin also counts all that is larger.
  tensorboard: bool  # Also write TensorBoard files.
  samples_every: Natural  # Iterations between samples as text; 0 writes none.
  num_samples: Count  # Rollouts of the buffer to write then, at most.


@dataclasses.dataclass(kw_only=True)
class Checkpoint:
  """When the run is saved."""

  every: Count  # Iterations.
  keep: Count  # The newest checkpoints, which are not deleted.


@dataclasses.dataclass(kw_only=True)
class Mesh:
  """Devices. One size may be -1: all devices that are left."""

  shape: dict[str, int]  # Sizes of the axes data, fsdp and tensor.
  sampler_shape: dict[str, int] | None  # To generate on; None: the same mesh.
  buffer_memory: str  # Of the rows of the buffer: 'device' or 'pinned_host'.


@dataclasses.dataclass(kw_only=True)
class Config:
  """A run. The fields' comments give units; `configs/` gives values."""

  name: str  # Of the arm, in tables and figures.
  seed: Natural  # Seeds seed, seed + 1, ... are trained side by side.
  num_seeds: Count
  vmap_seeds: bool  # All at once; else in turn, each bit for bit as if alone.
  num_iterations: Count
  mu: NonNegative  # Cost of generating a rollout over that of training on it.
  cache_dir: str  # Warm starts and compiled programs.
  task: str  # One of functions.TASKS.
  schedule: str  # When the weights travel: a function of run.schedule.
  text: Text | None  # Of the task problems(); None for the others.
  model: Model
  warm_start: WarmStart
  sampler: Sampler
  replay: Replay
  loss: Loss
  optimizer: Optimizer
  evaluation: Evaluation
  logging: Logging
  checkpoint: Checkpoint
  mesh: Mesh


overrides.register(Config)


def model_of(name: str, *, checkpoint: str | None, compute_dtype: str) -> Model:
  """Returns the settings of a published model.

  Args:
    name: a key of `families.MODELS`.
    checkpoint: folder of its weights; None for random ones.
    compute_dtype: 'float32' or 'bfloat16'.

  Raises:
    ValueError: an unknown name.
  """
  longest = families.MODELS[name].max_context if name in families.MODELS else 1
  shape = families.shape(name, max_context=longest, compute_dtype=compute_dtype)
  fields = dataclasses.asdict(shape)
  del fields['max_context']  # The run's own follows from prompt and response.
  if shape.rope_scaling is not None:
    fields['rope_scaling'] = shape.rope_scaling._asdict()
  return Model(**fields, checkpoint=checkpoint)


def pretrained(checkpoint: str, *, compute_dtype: str) -> Model:
  """Returns the settings of a model whose shape is that of its checkpoint.

  Args:
    checkpoint: Hugging Face folder.
    compute_dtype: 'float32' or 'bfloat16'.
  """
  fields: dict[str, Any] = {f.name: None for f in dataclasses.fields(Model)}
  fields |= {'compute_dtype': compute_dtype, 'checkpoint': checkpoint}
  return Model(**fields)


def missing_shape(settings: Model) -> list[str]:
  """Returns the fields without which there is no shape, and that are None."""
  return [
    name
    for name, value in dataclasses.asdict(settings).items()
    if value is None
    and name not in ('vocab_size', 'rope_scaling', 'checkpoint')
  ]


def flatten(config: Any, prefix: str = '') -> dict[str, Any]:
  """Returns `{'replay.capacity': 1024, ...}`, one entry per field."""
  fields = {}
  for field in dataclasses.fields(config):
    value = getattr(config, field.name)
    if dataclasses.is_dataclass(value):
      fields |= flatten(value, f'{prefix}{field.name}.')
    else:
      fields[prefix + field.name] = value
  return fields


def lag_in_iterations(config: Config) -> int:
  """Returns by how many iterations the sampler's weights trail."""
  updates = fractions.Fraction(str(config.replay.updates_per_iteration))
  return int(config.sampler.weight_lag / updates)


def validate(config: Config) -> None:
  """Raises ValueError that names the first field, value and what is allowed."""
  _check_fields(config)
  _check_model(config.model)
  _check_task(config)
  _check_replay(config)
  start = config.warm_start
  if start.num_steps and start.warmup_steps >= start.num_steps:
    raise ValueError(
      f'warm_start.warmup_steps = {start.warmup_steps}: must be below '
      f'warm_start.num_steps = {start.num_steps}'
    )
  memory = config.mesh.buffer_memory
  if memory not in BUFFER_MEMORIES:
    raise ValueError(
      f'mesh.buffer_memory = {memory!r}: must be one of {BUFFER_MEMORIES}'
    )
  if memory != 'device' and config.num_seeds > 1:
    raise ValueError(
      f"mesh.buffer_memory = {memory!r}: must be 'device' for num_seeds = "
      f'{config.num_seeds}; a program over seeds would move the buffer'
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


def _check_model(model: Model) -> None:
  missing = missing_shape(model)
  if missing and model.checkpoint is None:
    names = ', '.join(f'model.{name}' for name in missing)
    raise ValueError(
      f'{names} = None: must be given where model.checkpoint = None'
    )
  scaling = model.rope_scaling
  names = architecture.RopeScaling._fields
  if scaling is not None and not (
    set(scaling) == set(names)
    and all(
      type(value) in (int, float) and 0 < value < math.inf
      for value in scaling.values()
    )
  ):
    raise ValueError(
      f'model.rope_scaling = {scaling}: must have positive numbers for '
      f'{", ".join(names)}'
    )


def _check_task(config: Config) -> None:
  text, steps = config.text, config.warm_start.num_steps
  if text is None and config.task == TEXT_TASK:
    raise ValueError(f'text = None: must be given for task = {TEXT_TASK!r}')
  if text is not None and config.task != TEXT_TASK:
    raise ValueError(f'text = {text}: must be None for task = {config.task!r}')
  if steps and text is not None:
    raise ValueError(
      f'warm_start.num_steps = {steps}: must be 0 for task = {TEXT_TASK!r}, '
      'which has no teacher'
    )
  if steps and config.model.checkpoint is not None:
    raise ValueError(
      f'warm_start.num_steps = {steps}: must be 0 where model.checkpoint = '
      f'{config.model.checkpoint!r}'
    )
  if (
    config.evaluation.every
    and text is not None
    and text.evaluation_problems is None
  ):
    raise ValueError(
      f'evaluation.every = {config.evaluation.every}: must be 0 where '
      'text.evaluation_problems = None'
    )


def _check_replay(config: Config) -> None:
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
  # As a decimal, 0.1 is exact; as a float it would divide no whole number.
  updates = fractions.Fraction(str(replay.updates_per_iteration))
  if sampler.weight_lag % updates:
    raise ValueError(
      f'sampler.weight_lag = {sampler.weight_lag}: must be a multiple of '
      f'replay.updates_per_iteration = {replay.updates_per_iteration}, so that '
      'it is a whole number of iterations'
    )
