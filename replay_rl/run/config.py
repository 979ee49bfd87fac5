"""The configuration of a run, and its checks.

Every setting of a run is a field here, with a value in a file of `configs/`;
nothing else has defaults. A choice is written as the call it stands for, such
as `recency(half_life=8) * max_age(limit=16)`: any public function of the module
named beside the field, with its keyword constants. `build.py` resolves it.
"""

import dataclasses
import json
import types
import typing
from typing import Any

from absl import flags
from ml_collections import config_flags

from replay_rl.lm import families

TEXT_TASK = 'problems()'


@dataclasses.dataclass
class Model:
  """Shape of the decoder-only transformer, and its pre-trained weights."""

  vocab_size: int | None  # Rows of the embedding; None: the task's.
  d_model: int
  num_layers: int
  num_heads: int
  num_kv_heads: int
  head_dim: int
  d_ff: int
  rope_theta: float
  rope_scaling: dict[str, float] | None  # Of architecture.RopeScaling.
  norm_eps: float
  qk_norm: bool  # RMSNorm on queries and keys, as in Qwen3.
  qkv_bias: bool  # As in Qwen2.5.
  tied_embeddings: bool
  compute_dtype: str  # 'float32' or 'bfloat16'; weights are float32.
  checkpoint: str | None  # Hugging Face folder; None: random weights.


@dataclasses.dataclass
class Text:
  """Problems in text, and the verifier of their answers."""

  problems: str  # Folder that scripts/prepare_data.py made.
  split: str  # Of it, to learn from, such as 'train'.
  evaluation_problems: str | None  # Folder to evaluate on; None: none.
  evaluation_split: str | None  # Of that.
  tokenizer: str  # Folder with tokenizer.json, or vocab.json and merges.txt.
  template: str  # Of a prompt; {problem} stands for the problem.
  use_chat_template: bool  # Make the prompt a user's message.
  system_message: str | None  # Before it; None: none, or the template's own.
  max_prompt_tokens: int  # Prompts are padded to it.
  drop_long_prompts: bool  # Leave out longer prompts; else they are refused.
  max_new_tokens: int  # Of a response, end-of-sequence included.
  reward: str  # Sum of functions of tasks.rewards.
  num_workers: int  # Processes that verify answers.
  answer_timeout: float  # Seconds for one answer.
  memory_limit: int  # Bytes of address space of a worker.
  max_answer_chars: int  # Longer answers are wrong unread.


@dataclasses.dataclass
class WarmStart:
  """Supervised imitation of the task's teacher, before any reward."""

  num_steps: int  # 0 starts from random weights.
  batch_size: int  # Rows per step.
  learning_rate: float  # Peak; rises linearly, decays to 0 along a cosine.
  warmup_steps: int
  seed: int  # All seeds of a run start from the same weights.


@dataclasses.dataclass
class Sampler:
  """Generation."""

  num_prompts: int  # Prompts per iteration.
  group_size: int  # Rollouts per prompt.
  temperature: float
  top_k: int | None  # None: no truncation.
  top_p: float | None  # None: no truncation.
  weight_lag: int  # Learner steps by which the sampler's weights trail.


@dataclasses.dataclass
class Replay:
  """What is remembered and what is learned from again."""

  capacity: int  # Rollouts, this iteration's included.
  batch_size: int  # Rollouts per update; fresh_only, fresh_anchored set theirs.
  updates_per_iteration: int
  compose: str  # A function of replay.compose.
  weights: str  # Product of functions of replay.rules.
  draw: str  # A function of replay.sampling.
  keep: str  # 'ring()': the newest; or a product of functions of replay.rules.
  drop_zero_variance: bool  # Drop groups whose rewards are all equal.


@dataclasses.dataclass
class Loss:
  """What an update minimises."""

  advantage: str  # A function of rl.advantages.
  policy: str  # A loss of rl.losses.
  normalizer: str  # A normalizer of rl.losses.


@dataclasses.dataclass
class Optimizer:
  """Adam with decoupled weight decay."""

  learning_rate: float  # Constant after the warm-up.
  warmup_steps: int  # Linear, in updates. A cold Adam dips the reward.
  b1: float
  b2: float
  eps: float
  weight_decay: float
  max_grad_norm: float  # Global norm the gradient is scaled down to.
  num_microbatches: int  # Splits an update's rows; the gradient is the same.
  logits_chunk: int | None  # Tokens whose logits exist at once; None: all.
  remat: bool  # Compute activations again in the backward pass, to save memory.


@dataclasses.dataclass
class Evaluation:
  """Evaluation on prompts of a stream of their own."""

  every: int  # Iterations; 0 never evaluates.
  num_prompts: int
  num_samples: int  # Samples per prompt at temperature 1, for pass@k.


@dataclasses.dataclass
class Logging:
  """What is written while a run goes on."""

  histogram_bins: int  # The last bin also counts all that is larger.
  tensorboard: bool  # Also write TensorBoard files.
  samples_every: int  # Iterations between samples as text; 0 writes none.
  num_samples: int  # Rollouts of the buffer to write then, at most.


@dataclasses.dataclass
class Checkpoint:
  """When the run is saved."""

  every: int  # Iterations.
  keep: int  # Newest checkpoints that are not deleted.


@dataclasses.dataclass
class Mesh:
  """Devices. One size may be -1: all devices that are left."""

  shape: dict[str, int]  # Sizes of the axes data, fsdp and tensor.
  sampler_shape: dict[str, int] | None  # To generate on; None: the same mesh.
  buffer_memory: str  # Of the rows of the buffer: 'device' or 'pinned_host'.


@dataclasses.dataclass
class Config:
  """A run. The fields' comments give units; `configs/` gives values."""

  name: str  # Of the arm, in tables and figures.
  seed: int  # Seeds seed, seed + 1, ... are trained side by side.
  num_seeds: int
  vmap_seeds: bool  # All at once; else in turn, each bit for bit as if alone.
  num_iterations: int
  mu: float  # Cost of generating a rollout in units of training on one.
  cache_dir: str  # Warm starts and compiled programs.
  task: str  # One of build.TASKS.
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


class DictParser(flags.ArgumentParser):
  """Reads a dict, such as the shape of a mesh, as JSON; null is None."""

  def parse(self, argument: Any) -> dict[str, Any] | None:
    """Returns the dict; raises ValueError if it is none."""
    if not isinstance(argument, str):
      return argument  # The value of the config itself.
    try:
      value = json.loads(argument)
    except ValueError as error:
      raise ValueError(f'must be JSON: {error}') from error
    if value is not None and not isinstance(value, dict):
      raise ValueError('must be a JSON object, such as {"data": 1}')
    return value


# So that --config.mesh.shape='{"data": 2, "fsdp": 4, "tensor": 1}' works.
config_flags.register_flag_parser_for_type(dict, DictParser())


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


BUFFER_MEMORIES = ('device', 'pinned_host')
# Smallest allowed value of each number; the functions that a choice names
# check their own constants.
MINIMA = {
  'seed': 0,
  'num_seeds': 1,
  'num_iterations': 1,
  'mu': 0,
  'text.max_prompt_tokens': 1,
  'text.max_new_tokens': 1,
  'text.num_workers': 1,
  'text.answer_timeout': 0,
  'text.memory_limit': 1,
  'text.max_answer_chars': 1,
  'warm_start.num_steps': 0,
  'warm_start.batch_size': 1,
  'warm_start.learning_rate': 0,
  'warm_start.warmup_steps': 0,
  'warm_start.seed': 0,
  'sampler.num_prompts': 1,
  'sampler.group_size': 1,
  'sampler.temperature': 0,
  'sampler.weight_lag': 0,
  'replay.capacity': 1,
  'replay.batch_size': 1,
  'replay.updates_per_iteration': 1,
  'optimizer.learning_rate': 0,
  'optimizer.warmup_steps': 0,
  'optimizer.b1': 0,
  'optimizer.b2': 0,
  'optimizer.eps': 0,
  'optimizer.weight_decay': 0,
  'optimizer.max_grad_norm': 0,
  'optimizer.num_microbatches': 1,
  'optimizer.logits_chunk': 1,
  'evaluation.every': 0,
  'evaluation.num_prompts': 1,
  'evaluation.num_samples': 1,
  'logging.histogram_bins': 1,
  'logging.samples_every': 0,
  'logging.num_samples': 1,
  'checkpoint.every': 1,
  'checkpoint.keep': 1,
}


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


def validate(config: Config) -> None:
  """Raises ValueError that names the first field, value and what is allowed."""
  _check_types(config)
  values = flatten(config)
  for name, minimum in MINIMA.items():
    value = values.get(name)  # None too where its whole section is None.
    if value is not None and not value >= minimum:  # So that NaN fails too.
      raise ValueError(f'{name} = {value}: must be at least {minimum}')
  rows = config.sampler.num_prompts * config.sampler.group_size
  replay = config.replay
  if replay.capacity < max(rows, replay.batch_size):
    raise ValueError(
      f'replay.capacity = {replay.capacity}: must be at least '
      f'replay.batch_size = {replay.batch_size} and the {rows} rollouts of an '
      'iteration (sampler.num_prompts x sampler.group_size)'
    )
  if config.sampler.group_size < 2:
    raise ValueError(
      f'sampler.group_size = {config.sampler.group_size}: must be at least 2, '
      f'since the baseline of loss.advantage = {config.loss.advantage!r} is '
      'the mean of the group'
    )
  if config.text is None and config.task == TEXT_TASK:
    raise ValueError(f'text = None: must be given for task = {TEXT_TASK!r}')
  if config.text is not None and config.task != TEXT_TASK:
    raise ValueError(
      f'text = {config.text}: must be None for task = {config.task!r}'
    )
  start = config.warm_start
  if start.num_steps and (config.text or config.model.checkpoint):
    raise ValueError(
      f'warm_start.num_steps = {start.num_steps}: must be 0 for a task in text '
      'and for weights of a checkpoint'
    )
  if (
    config.evaluation.every
    and config.text
    and config.text.evaluation_problems is None
  ):
    raise ValueError(
      f'evaluation.every = {config.evaluation.every}: must be 0 where '
      'text.evaluation_problems = None'
    )
  if start.num_steps and start.warmup_steps >= start.num_steps:
    raise ValueError(
      f'warm_start.warmup_steps = {start.warmup_steps}: must be below '
      f'warm_start.num_steps = {start.num_steps}'
    )
  if config.sampler.temperature == 0:
    raise ValueError(
      'sampler.temperature = 0: must be positive, since greedy rollouts have '
      'no log-probabilities to learn from'
    )
  if config.mesh.buffer_memory not in BUFFER_MEMORIES:
    raise ValueError(
      f'mesh.buffer_memory = {config.mesh.buffer_memory!r}: must be one of '
      f'{BUFFER_MEMORIES}'
    )
  if config.mesh.buffer_memory != 'device' and config.num_seeds > 1:
    raise ValueError(
      f'mesh.buffer_memory = {config.mesh.buffer_memory!r}: needs num_seeds = '
      f'1, not {config.num_seeds}: a program over seeds would move the buffer'
    )
  if config.sampler.weight_lag % replay.updates_per_iteration:
    raise ValueError(
      f'sampler.weight_lag = {config.sampler.weight_lag}: must be a multiple '
      f'of replay.updates_per_iteration = {replay.updates_per_iteration}'
    )


def _check_types(config: Any, prefix: str = '') -> None:
  hints = typing.get_type_hints(type(config))
  for field in dataclasses.fields(config):
    name, hint = prefix + field.name, hints[field.name]
    value = getattr(config, field.name)
    allowed = typing.get_args(hint) if isinstance(hint, types.UnionType) else ()
    allowed = tuple(typing.get_origin(h) or h for h in allowed or (hint,))
    if dataclasses.is_dataclass(value) and type(value) in allowed:
      _check_types(value, f'{name}.')
      continue
    if float in allowed:
      allowed += (int,)
    # A bool is an int to isinstance, but never meant as one.
    if not isinstance(value, allowed) or (
      isinstance(value, bool) and bool not in allowed
    ):
      raise ValueError(f'{name} = {value!r}: must be of type {hint}')
