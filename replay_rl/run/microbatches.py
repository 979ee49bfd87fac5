"""How the rows of an update are cut into microbatches."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from replay_rl import base
from replay_rl.lm import model
from replay_rl.parallel import mesh

# (params, tokens [B, T]) -> log-probability of each token given those before,
# and entropy of that distribution in nats, `[B, T]` each
LogprobsFn = Callable[[base.PyTree, base.Array], tuple[base.Array, base.Array]]


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
  *,
  num_microbatches: int,
) -> base.Array:
  """Returns the log-probabilities of tokens, as an update computes them.

  Args:
    logprobs_fn: scores tokens.
    params: weights.
    tokens: `[B, T]` int32.
    num_microbatches: parts that are scored one after the other.

  Returns:
    `[B, T]` float32, without a gradient.
  """
  untied = model.untie(params)
  logprobs = jax.lax.map(
    lambda rows: logprobs_fn(untied, rows)[0],
    split(_pad(tokens, num_microbatches), num_microbatches),
  )
  return jax.lax.stop_gradient(join(logprobs)[: tokens.shape[0]])


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
  devices = jax.sharding.get_abstract_mesh()
  num_parts = 1 if devices.empty else mesh.num_parts(devices, 'rows')

  def pad(leaf):
    num_rows = leaf.shape[0]
    end = padded_rows(num_rows, num_microbatches, num_parts)
    widths = [(0, end - num_rows)] + [(0, 0)] * (leaf.ndim - 1)
    return jnp.pad(leaf, widths)

  return jax.tree.map(pad, rows)
