"""Terms of the reward of any task, from what the verifier and the sampler say.

Each term takes the fields of `Verdicts`, in their order, and returns `[B]`
float32. Terms add, and constants are bound by name:

  functools.partial(rewards.soft_overlong, max_length=1024, cache_length=256)
"""

from collections.abc import Callable
from typing import Annotated
from typing import NamedTuple

import chex
import jax.numpy as jnp

from replay_rl import base
from replay_rl import constants

Length = Annotated[int, constants.interval('[1, inf)')]
Weight = Annotated[float, constants.interval('[0, 1000000]')]
# (fields of `Verdicts`, as NumPy or JAX arrays) -> term `[B]`
RewardTerm = Callable[..., base.Array]


class Verdicts(NamedTuple):
  """What a term reads.

  is_correct: `[B]` float32, 1 for a right answer, else 0; of a reward function
    of a user, what it returned, see `verify.scoring`.
  is_formatted: `[B]` float32, 1 for a response with a complete boxed answer,
    else 0. A task that is judged in JAX does not have it.
  lengths: `[B]` int32, sampled tokens of each response.
  is_finished: `[B]` bool, True where the response ended with end-of-sequence.
  """

  is_correct: base.Array
  is_formatted: base.Array
  lengths: base.Array
  is_finished: base.Array


def correctness(
  is_correct: base.Array,
  is_formatted: base.Array,
  lengths: base.Array,
  is_finished: base.Array,
) -> base.Array:
  """Returns `is_correct`: 1 for a right answer, else 0."""
  _check(is_correct, is_formatted, lengths, is_finished)
  return jnp.asarray(is_correct, jnp.float32)


@constants.checked
def format_bonus(
  is_correct: base.Array,
  is_formatted: base.Array,
  lengths: base.Array,
  is_finished: base.Array,
  *,
  weight: Weight,
) -> base.Array:
  """Returns `weight` for a complete boxed answer, right or wrong, else 0.

  Raises:
    ValueError: `weight` is outside its interval.
  """
  _check(is_correct, is_formatted, lengths, is_finished)
  return weight * jnp.asarray(is_formatted, jnp.float32)


@constants.checked
def soft_overlong(
  is_correct: base.Array,
  is_formatted: base.Array,
  lengths: base.Array,
  is_finished: base.Array,
  *,
  max_length: Length,
  cache_length: Length,
) -> base.Array:
  """Returns a penalty that falls from 0 to -1 over the last allowed tokens.

  The penalty is 0 up to `max_length - cache_length` tokens, then linear in the
  length, and -1 from `max_length` on, and for every response that was cut off.
  Yu et al., 'DAPO', 2025, https://arxiv.org/abs/2503.14476, Eq. 13 (with 20,480
  and 4,096).

  Args:
    is_correct: see `Verdicts`.
    is_formatted: see `Verdicts`.
    lengths: see `Verdicts`.
    is_finished: see `Verdicts`.
    max_length: tokens of the shortest response with the whole penalty.
    cache_length: tokens over which the penalty grows, at most `max_length`.

  Raises:
    ValueError: a constant is outside its interval, or `cache_length` exceeds
      `max_length`.
  """
  _check(is_correct, is_formatted, lengths, is_finished)
  if cache_length > max_length:
    raise ValueError(
      f'cache_length = {cache_length}: must be at most max_length = '
      f'{max_length}'
    )
  excess = lengths - (max_length - cache_length)
  share = jnp.clip(excess, 0, cache_length).astype(jnp.float32) / cache_length
  return jnp.where(is_finished, -share, -1.0)


@constants.checked
def truncation_penalty(
  is_correct: base.Array,
  is_formatted: base.Array,
  lengths: base.Array,
  is_finished: base.Array,
  *,
  weight: Weight,
) -> base.Array:
  """Returns -`weight` for a response that was cut off, else 0.

  Raises:
    ValueError: `weight` is outside its interval.
  """
  _check(is_correct, is_formatted, lengths, is_finished)
  return jnp.where(is_finished, 0.0, -weight).astype(jnp.float32)


def _check(*arrays: base.Array) -> None:
  # A column would broadcast in silence.
  chex.assert_rank(arrays, 1)
  chex.assert_equal_shape(arrays)
