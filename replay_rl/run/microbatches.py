"""How the rows of an update are cut into microbatches."""

from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp

from replay_rl import base
from replay_rl.lm import model
from replay_rl.lm import packing
from replay_rl.parallel import mesh

# (params, tokens [B, T]) -> log-probability of each token given those before,
# and entropy of that distribution in nats, `[B, T]` each; (params, tokens,
# segments) -> the same of packed rows, see `scoring.token_logprobs`
LogprobsFn = Callable[..., tuple[base.Array, base.Array]]


class Packing(NamedTuple):
  """Sizes of the sequences into which an update packs its rows.

  capacity: columns of a sequence, at least T - 1.
  num_sequences: most sequences whose activations are in memory at a time. On a
    mesh, this is rounded up so that each device has the same number.
  """

  capacity: int
  num_sequences: int


def number(num_rows: int, microbatch_rows: int | None) -> int:
  """Returns the least number of microbatches of at most `microbatch_rows`.

  Args:
    num_rows: B.
    microbatch_rows: None for one microbatch.
  """
  return 1 if microbatch_rows is None else -(-num_rows // microbatch_rows)


def padded_rows(num_rows: int, num_microbatches: int, num_parts: int) -> int:
  """Returns the least number of rows, at least B, that can be cut equally.

  Args:
    num_rows: B.
    num_microbatches: parts of the batch.
    num_parts: parts of a microbatch, one for each device that splits rows.
  """
  of_microbatch = -(-num_rows // (num_microbatches * num_parts)) * num_parts
  return num_microbatches * of_microbatch


def padded(
  batch: base.Batch, *, num_microbatches: int, capacity: int
) -> base.Batch:
  """Returns a batch that microbatches and devices cut equally.

  Args:
    batch: `[B, ...]`.
    num_microbatches: parts of the batch.
    capacity: C, the slot of rows that are in none.

  Returns:
    The batch, followed by rows of zeros that are not valid.
  """
  num_rows = batch.is_valid.shape[0]
  filled = _pad(batch._replace(num_eligible=()), num_microbatches)
  is_row_B = jnp.arange(filled.is_valid.shape[0]) < num_rows
  return filled._replace(
    slots=jnp.where(is_row_B, filled.slots, capacity),
    num_eligible=batch.num_eligible,
  )


def score(
  logprobs_fn: LogprobsFn,
  params: base.PyTree,
  tokens: base.Array,
  loss_mask: base.Array,
  *,
  num_microbatches: int,
  packed: Packing | None,
) -> base.Array:
  """Returns the log-probabilities of tokens, as an update computes them.

  Args:
    logprobs_fn: scores tokens.
    params: weights.
    tokens: `[B, T]` int32.
    loss_mask: `[B, T]` bool, the tokens whose log-probabilities count.
    num_microbatches: parts that are scored one after the other.
    packed: packs the rows; None scores them as they are.

  Returns:
    `[B, T]` float32, without a gradient. Behind the last token of the mask, the
    log-probabilities of packed rows are 0.
  """
  untied = model.untie(params)
  if packed is not None:

    def add(logprobs_BT, microbatch):
      scored, _ = logprobs_fn(untied, microbatch.tokens, microbatch.segments)
      return logprobs_BT + to_rows(microbatch, scored, tokens.shape[1])

    zeros = jnp.zeros(tokens.shape)
    logprobs, _ = fold(add, zeros, tokens, loss_mask, packed)
    return jax.lax.stop_gradient(logprobs)
  logprobs = jax.lax.map(
    lambda rows: logprobs_fn(untied, rows)[0],
    split(_pad(tokens, num_microbatches), num_microbatches),
  )
  return jax.lax.stop_gradient(join(logprobs)[: tokens.shape[0]])


def fold(
  function: Callable[[Any, packing.Microbatch], Any],
  initial: Any,
  tokens: base.Array,
  loss_mask: base.Array,
  packed: Packing,
) -> tuple[Any, base.Array]:
  """Folds a function over as many microbatches as the packed rows need.

  Args:
    function: (result so far, microbatch) -> result. A microbatch without a row
      must not change the result.
    initial: pytree of arrays, the result of no microbatch.
    tokens: `[B, T]` int32.
    loss_mask: `[B, T]` bool. A row takes no room behind its last token.
    packed: sizes of the sequences.

  Returns:
    The result, and the columns of all microbatches, `[]` float32.

  Raises:
    ValueError: a row may not fit a sequence.
  """
  num_rows, num_tokens = tokens.shape
  if packed.capacity < num_tokens - 1:
    raise ValueError(
      f'capacity = {packed.capacity}: must be at least {num_tokens - 1}, the '
      f'columns of a row of {num_tokens} tokens'
    )
  num_parts = mesh.num_current_parts('rows')
  # All parts pack all rows together, so that none waits for another. They need
  # all tokens for it, which are few bytes beside their activations.
  num_sequences = -(-min(packed.num_sequences, num_rows) // num_parts)
  num_sequences *= num_parts
  tokens = mesh.constrain(tokens, (None, None))
  num_columns_B = mesh.constrain(packing.num_columns(loss_mask), (None,))
  places = packing.first_fit(num_columns_B, packed.capacity)
  num_steps = _largest(-(-places.num_sequences // num_sequences))

  def step(index, result):
    microbatch = packing.take(
      places,
      tokens,
      index * num_sequences,
      num_sequences=num_sequences,
      capacity=packed.capacity,
    )
    of_model = (microbatch.tokens, microbatch.segments)
    tokens_NK, segments = mesh.split_rows(of_model)
    return function(
      result, microbatch._replace(tokens=tokens_NK, segments=segments)
    )

  result = jax.lax.fori_loop(0, num_steps, step, initial)
  columns_of_step = float(num_sequences * packed.capacity)
  return result, num_steps.astype(jnp.float32) * columns_of_step


def to_rows(
  microbatch: packing.Microbatch, values: base.Array, num_tokens: int
) -> base.Array:
  """Returns `packing.to_rows`; each device has the values of its rows."""
  values = mesh.constrain(values, (None, None))
  return mesh.split_rows(packing.to_rows(microbatch, values, num_tokens))


def to_columns(
  microbatch: packing.Microbatch, values: base.Array
) -> base.Array:
  """Returns `packing.to_columns`; each device has those of its sequences."""
  values = mesh.constrain(values, (None, None))
  return mesh.split_rows(packing.to_columns(microbatch, values))


@jax.custom_batching.custom_vmap
def _largest(number: base.Array) -> base.Array:
  """Returns the number, `[]`; below `jax.vmap`, the largest one of all.

  A loop whose number of steps is the same for all seeds selects nothing between
  its steps. It would copy the sums of the gradients otherwise.
  """
  return number


@_largest.def_vmap
def _(axis_size, is_batched, number):
  del axis_size, is_batched
  return jnp.max(number), False


def split(rows: base.PyTree, num_microbatches: int) -> base.PyTree:
  """Returns `[M, B / M, ...]`; microbatch m has the rows m, m + M, ...

  With this order, each device holds an equal share of each microbatch.
  """

  def split(leaf):
    return leaf.reshape(-1, num_microbatches, *leaf.shape[1:]).swapaxes(0, 1)

  return jax.tree.map(split, rows)


def join(microbatches: base.PyTree) -> base.PyTree:
  """Inverts `split`."""
  return jax.tree.map(
    lambda leaf: leaf.swapaxes(0, 1).reshape(-1, *leaf.shape[2:]), microbatches
  )


def _pad(rows: base.PyTree, num_microbatches: int) -> base.PyTree:
  """Returns rows followed by zeros, up to `padded_rows` of the current mesh."""
  num_parts = mesh.num_current_parts('rows')

  def pad(leaf):
    num_rows = leaf.shape[0]
    end = padded_rows(num_rows, num_microbatches, num_parts)
    widths = [(0, end - num_rows)] + [(0, 0)] * (leaf.ndim - 1)
    return jnp.pad(leaf, widths)

  return jax.tree.map(pad, rows)
