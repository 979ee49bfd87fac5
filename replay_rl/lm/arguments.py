"""What a generation is given: its checks, and which weights sample a token."""

from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from replay_rl import base
from replay_rl.lm import architecture
from replay_rl.lm import model
from replay_rl.parallel import mesh as mesh_lib


class Spans(NamedTuple):
  """Which of N weights sample each token: the K spans of a response.

  A worker of an asynchronous system gets new weights while it writes. Its cache
  keeps the keys and values that earlier weights made.

  slots: `[K]` int32, index of the weights of each span.
  first_tokens: `[K]` int32, first token of each span, in order. The first is 0.
    A span that starts where the next one does, or after the last token, samples
    nothing.
  """

  slots: base.Array
  first_tokens: base.Array

  def slots_of_tokens(self, max_new_tokens: int) -> base.Array:
    """Returns the index of the weights of each token of a response, `[R]`."""
    spans_R = jnp.searchsorted(
      self.first_tokens, jnp.arange(max_new_tokens), side='right'
    )
    return self.slots[spans_R - 1]


def weights_of(
  config: architecture.TransformerConfig,
  params: base.PyTree,
  spans: Spans | None,
) -> Callable[[base.Array | int], base.PyTree]:
  """Returns the function that gives the weights of a span."""

  def prepared(params):
    # Before any loop over tokens, and once for each span.
    return model.unstack(model.rounded(config, params))

  if spans is None:
    whole = prepared(params)
    return lambda span: whole
  return lambda span: prepared(
    jax.tree.map(lambda leaf: leaf[spans.slots[span]], params)
  )


def as_input(value: base.Scalar | None) -> base.Array | None:
  """Returns a scalar as an array, and None as None."""
  # Otherwise jit would compile anew for an int, a float and an array.
  return None if value is None else jnp.asarray(value, jnp.float32)


def check_tokens(
  config: architecture.TransformerConfig,
  *,
  eos_ids: tuple[int, ...],
  pad_id: int | None,
  top_k: int | None,
) -> None:
  """Raises ValueError for tokens outside of the vocabulary.

  Args:
    config: of the model.
    eos_ids, top_k: see `sampler.generate`.
    pad_id: see there; None if nothing is padded.
  """
  padding = () if pad_id is None else (('pad_id', (pad_id,)),)
  for name, tokens in (('eos_ids', eos_ids), *padding):
    if not tokens or not all(0 <= t < config.vocab_size for t in tokens):
      raise ValueError(
        f'{name} = {tokens}: must be at least one token in '
        f'[0, {config.vocab_size})'
      )
  if top_k is not None and top_k > config.vocab_size:
    raise ValueError(
      f'top_k = {top_k}: must be at most vocab_size = {config.vocab_size}'
    )


def check_rows(
  config: architecture.TransformerConfig,
  prompts: base.Prompts,
  rollout_id: base.Array,
  *,
  max_new_tokens: int,
  num_slots: int | None,
) -> None:
  """Raises ValueError for rows that do not fit the model, or each other.

  Args:
    config: of the model.
    prompts, rollout_id, max_new_tokens, num_slots: see `sampler.generate`.
  """
  chex.assert_rank([prompts.tokens, prompts.lengths, rollout_id], [2, 1, 1])
  chex.assert_type([prompts.tokens, prompts.lengths], jnp.int32)
  chex.assert_type(rollout_id, jnp.uint32)
  chex.assert_equal_shape_prefix([prompts.tokens, prompts.lengths], 1)
  num_prompts, prompt_columns = prompts.tokens.shape
  num_rows = rollout_id.shape[0]
  if prompt_columns + max_new_tokens > config.max_context:
    raise ValueError(
      f'max_new_tokens = {max_new_tokens}: must be at most max_context = '
      f'{config.max_context} less the {prompt_columns} columns of prompts'
    )
  if num_rows % num_prompts:
    raise ValueError(
      f'rollout_id = {num_rows} ids: must be a multiple of the {num_prompts} '
      'prompts'
    )
  num_parts = mesh_lib.num_current_parts('rows')
  if num_slots is not None and num_slots % num_parts:
    raise ValueError(
      f'num_slots = {num_slots}: must be a multiple of {num_parts}, the parts '
      'into which the mesh splits rows'
    )


def check_one_span(num_slots: int, spans: Spans) -> None:
  """Raises ValueError if the weights change during a response in a slot."""
  if spans.slots.shape[0] > 1:
    raise ValueError(
      f'num_slots = {num_slots}: must be None with several spans, whose tokens '
      'have the same number in all rows'
    )
