"""The learner: one optimizer update on a batch of rollouts."""

from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax

from replay_rl import base
from replay_rl.lm import model

# (params, tokens [B, T]) -> log-probability of each token given those before,
# and entropy in nats of the distribution it was drawn from, `[B, T]` each
LogprobsFn = Callable[[base.PyTree, base.Array], tuple[base.Array, base.Array]]


class Outcome(NamedTuple):
  """What an update saw, before it changed the weights.

  loss: `[]` float32.
  logprobs: `[B, T]` float32, of the batch under the learner's weights.
  is_clipped: `[B, T]` bool, tokens whose gradient a bound of the loss cut.
  grad_norm: `[]` float32, global, before clipping.
  output_projection_grad_norm: `[]` float32, of the output projection alone
    (with tied embeddings: of its use as output projection).
  """

  loss: base.Array
  logprobs: base.Array
  is_clipped: base.Array
  grad_norm: base.Array
  output_projection_grad_norm: base.Array


def init(
  params: base.PyTree, optimizer: optax.GradientTransformation
) -> base.LearnerState:
  """Returns the state of a learner that has made no update."""
  return base.LearnerState(
    params=params,
    opt_state=optimizer.init(params),
    step=jnp.zeros((), jnp.int32),
  )


def update(
  state: base.LearnerState,
  rollouts: base.Rollout,
  is_valid: base.Array,
  *,
  logprobs_fn: LogprobsFn,
  loss_fn: base.LossFn,
  normalizer_fn: base.NormalizerFn,
  optimizer: optax.GradientTransformation,
  num_microbatches: int,
) -> tuple[base.LearnerState, Outcome]:
  """Takes one optimizer step on the weighted sum of the tokens' losses.

  The weights of the tokens are computed on the whole batch, before it is split
  into microbatches; so any split gives the gradient of the whole batch.

  Args:
    state: the learner.
    rollouts: `[B, ...]`, rows to learn from.
    is_valid: `[B]` bool; other rows have no part in the loss.
    logprobs_fn: scores tokens.
    loss_fn: the loss of each token.
    normalizer_fn: the weight of each token.
    optimizer: turns the gradient into an update.
    num_microbatches: B must be a multiple; rows of one are held at a time.

  Returns:
    The new learner and what the update saw.

  Raises:
    ValueError: B is not a multiple of `num_microbatches`.
  """
  chex.assert_rank([rollouts.tokens, is_valid], [2, 1])
  num_rows = is_valid.shape[0]
  if num_rows % num_microbatches:
    raise ValueError(
      f'num_microbatches = {num_microbatches}: must divide the {num_rows} rows '
      'of an update'
    )
  loss_mask_BT = rollouts.loss_mask & is_valid[:, None]
  rows = (
    rollouts.tokens,
    rollouts.behavior_logprobs,
    rollouts.advantages,
    loss_mask_BT,
    normalizer_fn(loss_mask_BT),
  )

  def loss_of_rows(params, rows):
    tokens_BT, behavior_logprobs_BT, advantages_B, mask_BT, weights_BT = rows
    logprobs_BT, _ = logprobs_fn(params, tokens_BT)
    token_loss = loss_fn(
      logprobs_BT, behavior_logprobs_BT, advantages_B, mask_BT
    )
    loss = jnp.sum(token_loss.loss * weights_BT)
    return loss, (logprobs_BT, token_loss.is_clipped)

  value_and_grad = jax.value_and_grad(loss_of_rows, has_aux=True)
  params = model.untie(state.params)
  if num_microbatches == 1:
    (loss, (logprobs_BT, is_clipped_BT)), untied = value_and_grad(params, rows)
  else:

    def accumulate(total, microbatch):
      (loss, seen), grads = value_and_grad(params, microbatch)
      return jax.tree.map(jnp.add, total, (loss, grads)), seen

    zeros = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, params))
    # Every num_microbatches-th row, so that where rows are split over devices
    # each device has its share of every microbatch.
    split = jax.tree.map(
      lambda leaf: leaf.reshape(-1, num_microbatches, *leaf.shape[1:]).swapaxes(
        0, 1
      ),
      rows,
    )
    (loss, untied), seen = jax.lax.scan(accumulate, zeros, split)
    logprobs_BT, is_clipped_BT = jax.tree.map(
      lambda leaf: leaf.swapaxes(0, 1).reshape(num_rows, -1), seen
    )

  grads = model.retie(untied)
  updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
  new_state = base.LearnerState(
    params=optax.apply_updates(state.params, updates),
    opt_state=opt_state,
    step=state.step + 1,
  )
  outcome = Outcome(
    loss=loss,
    logprobs=jax.lax.stop_gradient(logprobs_BT),
    is_clipped=is_clipped_BT,
    grad_norm=optax.tree.norm(grads),
    output_projection_grad_norm=jnp.linalg.norm(untied['output_projection']),
  )
  return new_state, outcome
