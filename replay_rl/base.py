"""Record types and callable types shared by every module.

Imports nothing of ours. Records are NamedTuples of arrays, so that each is a
pytree, can be checkpointed, and hides no static value.

Dimension letters, used in docstrings and as suffixes of local arrays:
  B rollouts in a batch    T tokens of prompt and response   V vocabulary
  L tokens of a prompt     R tokens of a response            C buffer slots
  G rollouts of a group    P prompts                         D model width
  H heads                  F fresh rollouts of an iteration  S seeds
"""

from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import jax

Array = jax.Array
PyTree = Any
Metrics = dict[str, Array]


class Prompts(NamedTuple):
  """Questions for the policy, with what the verifier needs to judge answers.

  tokens: `[P, L]` int32, right-padded.
  lengths: `[P]` int32, tokens of each prompt, at least 1.
  references: pytree of arrays `[P, ...]`, read by the task's reward function.
  """

  tokens: Array
  lengths: Array
  references: PyTree


class Completions(NamedTuple):
  """What the sampler returns.

  tokens: `[B, T]` int32, prompt followed at once by its response,
    right-padded; `T = L + R`.
  loss_mask: `[B, T]` bool, True where the token was sampled from the policy,
    the end-of-sequence token included.
  behavior_logprobs: `[B, T]` float32, log-probability of each sampled token
    under the distribution it was drawn from (temperature, top-k and top-p
    included). Zero where not `loss_mask`.
  full_logprobs: `[B, T]` float32, the same under the distribution before
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
  """Sampled responses with all that is needed to reuse them off-policy.

  tokens: `[B, T]` int32, prompt and response, right-padded.
  loss_mask: `[B, T]` bool, True where the token was sampled from the policy.
  behavior_logprobs: `[B, T]` float32, recorded by the sampler at generation.
    Zero where not `loss_mask`.
  rewards: `[B]` float32, the verifier's score of the response.
  advantages: `[B]` float32, computed within the group at generation, frozen.
  group_id: `[B]` int32, rollouts of one visit to a prompt share one id.
  policy_version: `[B]` int32, learner step whose weights sampled the rollout.
  """

  tokens: Array
  loss_mask: Array
  behavior_logprobs: Array
  rewards: Array
  advantages: Array
  group_id: Array
  policy_version: Array


class BufferState(NamedTuple):
  """A replay buffer of C slots.

  rollouts: `Rollout` (or any pytree of arrays) with leading axis `[C]`.
  is_valid: `[C]` bool, True where the slot holds a rollout.
  insert_index: `[C]` uint32, how many rollouts were inserted before this one,
    modulo 2^32. Compare by difference to `num_inserted`, never by size.
  times_sampled: `[C]` int32, uses of the rollout since it was inserted.
  last_sampled: `[C]` int32, learner step of the latest use; -1 before any.
  priorities: `[C]` float32, zero or within
    `[buffer.MIN_PRIORITY, buffer.MAX_PRIORITY]`.
  next_slot: `[]` int32, where the ring writes next, in `[0, C)`.
  num_inserted: `[]` uint32, rollouts inserted so far, modulo 2^32.
  num_repaired_priorities: `[]` uint32, priorities changed on write because
    they were NaN, infinite, negative, denormal or too large, modulo 2^32.
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


class Draw(NamedTuple):
  """Slots chosen from weights.

  slots: `[B]` int32. Where not `is_valid`, equal to C, one past the last slot.
  probs: `[B]` float32, probability of the slot in one draw; 0 if not valid.
  is_valid: `[B]` bool, False where no eligible slot was left to draw.
  num_eligible: `[]` int32, slots of positive weight.
  """

  slots: Array
  probs: Array
  is_valid: Array
  num_eligible: Array


class Sample(NamedTuple):
  """Rollouts read from the buffer: a `Draw` with its rows `[B, ...]`."""

  rollouts: Rollout
  slots: Array
  probs: Array
  is_valid: Array
  num_eligible: Array


class Fresh(NamedTuple):
  """The rollouts of this iteration, already inserted.

  rollouts: `Rollout` `[F, ...]`.
  slots: `[F]` int32, where `insert` put them; C if it did not store the row.
  is_valid: `[F]` bool, False for rows dropped by a filter.
  """

  rollouts: Rollout
  slots: Array
  is_valid: Array


class Batch(NamedTuple):
  """Rows of one learner update.

  rollouts: `Rollout` `[B, ...]`.
  slots: `[B]` int32, the buffer slot of each row; C where not `is_valid`.
  is_valid: `[B]` bool, False for rows that only fill the static shape.
  is_fresh: `[B]` bool, True for rows generated in this iteration.
  num_eligible: `[]` int32, slots the rule would have drawn from.
  """

  rollouts: Rollout
  slots: Array
  is_valid: Array
  is_fresh: Array
  num_eligible: Array


class LearnerState(NamedTuple):
  """params, opt_state: pytrees. step: `[]` int32, updates done so far."""

  params: PyTree
  opt_state: PyTree
  step: Array


class TokenLoss(NamedTuple):
  """A loss before it is averaged.

  loss: `[B, T]` float32, zero where not `loss_mask`.
  is_clipped: `[B, T]` bool, True where a bound cut the gradient of a token.
  """

  loss: Array
  is_clipped: Array


# (array, name of each axis or None) -> the same array, split over the devices
# as these axes are, for activations. Names are those of `mesh.RULES`.
ConstrainFn = Callable[[Array, tuple[str | None, ...]], Array]
# A rule takes the buffer and the learner's step and returns one number per
# slot, `[C]`. As a weight it is non-negative and says how often to sample the
# slot; as a keep score, the lowest is overwritten first. Weights multiply.
SlotRule = Callable[[BufferState, Array], Array]
# (rng_key, weights [C], num_draws) -> Draw
DrawFn = Callable[[Array, Array, int], Draw]
# (buffer, fresh, rng_key, learner step) -> Batch
ComposeFn = Callable[[BufferState, Fresh, Array, Array], Batch]
# (rewards [B], group_id [B]) -> advantages [B]
AdvantageFn = Callable[[Array, Array], Array]
# (logprobs [B, T], behavior_logprobs [B, T], advantages [B], loss_mask [B, T])
LossFn = Callable[[Array, Array, Array, Array], TokenLoss]
# loss_mask [B, T] -> weight of each token [B, T]; the loss is the weighted sum
NormalizerFn = Callable[[Array], Array]
# (responses [B, R], lengths [B], references [B, ...]) -> rewards [B]
RewardFn = Callable[[Array, Array, PyTree], Array]
