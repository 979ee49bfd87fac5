"""Countdown: reach the target with each of the given numbers, used once.

The prompt '2 4 7 : 1 =' asks for an expression such as '7-4-2' or '2*4-7'. An
expression is read strictly from left to right, without precedence: '2+4*7' is
42. A number is one token, so a response has n numbers, n - 1 operators between
them, and end-of-sequence. There is no division.

The numbers of a prompt are sorted. The target is the value of an expression
with a random order and random operators, so each prompt has a solution. No
value on the way to the target is below 0 or above n * max_number; a response
may leave that range. The teacher knows this expression, but slips at operators.
"""

import functools
from typing import Annotated
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from replay_rl import base
from replay_rl import constants
from replay_rl.tasks import task

# The operators come first, so that a token is also the operator's index.
PLUS, MINUS, TIMES, COLON, EQUALS, EOS, PAD, ZERO = range(8)
SYMBOLS = ('+ ', '- ', '* ', ': ', '= ', '<eos> ', '_ ')
# Token ZERO + v is the number v.

# With 31 numbers, even those up to 2 could exceed int32.
NumNumbers = Annotated[int, constants.interval('[2, 30]')]
Probability = Annotated[base.Scalar, constants.FRACTION]


class References(NamedTuple):
  """What the verifier reads: numbers `[B, n]` int32, sorted, target `[B]`."""

  numbers: base.Array
  target: base.Array


@constants.checked
def make(
  *,
  num_numbers: NumNumbers,
  max_number: task.Size,
  slip_probability: Probability,
) -> task.Task:
  """Returns the Countdown task with numbers from 1 to `max_number`.

  Args:
    num_numbers: n, numbers of a prompt.
    max_number: the largest number of a prompt.
    slip_probability: how often the teacher writes a wrong operator.

  Returns:
    A task with L = n + 3, R = 2n and V = ZERO + n * max_number + 1.

  Raises:
    ValueError: a constant is outside its interval, or an expression could
      exceed int32.
  """
  if (largest := max(max_number, 2) ** num_numbers) >= 2**31:
    raise ValueError(
      f'max_number ** num_numbers = {largest}: must be below 2 ** 31'
    )
  max_value = num_numbers * max_number
  numbers = tuple(f'{value} ' for value in range(max_value + 1))
  return task.Task(
    shape=task.Shape(
      vocab_size=ZERO + max_value + 1,
      prompt_length=num_numbers + 3,
      max_new_tokens=2 * num_numbers,
      eos_ids=(EOS,),
      pad_id=PAD,
    ),
    prompts_fn=functools.partial(
      prompts, num_numbers=num_numbers, max_number=max_number
    ),
    reward_fn=reward,
    teacher_fn=functools.partial(
      teacher,
      num_numbers=num_numbers,
      max_number=max_number,
      slip_probability=slip_probability,
    ),
    references_fn=references,
    decode_fn=functools.partial(task.decode, symbols=SYMBOLS + numbers),
    describe_fn=lambda of_prompt: f'anything that gives {of_prompt.target}',
  )


@constants.checked
def prompts(
  rng_key: base.Array,
  num_prompts: int,
  *,
  num_numbers: NumNumbers,
  max_number: task.Size,
) -> base.Prompts:
  """Returns solvable prompts.

  Args:
    rng_key: consumed.
    num_prompts: P.
    num_numbers: n.
    max_number: the largest number.

  Returns:
    Prompts of n + 3 tokens, with `References`.
  """
  references, _, _ = _problems(
    rng_key, num_prompts, num_numbers=num_numbers, max_number=max_number
  )
  tokens = _prompt_tokens(references)
  lengths = jnp.full([num_prompts], num_numbers + 3, jnp.int32)
  return base.Prompts(
    tokens=tokens,
    lengths=lengths,
    prompt_id=task.hash_tokens(tokens, lengths),
    references=references,
  )


def references(tokens: base.Array) -> References:
  """Returns what prompts ask for.

  Args:
    tokens: `[P, n + 3]` int32, as of `prompts`.
  """
  return References(numbers=tokens[:, :-3] - ZERO, target=tokens[:, -2] - ZERO)


def reward(
  responses: base.Array, lengths: base.Array, references: References
) -> base.Array:
  """Returns 1 for an expression that uses each number and hits the target.

  Args:
    responses: `[B, R]` int32.
    lengths: `[B]` int32, tokens of each response, end-of-sequence included.
    references: the numbers and the target.

  Returns:
    `[B]` float32, 0 for anything that is not such an expression.
  """
  chex.assert_rank([responses, lengths, *references], [2, 1, 2, 1])
  chex.assert_equal_shape_prefix([responses, lengths, *references], 1)
  end = 2 * references.numbers.shape[1] - 1
  chex.assert_axis_dimension_gt(responses, 1, end)
  numbers = responses[:, 0:end:2] - ZERO
  operators = responses[:, 1:end:2]
  # For tokens that are no numbers or operators, `_evaluate` returns some
  # integer. It does not matter: the first two conditions are then False.
  uses_each_once = jnp.all(
    jnp.sort(numbers, axis=1) == references.numbers, axis=1
  )
  is_operator = (operators >= PLUS) & (operators <= TIMES)
  is_ended = (responses[:, end] == EOS) & (lengths == end + 1)
  hits_target = _evaluate(numbers, operators) == references.target
  is_right = (
    uses_each_once & jnp.all(is_operator, axis=1) & is_ended & hits_target
  )
  return is_right.astype(jnp.float32)


@constants.checked
def teacher(
  rng_key: base.Array,
  num_rows: int,
  *,
  num_numbers: NumNumbers,
  max_number: task.Size,
  slip_probability: Probability,
) -> tuple[base.Array, base.Array]:
  """Returns expressions by a teacher that slips at each operator on its own.

  Args:
    rng_key: consumed.
    num_rows: B.
    num_numbers: n.
    max_number: the largest number.
    slip_probability: how often one of the other two operators replaces an
      operator. The value may stay right by chance.

  Returns:
    tokens `[B, L + R]` int32 and loss_mask `[B, L + R]` bool, True on the
    expression and its end-of-sequence.
  """
  problem_key, slip_key, shift_key = jax.random.split(rng_key, 3)
  references, numbers, operators = _problems(
    problem_key, num_rows, num_numbers=num_numbers, max_number=max_number
  )
  is_slip = jax.random.bernoulli(slip_key, slip_probability, operators.shape)
  shift = jax.random.randint(shift_key, operators.shape, 1, 3, jnp.int32)
  operators = jnp.where(is_slip, (operators + shift) % 3, operators)
  expressions = jnp.zeros((num_rows, 2 * num_numbers - 1), jnp.int32)
  expressions = expressions.at[:, 0::2].set(numbers + ZERO)
  expressions = expressions.at[:, 1::2].set(operators)
  return task.demonstrations(
    _prompt_tokens(references),
    expressions,
    jnp.full([num_rows], 2 * num_numbers - 1),
    max_new_tokens=2 * num_numbers,
    eos_id=EOS,
    pad_id=PAD,
  )


def _problems(
  rng_key: base.Array, num_rows: int, *, num_numbers: int, max_number: int
) -> tuple[References, base.Array, base.Array]:
  # Also returns the numbers [B, n] and operators [B, n - 1] of a solution, in
  # its order. Each operator is uniform among those that keep the value within
  # [0, n * max_number]. At least one does: as n >= 2, a value that is too large
  # for a sum is large enough for a difference.
  numbers_key, operators_key = jax.random.split(rng_key)
  numbers = jax.random.randint(
    numbers_key, (num_rows, num_numbers), 1, max_number + 1, jnp.int32
  )
  noise = jax.random.gumbel(operators_key, (num_numbers - 1, num_rows, 3))
  value = numbers[:, 0]
  operators = []
  for position in range(1, num_numbers):
    results = _results(value, numbers[:, position])
    is_allowed = (results >= 0) & (results <= num_numbers * max_number)
    scores = jnp.where(is_allowed, noise[position - 1], -jnp.inf)
    operators.append(jnp.argmax(scores, axis=1).astype(jnp.int32))
    value = _choose(results, operators[-1])
  references = References(numbers=jnp.sort(numbers, axis=1), target=value)
  return references, numbers, jnp.stack(operators, axis=1)


def _evaluate(numbers: base.Array, operators: base.Array) -> base.Array:
  # Returns [B], read from left to right.
  value = numbers[:, 0]
  for position in range(operators.shape[1]):
    results = _results(value, numbers[:, position + 1])
    value = _choose(results, operators[:, position])
  return value


def _results(left: base.Array, right: base.Array) -> base.Array:
  # Returns [B, 3], for PLUS, MINUS and TIMES.
  return jnp.stack([left + right, left - right, left * right], axis=1)


def _choose(results: base.Array, operators: base.Array) -> base.Array:
  return jnp.take_along_axis(results, operators[:, None], axis=1)[:, 0]


def _prompt_tokens(references: References) -> base.Array:
  numbers, target = references
  column = functools.partial(jnp.full, (numbers.shape[0], 1), dtype=jnp.int32)
  target_tokens = target[:, None] + ZERO
  return jnp.concatenate(
    [numbers + ZERO, column(COLON), target_tokens, column(EQUALS)], axis=1
  )
