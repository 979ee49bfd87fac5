"""A task: prompts, the reward of a response, and a teacher to imitate."""

import dataclasses
from collections.abc import Callable
from collections.abc import Mapping
from typing import Annotated
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from replay_rl import base
from replay_rl import constants
from replay_rl import rng
from replay_rl.tasks import rewards

Size = Annotated[int, constants.interval('[1, inf)')]
TokenId = Annotated[int, constants.interval('[0, inf)')]
# (rng_key, num_prompts) -> prompts. The key is consumed.
PromptsFn = Callable[[base.Array, int], base.Prompts]
# (rng_key, num_rows) -> (tokens [B, T] int32, loss_mask [B, T] bool): prompts
# with the teacher's responses, as in a `Rollout`. The key is consumed.
TeacherFn = Callable[[base.Array, int], tuple[base.Array, base.Array]]


class Shape(NamedTuple):
  """What a model, a sampler and a planner need to know of a task.

  vocab_size: V, tokens the model must be able to emit.
  prompt_length: L, the most tokens of a prompt.
  max_new_tokens: R, the most tokens of a response, end-of-sequence included.
  eos_ids: tokens of which each ends a response.
  pad_id: token after the end of a row.
  """

  vocab_size: int
  prompt_length: int
  max_new_tokens: int
  eos_ids: tuple[int, ...]
  pad_id: int

  @property
  def num_tokens(self) -> int:
    """T = L + R, the most tokens of prompt and response."""
    return self.prompt_length + self.max_new_tokens


@dataclasses.dataclass(frozen=True)
class Task:
  """A task that is judged in JAX. The functions are pure.

  Attributes:
    shape: sizes and special tokens of prompts and responses.
    prompts_fn: draws prompts.
    reward_fn: judges responses: 1 for a right answer, else 0. Evaluations and
      the metric 'accuracy' report this.
    teacher_fn: demonstrations of an imperfect teacher, for the warm start.
    references_fn: what `reward_fn` reads of prompts, from their tokens
      `[P, L]`, as `prompts_fn` returns it.
    decode_fn: one row of tokens, `[n]` NumPy int, as text for people.
    describe_fn: the right answer as text for people, from the references of one
      prompt, as NumPy arrays.
    shaping_fn: the reward for the learner, from what `reward_fn` says and from
      lengths; see `rewards`.
  """

  shape: Shape
  prompts_fn: PromptsFn
  reward_fn: base.RewardFn
  teacher_fn: TeacherFn
  references_fn: Callable[[base.Array], base.PyTree]
  decode_fn: Callable[[np.ndarray], str]
  describe_fn: Callable[[base.PyTree], str]
  shaping_fn: rewards.RewardTerm = rewards.correctness


class Judgement(NamedTuple):
  """What a verifier says of B responses, on the host.

  rewards: `[B]` float32, for the learner.
  is_correct: `[B]` bool, whether the answer is right, for reports.
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
    shape, decode_fn: as of `Task`.
    prompts_fn: the prompts of an iteration, by the arguments alone, so that a
      run that continues sees the prompts that it would have seen.
    eval_prompts_fn: returns a number of prompts to evaluate on, the same at
      every call; None without a set of problems for it.
    judge_fn: judges responses.
    reference_fn: the right answer to the problem of a row number.
    statuses: what the verifier may say of a response.
    sources: SHA-256 of what the task has read, in hexadecimal, by its name.
    users: functions of a user that judge.
    notes: what a user should know of the data, a line each.
    close_fn: ends the processes that judge.
  """

  shape: Shape
  prompts_fn: TextPromptsFn
  eval_prompts_fn: Callable[[int], base.Prompts] | None
  judge_fn: JudgeFn
  reference_fn: Callable[[int], str]
  decode_fn: Callable[[np.ndarray], str]
  statuses: tuple[str, ...]
  sources: Mapping[str, str]
  users: tuple[Callable, ...]
  notes: tuple[str, ...]
  close_fn: Callable[[], None]


def in_jax(task: Task | TextTask) -> Task:
  """Returns the task; raises ValueError if it is judged on the host."""
  if isinstance(task, TextTask):
    raise ValueError('task = TextTask: must be a task that is judged in JAX')
  return task


def notes(task: Task | TextTask) -> tuple[str, ...]:
  """Returns what a user should know of the data, a line each."""
  return task.notes if isinstance(task, TextTask) else ()


def sources(task: Task | TextTask) -> Mapping[str, str]:
  """Returns hashes of the contents that a task read; {} if it read none."""
  return task.sources if isinstance(task, TextTask) else {}


def users(task: Task | TextTask) -> tuple[Callable, ...]:
  """Returns the functions of a user that judge; () for a task in JAX."""
  return task.users if isinstance(task, TextTask) else ()


def close(task: Task | TextTask) -> None:
  """Ends the processes of a task, if it has any."""
  if isinstance(task, TextTask):
    task.close_fn()


def hash_tokens(tokens: base.Array, lengths: base.Array) -> base.Array:
  """Returns a hash of each row's tokens, without its padding.

  Rows that differ have the same hash about once in 2^32 pairs.

  Args:
    tokens: `[P, L]` int32, right-padded.
    lengths: `[P]` int32, tokens of each row.

  Returns:
    `[P]` uint32, for example `Prompts.prompt_id`.
  """
  chex.assert_rank([tokens, lengths], [2, 1])
  chex.assert_equal_shape_prefix([tokens, lengths], 1)
  positions_PL = jax.lax.broadcasted_iota(jnp.uint32, tokens.shape, 1)
  # The factor is odd, so that a token has another hash at each position.
  # Positions start at 1, because `rng.mix` of 0 is 0.
  words_PL = tokens.astype(jnp.uint32) ^ (
    (positions_PL + 1) * jnp.uint32(0x9E3779B9)
  )
  is_token_PL = positions_PL < lengths[:, None].astype(jnp.uint32)
  hashes_PL = jnp.where(is_token_PL, rng.mix(words_PL), jnp.uint32(0))
  return rng.mix(jnp.sum(hashes_PL, axis=1, dtype=jnp.uint32))


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


@constants.checked
def demonstrations(
  prompts: base.Array,
  responses: base.Array,
  response_lengths: base.Array,
  *,
  max_new_tokens: Size,
  eos_id: TokenId,
  pad_id: TokenId,
) -> tuple[base.Array, base.Array]:
  """Returns rows of prompt, response and end-of-sequence, right-padded.

  Args:
    prompts: `[B, L]` int32, all of length L.
    responses: `[B, n]` int32, without end-of-sequence, n < `max_new_tokens`.
    response_lengths: `[B]` int32, how many of the n tokens each response has.
    max_new_tokens: R.
    eos_id: put after each response.
    pad_id: put after that.

  Returns:
    tokens `[B, L + R]` int32 and loss_mask `[B, L + R]` bool, True on the
    response and its end-of-sequence.

  Raises:
    ValueError: a constant is outside its interval, or a response and its
      end-of-sequence are longer than `max_new_tokens`.
  """
  chex.assert_rank([prompts, responses, response_lengths], [2, 2, 1])
  chex.assert_equal_shape_prefix([prompts, responses, response_lengths], 1)
  prompt_length = prompts.shape[1]
  num_padding = max_new_tokens - responses.shape[1]
  if num_padding < 1:
    raise ValueError(
      f'max_new_tokens = {max_new_tokens}: must exceed the '
      f'{responses.shape[1]} tokens of a response'
    )
  positions_T = jnp.arange(prompt_length + max_new_tokens)[None, :]
  ends_B1 = prompt_length + response_lengths[:, None]
  tokens_BT = jnp.pad(
    jnp.concatenate([prompts, responses], axis=1), ((0, 0), (0, num_padding))
  )
  tokens_BT = jnp.where(positions_T < ends_B1, tokens_BT, pad_id)
  tokens_BT = jnp.where(positions_T == ends_B1, eos_id, tokens_BT)
  return tokens_BT, (positions_T >= prompt_length) & (positions_T <= ends_B1)
