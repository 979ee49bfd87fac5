"""Record types and callable types that all modules share.

This module imports no other module of the package. Records are NamedTuples of
arrays: each is a pytree without static values, so it can be checkpointed.

Dimension letters, used in docstrings and as suffixes of local arrays:

    B rollouts in a batch    T tokens of prompt and response   V vocabulary
    L tokens of a prompt     R tokens of a response            C buffer slots
    G rollouts of a group    P prompts                         D model width
    H heads                  F fresh rollouts of an iteration  S seeds
    N entries of a prompt table

A number of a config is an array in the compiled program. `Scalar` is the type
of a constant that may be a number or an array, see `constants`.
"""

from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import jax

Array = jax.Array
Scalar = float | jax.Array
PyTree = Any
Metrics = dict[str, Array]


class Prompts(NamedTuple):
  """Prompts, with the references that the reward function needs.

  tokens: `[P, L]` int32, right-padded.
  lengths: `[P]` int32, tokens of each prompt, at least 1.
  prompt_id: `[P]` uint32, the same at each visit to a prompt: the row of a data
    set, or a hash of the tokens.
  references: pytree of arrays `[P, ...]`, read by the task's reward function.
  stream_index: `[P]` uint32 or None, see `replay.prompt_choice`.
  """

  tokens: Array
  lengths: Array
  prompt_id: Array
  references: PyTree
  stream_index: Array | None = None


class Completions(NamedTuple):
  """Responses that the sampler returns.

  tokens: `[B, T]` int32, prompt and response without a gap, right-padded;
    `T = L + R`.
  loss_mask: `[B, T]` bool, True where the token was sampled from the policy,
    the end-of-sequence token included.
  behavior_logprobs: `[B, T]` float32, log-probability of each sampled token
    after temperature, top-k and top-p. Zero where not `loss_mask`.
  full_logprobs: `[B, T]` float32, log-probability after temperature and before
    top-k and top-p. Zero where not `loss_mask`.
  entropy: `[B, T]` float32, nats, of the distribution before top-k and top-p.
    Zero where not `loss_mask`.
  responses: `[B, R]` int32, the response alone, right-padded.
  lengths: `[B]` int32, sampled tokens of each response.
  is_finished: `[B]` bool, True where the response ended with end-of-sequence.
  """

  tokens: Array
  loss_mask: Array
  behavior_logprobs: Array
  full_logprobs: Array
  entropy: Array
  responses: Array
  lengths: Array
  is_finished: Array


class Rollout(NamedTuple):
  """Sampled responses, with what off-policy learning from them needs.

  tokens: `[B, T]` int32, prompt and response, right-padded.
  loss_mask: `[B, T]` bool, True where the token was sampled from the policy.
  behavior_logprobs: `[B, T]` float32, recorded by the sampler at generation.
    Zero where not `loss_mask`.
  rewards: `[B]` float32, the verifier's score of the response.
  advantages: `[B]` float32, computed within the group at generation, frozen.
  group_id: `[B]` int32, rollouts of one visit to a prompt share one id.
  prompt_id: `[B]` uint32, see `Prompts`.
  rollout_id: `[B]` uint32, number of rollouts that the run generated before
    this one, modulo 2^32.
  policy_version: `[B]` int32, learner step whose weights sampled the rollout.
  token_versions: `[B, T]` int32, learner step whose weights sampled each token;
    None where the weights cannot change during a response.
  reference_logprobs: `[B, T]` float32, under the weights that the run started
    from; zero where not `loss_mask`. None where no loss reads them.
  """

  tokens: Array
  loss_mask: Array
  behavior_logprobs: Array
  rewards: Array
  advantages: Array
  group_id: Array
  prompt_id: Array
  rollout_id: Array
  policy_version: Array
  token_versions: Array | None = None
  reference_logprobs: Array | None = None


class PromptTable(NamedTuple):
  """What a run knows of N prompts from their rollouts, see `prompt_table`.

  prompt_id: `[N]` uint32, see `Prompts`.
  is_valid: `[N]` bool, True where the entry has a prompt.
  num_visits: `[N]` int32, groups of rollouts of the prompt.
  num_rollouts: `[N]` int32, rollouts of these groups.
  num_correct: `[N]` int32, those of them that are correct.
  latest_rate: `[N]` float32, share of correct rollouts in the latest generation
    that visited the prompt.
  last_visit: `[N]` uint32, number of that generation from 0, modulo 2^32.
  stream_index: `[N]` uint32, see `replay.prompt_choice`; 0 for a task in text.
  num_replayed: `[]` uint32, groups so far without a new prompt, modulo 2^32.
  num_replaced: `[]` uint32, prompts that a new one replaced, and new ones for
    which no entry was left, modulo 2^32.
  """

  prompt_id: Array
  is_valid: Array
  num_visits: Array
  num_rollouts: Array
  num_correct: Array
  latest_rate: Array
  last_visit: Array
  stream_index: Array
  num_replayed: Array
  num_replaced: Array


class BufferState(NamedTuple):
  """A replay buffer of C slots.

  rollouts: `Rollout` (or any pytree of arrays) with leading axis `[C]`.
  is_valid: `[C]` bool, True where the slot holds a rollout.
  insert_index: `[C]` uint32, number of rollouts inserted before this one,
    modulo 2^32. Compare differences to `num_inserted`: the values wrap around.
  times_sampled: `[C]` int32, uses of the rollout since it was inserted.
  last_sampled: `[C]` int32, learner step of the latest use; -1 before any.
  priorities: `[C]` float32, zero or within
    `[buffer.MIN_PRIORITY, buffer.MAX_PRIORITY]`.
  next_slot: `[]` int32, where the ring writes next, in `[0, C)`.
  num_inserted: `[]` uint32, rollouts inserted so far, modulo 2^32.
  num_repaired_priorities: `[]` uint32, priorities changed on write because
    they were NaN, infinite, negative, denormal or too large, modulo 2^32.
  num_batches: `[]` uint32, inserts so far, also of no row, modulo 2^32. A run
    inserts once per generation.
  prompts: statistics of the prompts; None without `replay.num_prompts`.
  """

  rollouts: Rollout
  is_valid: Array
  insert_index: Array
  times_sampled: Array
  last_sampled: Array
  priorities: Array
  next_slot: Array
  num_inserted: Array
  num_repaired_priorities: Array
  num_batches: Array
  prompts: PromptTable | None = None


class Draw(NamedTuple):
  """Slots drawn by weight.

  slots: `[B]` int32; C, one past the last slot, where not `is_valid`.
  probs: `[B]` float32, probability of the slot in one draw; 0 if not valid.
  is_valid: `[B]` bool, False where no eligible slot was left to draw.
  num_eligible: `[]` int32, slots with a positive weight.
  """

  slots: Array
  probs: Array
  is_valid: Array
  num_eligible: Array


class Batch(NamedTuple):
  """Rows to learn from: fresh rollouts, rows drawn from the buffer, or both.

  rollouts: `Rollout` `[B, ...]`.
  slots: `[B]` int32, the buffer slot of each row; C where the row is in none.
  is_valid: `[B]` bool, False for rows that only fill the static shape.
  is_fresh: `[B]` bool, True for rows generated in this iteration.
  probs: `[B]` float32, probability of the row's slot in one draw; 0 for rows
    that were not drawn, such as the fresh ones of an on-policy batch.
  num_eligible: `[]` int32, slots with a positive weight; the number of valid
    rows in a batch that was not drawn.
  """

  rollouts: Rollout
  slots: Array
  is_valid: Array
  is_fresh: Array
  probs: Array
  num_eligible: Array


class LearnerState(NamedTuple):
  """The state of the learner.

  params: weights, a pytree.
  opt_state: state of the optimizer, a pytree.
  gate_state: state of the gate, a pytree.
  step: `[]` int32, number of updates that changed the weights.
  num_tried: `[]` int32, number of all updates, including those that a gate
    refused and those without a valid row.
  num_empty_in_a_row: `[]` int32, generations whose first update had no valid
    row, since the last update with one.
  """

  params: PyTree
  opt_state: PyTree
  gate_state: PyTree
  step: Array
  num_tried: Array
  num_empty_in_a_row: Array


class LossInputs(NamedTuple):
  """What a policy loss may read. Fields that are None were not computed.

  logprobs: `[B, T]` float, log pi of each token under the learner's weights;
    the only field with a gradient.
  behavior_logprobs: `[B, T]` float, log mu of each token, by the sampler.
  rewards, advantages: `[B]` float.
  loss_mask: `[B, T]` bool, False on rows that are not valid or, of packed rows,
    in another microbatch.
  age: `[B]` int32, learner steps since `policy_version`.
  prompt_id: see `Prompts`.
  is_fresh: see `Batch`.
  token_versions, reference_logprobs: see `Rollout`.
  proximal_logprobs: `[B, T]` float, under the learner's weights before the
    first update of the `Learn` event to which this update belongs.
  row_grad_norms: `[B]` float, norm of the gradient of the sum of `logprobs` in
    each row.
  statistics: what a `StatisticsFn` returned for the whole batch.
  """

  logprobs: Array
  behavior_logprobs: Array
  rewards: Array
  advantages: Array
  loss_mask: Array
  age: Array
  prompt_id: Array
  is_fresh: Array
  token_versions: Array | None = None
  reference_logprobs: Array | None = None
  proximal_logprobs: Array | None = None
  row_grad_norms: Array | None = None
  statistics: PyTree = None


class TokenLoss(NamedTuple):
  """A loss before it is averaged.

  loss: `[B, T]` float32, zero where not `loss_mask`.
  is_clipped: `[B, T]` bool, True where a bound cut the gradient of a token.
  """

  loss: Array
  is_clipped: Array


class Outcome(NamedTuple):
  """Values of an update before it changes the weights.

  loss: `[]` float32.
  logprobs: `[B, T]` float32, of the batch under the learner's weights.
  is_clipped: `[B, T]` bool, tokens whose gradient a bound of the loss cut.
  row_weights: `[B]` float32, factor of each row's loss.
  grad_norm: `[]` float32, global norm of the gradient before clipping.
  output_projection_grad_norm: `[]` float32, norm for the output projection;
    with tied embeddings, without the gradient of the embedding of inputs.
  grad_norms_of_sets: `[K]` float32, norm of the part of the gradient that comes
    from each of K sets of rows; None if the update was given no sets.
  """

  loss: Array
  logprobs: Array
  is_clipped: Array
  row_weights: Array
  grad_norm: Array
  output_projection_grad_norm: Array
  grad_norms_of_sets: Array | None = None


class Proposal(NamedTuple):
  """An update that a gate judges.

  batch: the rows.
  outcome: the loss and related values of these rows.
  gradients: pytree like the weights, before clipping and the optimizer.
  step: `[]` int32, learner step.
  num_updates_since_fresh: `[]` int32, updates tried before this one since the
    latest rollouts were generated: 0 for the first.
  """

  batch: Batch
  outcome: Outcome
  gradients: PyTree
  step: Array
  num_updates_since_fresh: Array


class Verdict(NamedTuple):
  """The decision of a gate.

  is_accepted: `[]` bool; False does not change weights, optimizer and step.
  ends_reuse: `[]` bool; True leaves out the remaining updates until the run
    generates new rollouts.
  rate_scale: `[]` float32, factor of the learning rate.
  gradients: pytree like the weights, what the optimizer gets in place of the
    gradients of the proposal; None leaves those.
  """

  is_accepted: Array
  ends_reuse: Array
  rate_scale: Array
  gradients: PyTree = None


class Gate(NamedTuple):
  """An update rule with a state, between the gradients and the optimizer.

  init: weights -> state, a pytree of arrays; () for a gate without state. On a
    mesh, what `jax.tree.map` makes of the weights is split as they are.
  judge: (state, proposal) -> (verdict, new state). The learner ignores both for
    a batch without a valid row.
  """

  init: Callable[[PyTree], PyTree]
  judge: Callable[[PyTree, Proposal], tuple[Verdict, PyTree]]


# (activations, name of each axis in `mesh.RULES` or None) -> the same array,
# split over the devices
ConstrainFn = Callable[[Array, tuple[str | None, ...]], Array]
# (buffer, learner step) -> how often to sample each slot, `[C]` float32, at
# least 0. Weights multiply, and only their ratios matter.
WeightRule = Callable[[BufferState, Array], Array]
# (buffer, learner step) -> score of each slot, `[C]` float32. An insert
# overwrites the lowest score first.
KeepRule = Callable[[BufferState, Array], Array]
# (rng_key, weights [C], num_draws) -> Draw
DrawFn = Callable[[Array, Array, int], Draw]
# (buffer, fresh rows, rng_key, learner step) -> Batch
ComposeFn = Callable[[BufferState, Batch, Array, Array], Batch]
# (buffer without its rows, stream_index [P] of the next new prompts, rng_key)
# -> stream_index [P] of the next generation, see `replay.prompt_choice`
ChoosePromptsFn = Callable[[BufferState, Array, Array], Array]
# (batch, outcome) -> new priorities [B]
FeedbackFn = Callable[[Batch, Outcome], Array]
# (rewards [B], group_id [B]) -> advantages [B]
AdvantageFn = Callable[[Array, Array], Array]
# inputs -> loss of each token
LossFn = Callable[[LossInputs], TokenLoss]
# inputs of a whole batch, without gradient -> pytree of arrays without an axis
# of rows, such as a threshold
StatisticsFn = Callable[[LossInputs], PyTree]
# loss_mask [B, T] -> weight of each token [B, T]; the loss is the weighted sum
NormalizerFn = Callable[[Array], Array]
# batch -> advantages [B], in place of those of its rollouts
BatchAdvantageFn = Callable[[Batch], Array]
# (batch, learner step) -> factor of each row's loss, [B] float32
RowWeightFn = Callable[[Batch, Array], Array]
# (responses [B, R], lengths [B], references [B, ...]) -> rewards [B]
RewardFn = Callable[[Array, Array, PyTree], Array]


class MissingFieldError(ValueError):
  """A function needs a field of a record that is None: `field`, its name."""

  field: str


def required(record: NamedTuple, field: str, reader: str) -> PyTree:
  """Returns a field of a record, which must not be None.

  A loss, or a statistic, that gets `reference_logprobs`, `proximal_logprobs` or
  `row_grad_norms` in this way makes the run compute them.

  Args:
    record: such as `LossInputs` or `Rollout`.
    field: name of the field.
    reader: name of the function that needs the field, for the message.

  Raises:
    MissingFieldError: the field is None.
  """
  value = getattr(record, field)
  if value is None:
    error = MissingFieldError(
      f'{type(record).__name__}.{field} = None: must be given for {reader}'
    )
    error.field = field
    raise error
  return value
