"""A task: prompts, the reward of a response, and a teacher to imitate."""

import dataclasses
from collections.abc import Callable

import chex
import jax.numpy as jnp
import numpy as np

from replay_rl import base

# (rng_key, num_prompts) -> prompts. The key is consumed.
PromptsFn = Callable[[base.Array, int], base.Prompts]
# (rng_key, num_rows) -> (tokens [B, T] int32, loss_mask [B, T] bool): prompts
# with the teacher's responses, laid out as in a `Rollout`. The key is consumed.
TeacherFn = Callable[[base.Array, int], tuple[base.Array, base.Array]]


@dataclasses.dataclass(frozen=True)
class Task:
  """Where prompts and rewards come from; all functions but the last are pure.

  Attributes:
    vocab_size: V, tokens the model must be able to emit.
    prompt_length: L, the most tokens of a prompt.
    max_new_tokens: R, the most tokens of a response, end-of-sequence included.
    eos_ids: tokens of which each ends a response.
    pad_id: token after the end of a row.
    prompts_fn: draws prompts.
    reward_fn: judges responses; zero for whatever it cannot read.
    teacher_fn: demonstrations of an imperfect teacher, for the warm start.
    decode_fn: one row of tokens, `[n]` NumPy int, as text for people.
  """

  vocab_size: int
  prompt_length: int
  max_new_tokens: int
  eos_ids: tuple[int, ...]
  pad_id: int
  prompts_fn: PromptsFn
  reward_fn: base.RewardFn
  teacher_fn: TeacherFn
  decode_fn: Callable[[np.ndarray], str]


def decode(tokens: np.ndarray, *, symbols: tuple[str, ...]) -> str:
  """Returns the symbols of the tokens, joined; '?' for a token without one.

  Args:
    tokens: `[n]` int.
    symbols: the text of each token from 0 on.

  Returns:
    The text, special tokens included.
  """
  chex.assert_rank(tokens, 1)
  chex.assert_type(tokens, int)
  return ''.join(symbols[t] if 0 <= t < len(symbols) else '?' for t in tokens)


def demonstrations(
  prompts: base.Array,
  responses: base.Array,
  *,
  max_new_tokens: int,
  eos_id: int,
  pad_id: int,
) -> tuple[base.Array, base.Array]:
  """Returns rows of prompt, response and end-of-sequence, right-padded.

  Args:
    prompts: `[B, L]` int32, all of length L.
    responses: `[B, n]` int32, without end-of-sequence, n < `max_new_tokens`.
    max_new_tokens: R.
    eos_id: put after each response.
    pad_id: put after that.

  Returns:
    tokens `[B, L + R]` int32 and loss_mask `[B, L + R]` bool, True on the
    response and its end-of-sequence.

  Raises:
    ValueError: if a response and its end-of-sequence are too long.
  """
  chex.assert_rank([prompts, responses], 2)
  chex.assert_equal_shape_prefix([prompts, responses], 1)
  num_rows, prompt_length = prompts.shape
  num_padding = max_new_tokens - responses.shape[1] - 1
  if num_padding < 0:
    raise ValueError(
      f'max_new_tokens = {max_new_tokens}, must exceed the '
      f'{responses.shape[1]} tokens of a response.'
    )
  tail = jnp.array([eos_id] + [pad_id] * num_padding, jnp.int32)
  tails = jnp.tile(tail, (num_rows, 1))
  tokens = jnp.concatenate([prompts, responses, tails], axis=1)
  positions = jnp.arange(prompt_length + max_new_tokens)
  is_response = positions >= prompt_length
  is_padding = positions >= tokens.shape[1] - num_padding
  return tokens, jnp.tile(is_response & ~is_padding, (num_rows, 1))
