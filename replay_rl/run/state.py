"""The state of a run, and the parts that its events use.

A run is one pytree, `RunState`. `Parts` holds functions and the sizes that set
shapes. Numbers of the config that set no shape are arrays in the state, and
`Parts.bind` passes them to the functions inside the compiled program.
"""

from collections.abc import Callable
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from replay_rl import base
from replay_rl.lm import architecture
from replay_rl.lm import in_flight
from replay_rl.replay import buffer as buffer_lib
from replay_rl.run import learner as learner_lib
from replay_rl.run import ledger as ledger_lib
from replay_rl.run import microbatches
from replay_rl.tasks import task as task_lib

# (params, rng_key, prompts [P], rollout_id [P x G]) -> G responses per prompt,
# side by side. With a keyword `spans`, the params have a leading axis, see
# `arguments.Spans`.
GenerateFn = Callable[..., base.Completions]
# Field of the config -> name of the constant -> value
Hyper = Mapping[str, Mapping[str, base.Scalar]]


class Clock(NamedTuple):
  """Logical time.

  iteration: `[]` int32, finished cycles of the schedule.
  num_rollouts: `[]` uint32, rollouts generated so far, modulo 2^32; also the
    `rollout_id` of the next rollout.
  num_updates_since_fresh: `[]` int32, updates tried since the latest rollouts
    were remembered.
  is_reuse_ended: `[]` bool, whether a gate ended the updates since then.
  """

  iteration: base.Array
  num_rollouts: base.Array
  num_updates_since_fresh: base.Array
  is_reuse_ended: base.Array


class SamplerState(NamedTuple):
  """The latest N publications of the learner's weights, a ring.

  The initial weights fill the ring, and each publication overwrites the oldest.
  The sampler uses the oldest, or those that the spans of a generation name.

  params: pytree with a leading axis `[N]`.
  version: `[N]` int32, the learner step of each publication.
  num_published: `[]` int32, publications so far, without the initial weights.
  """

  params: base.PyTree
  version: base.Array
  num_published: base.Array


class RunState(NamedTuple):
  """All that changes during a run, and all that is checkpointed.

  seed: `[]` uint32, determines every random key.
  clock: logical time.
  hyper: the numbers of the config that set no shape, as arrays `[]`.
  sampler: the weights that generate; None if the sampler uses the weights of
    the learner.
  reference_params: the weights that the run started from; None where no loss
    reads their log-probabilities.
  learner: the learner.
  buffer: the replay buffer.
  ledger: counters of generated and trained rollouts and tokens.
  in_flight: a `generation.InFlight` where the run was stopped within a
    generation; None between cycles.
  """

  seed: base.Array
  clock: Clock
  hyper: Hyper
  sampler: SamplerState | None
  reference_params: base.PyTree | None
  learner: base.LearnerState
  buffer: base.BufferState
  ledger: ledger_lib.Ledger
  in_flight: base.PyTree | None


class Functions(NamedTuple):
  """The functions of the events, with the numbers of `RunState.hyper` bound.

  generate_fn: samples with the settings of the config.
  evaluate_fn: samples with those of its evaluation.
  pieces: of `generate_fn`, where the host judges beside it; else None.
  update: the functions of an update.
  advantage_fn: compares the rewards of a group.
  compose_fn: makes the batch of an update.
  batch_advantage_fn: compares the rows of a batch; None leaves the advantages
    of the generation.
  keep_rule: scores the slots that an insert may overwrite; None overwrites the
    oldest rollout.
  feedback_fn: new priorities of the rows of an update; None changes none.
  choose_prompts_fn: the prompts of a generation, of a task in JAX.
  """

  generate_fn: GenerateFn
  evaluate_fn: GenerateFn
  pieces: in_flight.Pieces | None
  update: learner_lib.UpdateFunctions
  advantage_fn: base.AdvantageFn
  compose_fn: base.ComposeFn
  batch_advantage_fn: base.BatchAdvantageFn | None
  keep_rule: base.KeepRule | None
  feedback_fn: base.FeedbackFn | None
  choose_prompts_fn: base.ChoosePromptsFn


class Parts(NamedTuple):
  """The functions and static sizes of a run.

  shape: the sizes of the task's prompts and responses.
  transformer: the shape of the model.
  init_params_fn: rng_key -> weights.
  greedy_fn: takes the most probable tokens.
  bind: hyper -> the functions of the events.
  hyper: the numbers of the config that set no shape.
  drop_zero_variance: whether to leave groups of equal rewards out of the buffer
    and the batches.
  capacity: C, slots of the buffer.
  num_known_prompts: N, entries of the table of prompts; None for no table.
  num_distinct_prompts: prompts of the training set of a task in JAX; None if
    each prompt is new.
  num_prompts, group_size: P and G of a generation.
  num_rows: B, rows of an update, including rows that only fill the shape.
  num_publications: N of `SamplerState`; 0 if the sampler uses the weights of
    the learner.
  num_spans: most weights that sample one response; 0 if the schedule has no
    spans, and then one.
  judges_beside: whether the host judges responses while others are written.
  microbatch_rows: most rows of an update whose activations are in memory at a
    time; None for all. Of packed rows, most sequences; None for 1.
  packed_tokens: columns of a sequence of packed rows; None does not pack.
  loss_reads: fields of `base.LossInputs` that the run computes for the loss
    alone, see `tracing.loss_reads`.
  histogram_bins: bins of a histogram, overflow included.
  age_edges: see `histograms.age_buckets`; () for no metrics by age.
  age_grad_norms: see `config.Logging`.
  """

  shape: task_lib.Shape
  transformer: architecture.TransformerConfig
  init_params_fn: Callable[[base.Array], base.PyTree]
  greedy_fn: GenerateFn
  bind: Callable[[Hyper], Functions]
  hyper: Hyper
  drop_zero_variance: bool
  capacity: int
  num_known_prompts: int | None
  num_distinct_prompts: int | None
  num_prompts: int
  group_size: int
  num_rows: int
  num_publications: int
  num_spans: int
  judges_beside: bool
  microbatch_rows: int | None
  packed_tokens: int | None
  loss_reads: frozenset[str]
  histogram_bins: int
  age_edges: tuple[int, ...]
  age_grad_norms: bool

  @property
  def num_fresh(self) -> int:
    """F, the rollouts of a generation."""
    return self.num_prompts * self.group_size

  @property
  def num_microbatches(self) -> int:
    """Parts into which an update splits its rows; 1 if it packs them."""
    if self.packed is not None:
      return 1
    return microbatches.number(self.num_rows, self.microbatch_rows)

  @property
  def packed(self) -> microbatches.Packing | None:
    """How an update packs its rows; None if it does not."""
    if self.packed_tokens is None:
      return None
    return microbatches.Packing(self.packed_tokens, self.microbatch_rows or 1)

  def proximal_params(self, learner: base.LearnerState) -> base.PyTree | None:
    """Returns weights for `proximal_logprobs`; None if the loss reads none."""
    return learner.params if 'proximal_logprobs' in self.loss_reads else None


def init(
  parts: Parts, params: base.PyTree, seed: base.Array, hyper: Hyper
) -> RunState:
  """Returns the state of a run before its first cycle.

  Args:
    parts: the functions and sizes of the run.
    params: the initial weights.
    seed: `[]` integer.
    hyper: arrays `[]`, with the structure of `parts.hyper`.
  """
  num_kept, sampler = parts.num_publications, None
  has_reference = 'reference_logprobs' in parts.loss_reads
  if num_kept:
    sampler = SamplerState(
      params=jax.tree.map(
        lambda leaf: jnp.repeat(leaf[None], num_kept, axis=0), params
      ),
      version=jnp.zeros((num_kept,), jnp.int32),
      num_published=jnp.zeros((), jnp.int32),
    )
  return RunState(
    seed=seed.astype(jnp.uint32),
    clock=Clock(
      iteration=jnp.zeros((), jnp.int32),
      num_rollouts=jnp.zeros((), jnp.uint32),
      num_updates_since_fresh=jnp.zeros((), jnp.int32),
      is_reuse_ended=jnp.zeros((), bool),
    ),
    hyper=hyper,
    sampler=sampler,
    reference_params=params if has_reference else None,
    learner=learner_lib.init(params, parts.bind(hyper).update),
    buffer=buffer_lib.init(
      _empty_row(
        parts.shape,
        has_versions=parts.num_spans > 0,
        has_reference=has_reference,
      ),
      capacity=parts.capacity,
      num_prompts=parts.num_known_prompts,
    ),
    ledger=ledger_lib.init(),
    in_flight=None,
  )


def shapes_of_run(parts: Parts, num_seeds: int) -> RunState:
  """Returns a run of `jax.ShapeDtypeStruct`s `[S, ...]`."""
  params = jax.eval_shape(parts.init_params_fn, jax.random.key(0))
  return jax.eval_shape(
    lambda params, seeds: jax.vmap(
      lambda seed: init(parts, params, seed, as_arrays(parts.hyper))
    )(seeds),
    params,
    jax.ShapeDtypeStruct((num_seeds,), jnp.uint32),
  )


def empty_prompts(shape: task_lib.Shape, *leading: int) -> base.Prompts:
  """Returns prompts of zeros, with the references of a task in text.

  Args:
    shape: sizes of the task.
    *leading: sizes of the leading axes, such as `P` or `S, P`.
  """
  numbers = jnp.zeros(leading, jnp.int32)
  return base.Prompts(
    tokens=jnp.zeros((*leading, shape.prompt_length), jnp.int32),
    lengths=numbers,
    prompt_id=numbers.astype(jnp.uint32),
    references=numbers,
  )


def as_arrays(hyper: Hyper) -> Hyper:
  """Returns the numbers as arrays `[]`: int32 for an int, else float32."""
  return jax.tree.map(
    lambda value: jnp.asarray(
      value, jnp.int32 if isinstance(value, int) else jnp.float32
    ),
    hyper,
  )


def of_seeds(hyper: Hyper, num_seeds: int) -> Hyper:
  """Returns the numbers as arrays `[S]`, the same for each seed."""
  return jax.tree.map(
    lambda leaf: jnp.repeat(leaf[None], num_seeds), as_arrays(hyper)
  )


def slot_of(publication: int, num_publications: int) -> int:
  """Returns the place of a publication in the ring; 0: the initial weights."""
  return (publication - 1) % num_publications


def _empty_row(
  shape: task_lib.Shape, *, has_versions: bool, has_reference: bool
) -> base.Rollout:
  """Returns a rollout `[1, ...]` of zeros."""
  tokens = jnp.zeros((1, shape.num_tokens), jnp.int32)
  number = jnp.zeros((1,), jnp.int32)
  return base.Rollout(
    tokens=tokens,
    loss_mask=tokens > 0,
    behavior_logprobs=jnp.zeros(tokens.shape),
    rewards=jnp.zeros((1,)),
    advantages=jnp.zeros((1,)),
    group_id=number,
    prompt_id=number.astype(jnp.uint32),
    rollout_id=number.astype(jnp.uint32),
    policy_version=number,
    token_versions=jnp.zeros(tokens.shape, jnp.int32) if has_versions else None,
    reference_logprobs=jnp.zeros(tokens.shape) if has_reference else None,
  )
