"""Addition, with all numbers written least significant digit first.

The right answer to '321+989=', which asks for 123 + 989, is '2111'. The
distance from a digit of the answer to the two digits that it adds is always the
same, and carries move forward: a model of two layers learns addition in a few
hundred steps.

Operands are zero-padded to n digits, and answers to n + 1 digits, which
end-of-sequence follows. The teacher forgets carries: the longer the carry
chain, the more there is to learn beyond imitation.
"""

import functools
from typing import Annotated

import chex
import jax
import jax.numpy as jnp
import numpy as np

from replay_rl import base
from replay_rl import constants
from replay_rl.tasks import task

# Tokens 0 to 9 are the digits.
PLUS, EQUALS, EOS, PAD = 10, 11, 12, 13
SYMBOLS = (*'0123456789+=', '<eos>', '_')
VOCAB_SIZE = 32

NumDigits = Annotated[int, constants.interval('[1, 1000]')]
Probability = Annotated[base.Scalar, constants.FRACTION]


@constants.checked
def make(
  *, num_digits: NumDigits, forget_probability: Probability
) -> task.Task:
  """Returns the task of adding two numbers.

  Args:
    num_digits: n, digits of each operand.
    forget_probability: how often the teacher drops a carry that arises.

  Returns:
    A task with L = 2n + 2 and R = n + 3, one token more than a right answer.

  Raises:
    ValueError: a constant is outside its interval.
  """
  return task.Task(
    shape=task.Shape(
      vocab_size=VOCAB_SIZE,
      prompt_length=2 * num_digits + 2,
      max_new_tokens=num_digits + 3,
      eos_ids=(EOS,),
      pad_id=PAD,
    ),
    prompts_fn=functools.partial(prompts, num_digits=num_digits),
    reward_fn=reward,
    teacher_fn=functools.partial(
      teacher, num_digits=num_digits, forget_probability=forget_probability
    ),
    references_fn=references,
    decode_fn=functools.partial(task.decode, symbols=SYMBOLS),
    describe_fn=describe,
  )


@constants.checked
def prompts(
  rng_key: base.Array, num_prompts: int, *, num_digits: NumDigits
) -> base.Prompts:
  """Returns sums of two numbers drawn uniformly.

  Args:
    rng_key: consumed.
    num_prompts: P.
    num_digits: n.

  Returns:
    Prompts of 2n + 2 tokens. References are the right answers, `[P, n + 1]`
    int32, least significant digit first.
  """
  operands = _operands(rng_key, num_prompts, num_digits)
  is_kept = jnp.ones((num_prompts, num_digits), bool)
  tokens = _prompt_tokens(operands)
  lengths = jnp.full([num_prompts], 2 * num_digits + 2, jnp.int32)
  return base.Prompts(
    tokens=tokens,
    lengths=lengths,
    prompt_id=task.hash_tokens(tokens, lengths),
    references=_add(operands, is_kept),
  )


def references(tokens: base.Array) -> base.Array:
  """Returns the right answers to prompts, `[P, n + 1]` int32.

  Args:
    tokens: `[P, 2n + 2]` int32, as of `prompts`.
  """
  num_digits = tokens.shape[1] // 2 - 1
  left, right = tokens[:, :num_digits], tokens[:, num_digits + 1 : -1]
  return _add(jnp.stack([left, right]), jnp.ones(left.shape, bool))


def describe(answer: np.ndarray) -> str:
  """Returns an answer as it is written, and as people write it.

  Args:
    answer: `[n + 1]` int32, a row of the references.
  """
  written = ''.join(map(str, answer))
  return f'{written} ({int(written[::-1])}, last digit first)'


def reward(
  responses: base.Array, lengths: base.Array, references: base.Array
) -> base.Array:
  """Returns 1 for the right digits followed by end-of-sequence, else 0.

  Args:
    responses: `[B, R]` int32.
    lengths: `[B]` int32, tokens of each response, end-of-sequence included.
    references: `[B, n + 1]` int32, the right digits.

  Returns:
    `[B]` float32.
  """
  chex.assert_rank([responses, lengths, references], [2, 1, 2])
  chex.assert_equal_shape_prefix([responses, lengths, references], 1)
  num_answer_digits = references.shape[1]
  chex.assert_axis_dimension_gt(responses, 1, num_answer_digits)
  is_right = jnp.all(responses[:, :num_answer_digits] == references, axis=1)
  is_ended = responses[:, num_answer_digits] == EOS
  is_exact = is_right & is_ended & (lengths == num_answer_digits + 1)
  return is_exact.astype(jnp.float32)


@constants.checked
def teacher(
  rng_key: base.Array,
  num_rows: int,
  *,
  num_digits: NumDigits,
  forget_probability: Probability,
) -> tuple[base.Array, base.Array]:
  """Returns sums worked out by a teacher that forgets carries.

  Args:
    rng_key: consumed.
    num_rows: B.
    num_digits: n.
    forget_probability: how often a carry is dropped, each time one arises.

  Returns:
    tokens `[B, L + R]` int32 and loss_mask `[B, L + R]` bool, True on the
    answer and its end-of-sequence.
  """
  operands_key, carry_key = jax.random.split(rng_key)
  operands = _operands(operands_key, num_rows, num_digits)
  is_kept = jax.random.bernoulli(
    carry_key, 1.0 - forget_probability, (num_rows, num_digits)
  )
  answers = _add(operands, is_kept)
  return task.demonstrations(
    _prompt_tokens(operands),
    answers,
    jnp.full([num_rows], num_digits + 1),
    max_new_tokens=num_digits + 3,
    eos_id=EOS,
    pad_id=PAD,
  )


def _operands(
  rng_key: base.Array, num_rows: int, num_digits: int
) -> base.Array:
  # Returns [2, B, n], least significant digit first.
  shape = (2, num_rows, num_digits)
  return jax.random.randint(rng_key, shape, 0, 10, jnp.int32)


def _prompt_tokens(operands: base.Array) -> base.Array:
  left, right = operands
  column = functools.partial(jnp.full, (left.shape[0], 1), dtype=jnp.int32)
  return jnp.concatenate([left, column(PLUS), right, column(EQUALS)], axis=1)


def _add(operands: base.Array, is_kept: base.Array) -> base.Array:
  # Adds digit by digit and returns [B, n + 1]. Where is_kept [B, n] is False, a
  # carry that arises at the digit is forgotten.
  # A loop in Python would make the compiler take minutes for 100 digits.

  def add_digit(carry, column):
    total_B, is_kept_B = column
    total_B = total_B + carry
    return (total_B // 10) * is_kept_B, total_B % 10

  totals = operands[0] + operands[1]
  carry, digits = jax.lax.scan(
    add_digit, jnp.zeros_like(totals[:, 0]), (totals.T, is_kept.T)
  )
  return jnp.concatenate([digits.T, carry[:, None]], axis=1)
