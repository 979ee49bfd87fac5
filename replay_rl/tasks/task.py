"""A task: prompts, the reward of a response, and a teacher to imitate."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

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
  """A task that is judged in JAX; all functions but the last are pure.

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


class Judgement(NamedTuple):
  """What a verifier says of B responses, on the host.

  rewards: `[B]` float32, to learn from.
  is_correct: `[B]` bool, the answer alone, to report.
  statuses: `[B]` str, each one of the task's `statuses`.
  """

  rewards: np.ndarray
  is_correct: np.ndarray
  statuses: np.ndarray


# (seed, iteration, num_prompts) -> prompts of NumPy arrays, whose references
# are the row numbers of their problems, `[P]` int32.
TextPromptsFn = Callable[[int, int, int], base.Prompts]
# (responses [B, R], lengths [B], is_finished [B], references [B]) -> judgement
JudgeFn = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], Judgement]


@dataclasses.dataclass(frozen=True)
class TextTask:
  """A task in text, whose responses are judged on the host.

  Attributes:
    vocab_size, prompt_length, max_new_tokens, eos_ids, pad_id, decode_fn: as
      of `Task`.
    prompts_fn: the prompts of an iteration. A function of its arguments alone:
      a run that is resumed sees the prompts it would have seen.
    eval_prompts_fn: that many prompts to evaluate on, the same at every call;
      None without a set of problems for it.
    judge_fn: judges responses.
    reference_fn: the right answer to the problem of a row number.
    statuses: what the verifier may say of a response.
    notes: what a user should know of the data, a line each.
    close_fn: ends the processes that judge.
  """

  vocab_size: int
  prompt_length: int
  max_new_tokens: int
  eos_ids: tuple[int, ...]
  pad_id: int
  prompts_fn: TextPromptsFn
  eval_prompts_fn: Callable[[int], base.Prompts] | None
  judge_fn: JudgeFn
  reference_fn: Callable[[int], str]
  decode_fn: Callable[[np.ndarray], str]
  statuses: tuple[str, ...]
  notes: tuple[str, ...]
  close_fn: Callable[[], None]


def in_jax(task: Task | TextTask) -> Task:
  """Returns the task; raises ValueError if it is judged on the host."""
  if isinstance(task, TextTask):
    raise ValueError('a task in text cannot be judged in JAX')
  return task


def notes(task: Task | TextTask) -> tuple[str, ...]:
  """Returns what a user should know of the data, a line each."""
  return task.notes if isinstance(task, TextTask) else ()


def close(task: Task | TextTask) -> None:
  """Ends the processes of a task, if it has any."""
  if isinstance(task, TextTask):
    task.close_fn()


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
