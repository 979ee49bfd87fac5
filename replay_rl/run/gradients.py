"""The gradient of a loss: the sum over the microbatches of a batch."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from replay_rl import base
from replay_rl.run import microbatches

# (logprobs [B, T], rows) -> loss [], and what it saw: the logprobs and the mask
# of clipped tokens, `[B, T]` each
LossOfLogprobs = Callable[
  [base.Array, Any], tuple[base.Array, tuple[base.Array, base.Array]]
]
# ((loss, gradient), what the loss saw, columns that the model read)
Summed = tuple[
  tuple[base.Array, base.PyTree], tuple[base.Array, base.Array], base.Array
]


def of_loss(
  logprobs_fn: microbatches.LogprobsFn,
  loss_fn: LossOfLogprobs,
  params: base.PyTree,
  rows: Any,
  *,
  num_microbatches: int,
  packed: microbatches.Packing | None,
) -> Summed:
  """Returns a loss and its gradient, summed over microbatches.

  Args:
    logprobs_fn: scores tokens.
    loss_fn: the loss of a microbatch. The losses of the microbatches add up to
      that of the batch.
    params: weights.
    rows: NamedTuple of arrays `[B, ...]`, of which `tokens` and `loss_mask` are
      read here.
    num_microbatches: must divide B.
    packed: packs the rows into sequences in place of that; None does not.

  Returns:
    Loss and gradient, what the loss saw of all rows, and the columns that the
    model read, `[]` float32.
  """
  if packed is None:
    return _of_rows(
      *(logprobs_fn, loss_fn, params, rows), num_microbatches=num_microbatches
    )
  return _of_packed(*(logprobs_fn, loss_fn, params, rows), packed=packed)


def _of_rows(
  logprobs_fn: microbatches.LogprobsFn,
  loss_fn: LossOfLogprobs,
  params: base.PyTree,
  rows: Any,
  *,
  num_microbatches: int,
) -> Summed:
  """Returns `of_loss` of rows as they are."""

  def loss_of_rows(params, rows):
    logprobs_BT, _ = logprobs_fn(params, rows.tokens)
    return loss_fn(logprobs_BT, rows)

  value_and_grad = jax.value_and_grad(loss_of_rows, has_aux=True)
  num_rows, num_tokens = rows.tokens.shape
  num_columns = jnp.float32(num_rows * (num_tokens - 1))
  if num_microbatches == 1:
    (loss, seen), untied = value_and_grad(params, rows)
    return (loss, untied), seen, num_columns

  def accumulate(total, microbatch):
    (loss, seen), grads = value_and_grad(params, microbatch)
    return jax.tree.map(jnp.add, total, (loss, grads)), seen

  zeros = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, params))
  total, seen = jax.lax.scan(
    accumulate, zeros, microbatches.split(rows, num_microbatches)
  )
  return total, microbatches.join(seen), num_columns


def _of_packed(
  logprobs_fn: microbatches.LogprobsFn,
  loss_fn: LossOfLogprobs,
  params: base.PyTree,
  rows: Any,
  *,
  packed: microbatches.Packing,
) -> Summed:
  """Returns `of_loss` of packed rows.

  The loss reads all rows with each microbatch, but the mask only of those that
  are in it. A row is in one microbatch as a whole, so that a loss may compare
  its tokens.
  """

  def accumulate(result, microbatch):
    total, seen = result

    def score(params):
      of_model = (microbatch.tokens, microbatch.segments)
      return logprobs_fn(params, *of_model)[0]

    scored, backward = jax.vjp(score, params)
    is_inside_B1 = microbatch.num_columns[:, None] > 0
    (loss, seen_here), grads_BT = jax.value_and_grad(loss_fn, has_aux=True)(
      microbatches.to_rows(microbatch, scored, rows.tokens.shape[1]),
      rows._replace(loss_mask=rows.loss_mask & is_inside_B1),
    )
    (grads,) = backward(microbatches.to_columns(microbatch, grads_BT))
    seen = jax.tree.map(
      lambda here, before: jnp.where(is_inside_B1, here, before),
      *(seen_here, seen),
    )
    return jax.tree.map(jnp.add, total, (loss, grads)), seen

  shape = rows.tokens.shape
  zeros = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, params))
  initial = (zeros, (jnp.zeros(shape), jnp.zeros(shape, bool)))
  (total, seen), num_columns = microbatches.fold(
    accumulate, initial, rows.tokens, rows.loss_mask, packed
  )
  return total, seen, num_columns
