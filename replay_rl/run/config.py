"""The config of a run, and its checks.

Every setting of a run is a field here, without a default; the files of
`configs/` give the values. A function is chosen by a text like a call, such as
`recency(half_life=8) * max_age(limit=16)`. The comment of the field names the
module of these functions. `functions.py` resolves the text.

The annotation of a field is its type and, for a number, its range.
`rules.validate` checks both, and the rules between fields.
"""

import copy
import dataclasses
import functools
from collections.abc import Mapping
from typing import Annotated
from typing import Any

from replay_rl import constants
from replay_rl import overrides

TEXT_TASK = 'problems()'
BUFFER_MEMORIES = ('device', 'pinned_host')

_AT_LEAST_1 = constants.interval('[1, inf)')
# Adam changes each weight by the rate; beyond, the next pass could overflow.
_RATE = constants.interval('[0, 100]')

Count = Annotated[int, _AT_LEAST_1]
NumTokens = Annotated[int, constants.interval('[1, 1048576]')]
NumBytes = Annotated[int, constants.interval('[1, 9e18]')]
Natural = Annotated[int, constants.NON_NEGATIVE]
Seed = Annotated[int, constants.SEED]
NonNegative = Annotated[float, constants.NON_NEGATIVE]
LearningRate = Annotated[float, _RATE]
# A smaller norm would leave gradients that Adam's epsilon hides.
Norm = Annotated[float, constants.interval('[1e-06, inf]')]
OptionalCount = Annotated[int | None, _AT_LEAST_1]
OptionalTokens = Annotated[int | None, constants.interval('[1, 1048576]')]
OptionalPositive = Annotated[float | None, constants.POSITIVE]
OptionalFraction = Annotated[float | None, constants.interval('(0, 1]')]
# `overrides.AnnotatedParser` reads the word None for these types.
OptionalStr = Annotated[str | None, 'text or None']
OptionalBool = Annotated[bool | None, 'bool or None']
OptionalEdges = Annotated[tuple[int, ...] | None, 'numbers with commas or None']


@dataclasses.dataclass(kw_only=True)
class Model:
  """Shape of the decoder-only transformer, and its pre-trained weights.

  With a checkpoint, a field that is None has the value of its `config.json`.
  """

  vocab_size: OptionalCount  # Rows of the embedding; None: tokens of the task.
  d_model: OptionalCount  # Channels of the residual stream.
  num_layers: OptionalCount  # Transformer blocks.
  num_heads: OptionalCount  # Query heads.
  num_kv_heads: OptionalCount  # Key and value heads; divides num_heads.
  # Channels of a head.
  head_dim: Annotated[int | None, constants.interval('[1, 65536]')]
  d_ff: OptionalCount  # Hidden channels of the feed-forward layer.
  # Base of the wavelengths of RoPE. Of published models: 1e4 to 5e10.
  rope_theta: Annotated[float | None, constants.interval('[1, 1e+15]')]
  rope_scaling: dict[str, float] | None  # Fields of architecture.RopeScaling.
  # Added to the mean square in RMSNorm. A gradient grows with eps^-1.5.
  norm_eps: Annotated[float | None, constants.interval('[1e-12, 1]')]
  qk_norm: OptionalBool  # RMSNorm on queries and keys, as in Qwen3.
  qkv_bias: OptionalBool  # As in Qwen2.5.
  tied_embeddings: OptionalBool  # Output projection = embedding.
  compute_dtype: str  # 'float32' or 'bfloat16'; weights are float32.
  checkpoint: OptionalStr  # Hugging Face folder; None: random weights.


@dataclasses.dataclass(kw_only=True)
class Text:
  """Problems in text, and the verifier of their answers."""

  problems: str  # Folder that scripts/prepare_data.py wrote.
  split: str  # Part of `problems` to learn from, such as 'train'.
  evaluation_problems: OptionalStr  # Folder to evaluate on; None: none.
  evaluation_split: OptionalStr  # Part of `evaluation_problems`.
  tokenizer: str  # Folder with tokenizer.json, or vocab.json and merges.txt.
  template: str  # Text of a prompt; {problem} stands for the problem.
  use_chat_template: bool  # Write the prompt as a user's message.
  system_message: OptionalStr  # None: the default of the chat template, if any.
  chat_variables: dict[str, Any] | None  # Of the chat template; JSON scalars.
  max_prompt_tokens: NumTokens  # Prompts are padded to this length.
  drop_long_prompts: bool  # True leaves out longer prompts; False: an error.
  max_new_tokens: NumTokens  # Tokens of a response, end-of-sequence included.
  # Processes that verify answers.
  num_workers: Annotated[int, constants.interval('[1, 1024]')]
  # Seconds for one answer, at most a day.
  answer_timeout: Annotated[float, constants.interval('[0.001, 86400]')]
  memory_limit: NumBytes  # Bytes of address space of a worker.
  max_answer_chars: Count  # Characters; a longer answer counts as wrong.
  # Decoding steps after which responses that have ended go to the verifier,
  # while others are written; None: all go at the end. Needs sampler.num_slots.
  judge_every: OptionalCount
  # 'module:function' or 'file.py:function', see verify.scoring; its numbers are
  # the rewards that `reward` shapes. None: 1 for a right answer, else 0.
  reward_fn: OptionalStr


@dataclasses.dataclass(kw_only=True)
class WarmStart:
  """Supervised imitation of the task's teacher, before any reward."""

  num_steps: Natural  # Updates; 0 starts from random weights.
  batch_size: Count  # Rows per update.
  learning_rate: LearningRate  # Peak; rises linearly, decays to 0 by a cosine.
  warmup_steps: Natural  # Updates until the peak.
  transform: str  # A function of rl.optimizers.
  max_grad_norm: Norm  # See Optimizer.
  seed: Seed  # Of weights and teacher; all seeds of a run share the result.


@dataclasses.dataclass(kw_only=True)
class Sampler:
  """Generation."""

  num_prompts: Count  # Prompts per iteration.
  group_size: Annotated[int, constants.interval('[2, inf)')]  # Per prompt.
  # Not 0, because greedy rollouts have no log-probs.
  temperature: Annotated[float, constants.TEMPERATURE]
  top_k: OptionalCount  # Most probable tokens to draw from; None: all.
  top_p: OptionalFraction  # Probability mass to draw from; None: all.
  # Responses written at a time, also in evaluations; None: all. See
  # lm.continuous.
  num_slots: OptionalCount
  weight_lag: Natural  # Learner steps from the sampler's weights to the newest.
  # Prompts of the training set of a task in JAX, which a run visits in order,
  # epoch after epoch; None: each prompt is new.
  num_distinct_prompts: OptionalCount
  prompts: str  # A function of replay.prompt_choice.


@dataclasses.dataclass(kw_only=True)
class Replay:
  """What the buffer keeps, and what an update learns from.

  `batch_size`, `weights` and `draw` are None if the function in `compose` does
  not take them, and `updates_per_iteration` if the one in `schedule` does not.
  """

  capacity: Count  # Rollouts, including those of the current iteration.
  batch_size: OptionalCount  # Rollouts per update.
  updates_per_iteration: OptionalPositive  # 2.5: two and three in turn.
  # A function of replay.compose, replay.compose_groups or replay.collected.
  compose: str
  # Product of functions of replay.weights and replay.prompt_weights.
  weights: OptionalStr
  draw: OptionalStr  # A function of replay.sampling.
  keep: str  # 'ring()' keeps the newest; or a function of replay.keep.
  feedback: OptionalStr  # Of replay.feedback; None: priorities stay.
  drop_zero_variance: bool  # Drop groups whose rewards are all equal.
  num_prompts: OptionalCount  # Entries of the table of prompts; None: no table.


@dataclasses.dataclass(kw_only=True)
class Loss:
  """What an update minimises."""

  advantage: str  # A function of rl.advantages.
  # Of rl.batch_advantages; None: those of the generation.
  batch_advantage: OptionalStr
  # Of rl.losses, rl.corrections and rl.penalties, joined by +, which adds them.
  policy: str
  normalizer: str  # A normalizer of rl.losses.
  row_weights: OptionalStr  # Of rl.importance; None: all rows have weight 1.
  statistics: OptionalStr  # Of rl.statistics; None: the loss needs none.


@dataclasses.dataclass(kw_only=True)
class Optimizer:
  """How a gradient changes the weights."""

  # Constant after the warm-up; 0 leaves the weights as they are, as a control.
  learning_rate: LearningRate
  warmup_steps: Natural  # Updates of a linear warm-up.
  transform: str  # A function of rl.optimizers.
  gate: OptionalStr  # A function of rl.gates; None: accepts every update.
  max_grad_norm: Norm  # Clips the gradient's global norm; inf does not clip.
  # Most rows whose activations are in memory at a time; None: all. Of packed
  # rows, sequences over all devices; None: one on each device.
  microbatch_rows: OptionalCount
  # Tokens of a sequence, into which an update packs rows of different lengths
  # side by side; None: each row is padded.
  packed_tokens: OptionalTokens
  logits_chunk: OptionalCount  # Tokens whose logits exist at once; None: all.
  remat: bool  # Recompute activations in the backward pass; saves memory.


@dataclasses.dataclass(kw_only=True)
class Evaluation:
  """Evaluation on prompts of a separate random stream or dataset."""

  every: Natural  # Iterations; 0 never evaluates.
  # Cost units of a seed, see ledger.prices; None counts iterations.
  every_cost: OptionalPositive
  num_prompts: Count  # Prompts per evaluation.
  num_samples: Count  # Samples per prompt, for pass@k.
  # Of these samples; the greedy response needs neither.
  temperature: Annotated[float, constants.TEMPERATURE]
  top_p: OptionalFraction  # Probability mass to draw from; None: all.

  @property
  def is_on(self) -> bool:
    """Whether the run is evaluated."""
    return self.every > 0 or self.every_cost is not None


@dataclasses.dataclass(kw_only=True)
class Logging:
  """What a run writes."""

  # Numbers of a histogram in a line; the last also counts all larger values.
  histogram_bins: Annotated[int, constants.interval('[1, 65536]')]
  # Learner steps at which a bucket of ages begins, after that of age 0: (1, 2,
  # 4) for ages 0, 1, 2 to 3, and 4 or more. None writes no metrics by age.
  age_buckets: OptionalEdges
  # Also write the norm of the gradient by age, which takes one more backward
  # pass of each update for each bucket.
  age_grad_norms: bool
  # Run the events of a cycle as programs of their own, and wait for each, so
  # that timing.jsonl says how long each took, and mu. Programs of their own may
  # round otherwise than the cycle as one program.
  time_events: bool
  # Who else gets the scalars: functions of run.writers, joined by +. None:
  # nobody.
  writers: OptionalStr
  samples_every: Natural  # Iterations between samples as text; 0 writes none.
  num_samples: Count  # Largest number of rollouts to write each time.


@dataclasses.dataclass(kw_only=True)
class Checkpoint:
  """When the run is saved."""

  every: Count  # Iterations.
  keep: Count  # Newest checkpoints to keep.


@dataclasses.dataclass(kw_only=True)
class Mesh:
  """Devices. One size of a shape may be -1, for all remaining devices."""

  shape: dict[str, int]  # Sizes of the axes data, fsdp and tensor.
  sampler_shape: dict[str, int] | None  # To generate on; None: `shape`.
  buffer_memory: str  # Memory of the buffer's rows: one of BUFFER_MEMORIES.


@dataclasses.dataclass(kw_only=True)
class Config:
  """A run. The fields' comments give units; `configs/` gives values."""

  name: str  # Name of the arm in tables and figures.
  seed: Seed  # First seed; the run trains seed, seed + 1, ...
  num_seeds: Count  # S.
  vmap_seeds: bool  # All seeds at once or in turn, see maker.over_seeds.
  num_iterations: Count  # Cycles of the schedule, at most.
  # What ends a seed before: functions of run.budget, joined by +, of which the
  # first one counts. The run ends once all its seeds have. None: nothing.
  stop: OptionalStr
  mu: NonNegative  # Cost of generating a rollout over that of training on it.
  cache_dir: str  # Folder of warm starts and compiled programs.
  task: str  # One of functions.TASKS, or problems().
  reward: str  # Sum of functions of tasks.rewards.
  schedule: str  # A function of run.schedule.
  text: Text | None  # Settings of problems(); None for other tasks.
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


def changed(config: Config, changes: Mapping[str, Any]) -> Config:
  """Returns a copy of a config with other values.

  Args:
    config: stays as it is.
    changes: values by the path of their field, such as `replay.capacity`.

  Raises:
    ValueError: a path is no field of the config.
  """
  copied = copy.deepcopy(config)
  for path, value in changes.items():
    *sections, field = path.split('.')
    try:
      owner = functools.reduce(getattr, sections, copied)
    except AttributeError:
      owner = None
    if field not in {x.name for x in _fields(owner)}:
      raise ValueError(f'{path} = {value!r}: must be a field of the config')
    setattr(owner, field, value)
  return copied


def _fields(settings: Any) -> tuple[dataclasses.Field, ...]:
  is_section = dataclasses.is_dataclass(settings)
  return dataclasses.fields(settings) if is_section else ()


def flatten(config: Any, prefix: str = '') -> dict[str, Any]:
  """Returns all fields by their path, such as `{'replay.capacity': 1024}`."""
  fields = {}
  for field in dataclasses.fields(config):
    value = getattr(config, field.name)
    if dataclasses.is_dataclass(value):
      fields |= flatten(value, f'{prefix}{field.name}.')
    else:
      fields[prefix + field.name] = value
  return fields
