"""Estimates the bytes that the programs of a run need while they run.

It traces the functions of the model on the shapes of one device's share.

  kept for the backward pass: the residuals of `jax.vjp` of the model's
    log-probabilities, which depend on remat and logits_chunk.
  working set: `WORKING` times the largest result of a matrix product, which is
    one of logits, attention scores or the inside of the feed-forward layer.
    XLA fuses the operations around it, or holds a few arrays of its size.
    Products that are kept for the backward pass are not counted again.
  copies of weights: the largest array that does not grow with the rows, such as
    the embedding cast to the compute dtype.
"""

import functools
import math
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp

from replay_rl.lm import architecture
from replay_rl.lm import cache as cache_lib
from replay_rl.lm import model
from replay_rl.lm import sampler
from replay_rl.lm import scoring
from replay_rl.run import placement
from replay_rl.run import state
from replay_rl.tasks import task as task_lib

# Arrays of the largest size that exist at once: for a chunk of logits these are
# the logits, their softmax and the gradients of both. Tests compare with XLA.
WORKING = 4


class SampledRows(NamedTuple):
  """Rows of a program that generates, on one device.

  responses: all of them.
  prompts: those that prefill reads.
  slots: responses that are written at a time.
  """

  responses: int
  prompts: int
  slots: int


def activations(
  transformer: architecture.TransformerConfig,
  *,
  num_rows: int,
  chunk_size: int | None,
  remat: bool,
) -> dict[str, int]:
  """Returns the bytes of a forward and backward pass, gradients excluded.

  Args:
    transformer: what one device computes.
    num_rows: of a microbatch on one device.
    chunk_size: see `scoring.token_logprobs`.
    remat: see `scoring.token_logprobs`.
  """
  graphdef, params = _init(transformer)
  score = functools.partial(
    scoring.token_logprobs,
    graphdef,
    temperature=1.0,
    chunk_size=chunk_size,
    remat=remat,
  )

  def tokens(num_rows):
    shape = (num_rows, transformer.max_context)
    return jax.ShapeDtypeStruct(shape, jnp.int32)

  def residuals(num_rows):
    def backward(params, tokens):
      return jax.vjp(lambda params: score(params, tokens), params)[1]

    untied = jax.eval_shape(model.untie, params)
    return jax.tree.leaves(jax.eval_shape(backward, untied, tokens(num_rows)))

  # At least two rows, because a program of one row has other operations.
  once, twice = residuals(2 * num_rows), residuals(4 * num_rows)
  largest, copy = _largest(
    lambda factor: jax.make_jaxpr(score)(params, tokens(factor * num_rows)),
    counted=[leaf.shape for leaf in once],
  )
  return {
    # The difference leaves out the weights among the residuals.
    'kept for the backward pass': (
      sum(map(num_bytes, twice)) - sum(map(num_bytes, once))
    )
    // 2,
    'learner working set': WORKING * largest,
    'copies of weights': copy,
  }


def weights_to_sample_with(
  transformer: architecture.TransformerConfig,
  mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh,
  sampler_mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh,
) -> int:
  """Returns the bytes of the weights that generation makes from the learner's.

  These are the weights of another type, see `model.rounded`, and those of which
  a device of the sampler has another part.

  Args:
    transformer: the whole one.
    mesh: the devices of the learner.
    sampler_mesh: the devices that generate.
  """
  _, params = _init(transformer)
  rounded = jax.eval_shape(
    functools.partial(model.rounded, transformer), params
  )

  def parts(params, mesh):
    """Returns type and shape of what a device has of each weight."""
    places = placement.of_params(model.logical_axes(transformer), mesh)
    return [
      (leaf.dtype, place.shard_shape(leaf.shape))
      for leaf, place in zip(
        *map(jax.tree.leaves, (params, places)), strict=True
      )
    ]

  return sum(
    math.prod(shape) * dtype.itemsize
    for (dtype, shape), learned in zip(
      parts(rounded, sampler_mesh), parts(params, mesh), strict=True
    )
    if (dtype, shape) != learned
  )


def sampling(
  transformer: architecture.TransformerConfig,
  shape: task_lib.Shape,
  rows: SampledRows,
) -> dict[str, int]:
  """Returns the bytes that generation needs beside `weights_to_sample_with`.

  Args:
    transformer: what one device computes.
    shape: the lengths of prompts and responses.
    rows: of one device.
  """
  graphdef, params = _init(transformer)
  params = jax.eval_shape(functools.partial(model.rounded, transformer), params)

  def trace(factor):
    responses, prompts, slots = (factor * number for number in rows)
    generate = functools.partial(
      sampler.generate,
      graphdef,
      max_new_tokens=shape.max_new_tokens,
      eos_ids=(0,),
      pad_id=0,
      temperature=1.0,
      top_k=None,
      top_p=None,
      num_slots=slots,
    )
    return jax.make_jaxpr(generate)(
      params,
      jax.random.key(0),
      jax.eval_shape(lambda: state.empty_prompts(shape, prompts)),
      jax.ShapeDtypeStruct((responses,), jnp.uint32),
    )

  largest, copy = _largest(trace, counted=())
  return held_by_sampling(transformer, shape, rows) | {
    'sampler working set': WORKING * largest,
    'copies of weights': copy,
  }


def held_by_sampling(
  transformer: architecture.TransformerConfig,
  shape: task_lib.Shape,
  rows: SampledRows,
) -> dict[str, int]:
  """Returns the bytes that generation needs whatever the compiler does.

  Args:
    transformer: what one device computes.
    shape: the lengths of prompts and responses.
    rows: of one device.
  """

  def cache_bytes(num_rows, num_columns):
    cache = jax.eval_shape(
      lambda: cache_lib.init(
        transformer, batch_size=num_rows, num_columns=num_columns
      )
    )
    return sum(map(num_bytes, jax.tree.leaves(cache)))

  # Tokens of the prompts; tokens, log-probabilities and mask of the rows.
  of_row = 4 * shape.prompt_length + (4 + 4 + 1) * shape.num_tokens
  held = {
    'KV cache': cache_bytes(rows.slots, shape.num_tokens - 1),
    'prompts and responses': rows.responses * of_row,
  }
  if rows.slots < rows.responses:
    held['KV cache of prompts'] = cache_bytes(rows.prompts, shape.prompt_length)
  return held


def num_bytes(array: Any) -> int:
  """Returns the bytes of an array or of a `jax.ShapeDtypeStruct`."""
  return math.prod(array.shape) * array.dtype.itemsize


def _init(transformer: architecture.TransformerConfig):
  return jax.eval_shape(
    functools.partial(model.init, transformer), jax.random.key(0)
  )


def _largest(
  trace: Callable[[int], Any], *, counted: Collection[tuple[int, ...]]
) -> tuple[int, int]:
  """Returns the bytes of the largest product and of the largest weight copy.

  Args:
    trace: factor -> the program, for that many times the rows of one device.
    counted: shapes, for twice the rows, of products counted elsewhere.
  """
  once, twice = (_arrays(trace(factor).jaxpr) for factor in (2, 4))
  products, copies = [0], [0]
  for (operation, array), (_, doubled) in zip(once, twice, strict=True):
    growth = (num_bytes(doubled) - num_bytes(array)) // 2
    if operation == 'dot_general' and array.shape not in counted:
      products.append(growth)
    if not growth:
      copies.append(num_bytes(array))
  return max(products), max(copies)


def _arrays(jaxpr: Any) -> Iterator[tuple[str, Any]]:
  """Yields the name and the result of each operation of a program."""
  for equation in jaxpr.eqns:
    for value in equation.params.values():
      for inner in value if isinstance(value, (tuple, list)) else (value,):
        inner = getattr(inner, 'jaxpr', inner)
        if hasattr(inner, 'eqns'):
          yield from _arrays(inner)
    for variable in equation.outvars:
      yield equation.primitive.name, variable.aval
