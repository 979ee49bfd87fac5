"""Modular arithmetic, where a response may show its work before its answer.

The prompt '3 +4 *2 -6 . . =' asks for ((3 + 4) * 2 - 6) mod m. The operations
apply from left to right, and each is one token. A prompt has n operations, from
1 to N, and N - n blanks, so that all prompts have the same length.

A response ends with the marker '#', the answer and end-of-sequence: '# 1 <eos>'
modulo 7, or '3 0 0 1 # 1 <eos>'. What comes before the marker, the scratch, is
not judged. The teacher writes there the value at the start and after each
operation. With these values each token needs one operation; without them the
answer needs all operations at once. So long prompts need long responses, and a
short response to them is a guess: 3 to N + 4 tokens, and n + 4 with all values.

The task is 'Modular Arithmetic (Simple)' of Deletang et al., 2022,
https://arxiv.org/abs/2207.02098, without precedence. Operands are not 0, so
with a prime m the answer depends on each operation. The scratch is that of Nye
et al., 2021, https://arxiv.org/abs/2112.00114. The teacher answers many prompts
at once, stops writing values early in others, and slips at operations.
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

MARKER, EQUALS, EOS, PAD, BLANK, ZERO = range(6)
# Token ZERO + v is the value v. The operations follow the m values: those of
# the first operator with the operands 1 to m - 1, then those of the second.
OPERATORS = '+-*'

MaxOperations = Annotated[int, constants.interval('[1, 1000]')]
# Products of two values fit int32.
Modulus = Annotated[int, constants.interval('[2, 10000]')]
Probability = Annotated[base.Scalar, constants.FRACTION]


class Problems(NamedTuple):
  """What prompts ask for.

  start: `[B]` int32, the first value.
  operators: `[B, N]` int32, indices in `OPERATORS`.
  operands: `[B, N]` int32, from 1 to m - 1.
  num_operations: `[B]` int32, n; the other operations of a row are not used.
  """

  start: base.Array
  operators: base.Array
  operands: base.Array
  num_operations: base.Array


@constants.checked
def make(
  *,
  max_operations: MaxOperations,
  modulus: Modulus,
  direct_probability: Probability,
  stop_probability: Probability,
  slip_probability: Probability,
) -> task.Task:
  """Returns the task of applying operations modulo `modulus`.

  Args:
    max_operations: N, the most operations of a prompt.
    modulus: m.
    direct_probability: how often the teacher writes no value.
    stop_probability: see `teacher`.
    slip_probability: how often the teacher gets an operation wrong.

  Returns:
    A task with L = N + 2, R = N + 5 and V = ZERO + 4m - 3. R is one token more
    than the longest response of the teacher.

  Raises:
    ValueError: a constant is outside its interval.
  """
  return task.Task(
    shape=task.Shape(
      vocab_size=ZERO + modulus + len(OPERATORS) * (modulus - 1),
      prompt_length=max_operations + 2,
      max_new_tokens=max_operations + 5,
      eos_ids=(EOS,),
      pad_id=PAD,
    ),
    prompts_fn=functools.partial(
      prompts, max_operations=max_operations, modulus=modulus
    ),
    reward_fn=reward,
    teacher_fn=functools.partial(
      teacher,
      max_operations=max_operations,
      modulus=modulus,
      direct_probability=direct_probability,
      stop_probability=stop_probability,
      slip_probability=slip_probability,
    ),
    references_fn=functools.partial(references, modulus=modulus),
    decode_fn=functools.partial(task.decode, symbols=_symbols(modulus)),
    describe_fn=lambda of_prompt: f'# {of_prompt}',
  )


@constants.checked
def prompts(
  rng_key: base.Array,
  num_prompts: int,
  *,
  max_operations: MaxOperations,
  modulus: Modulus,
) -> base.Prompts:
  """Returns prompts; start, operations and their number are uniform.

  Args:
    rng_key: consumed.
    num_prompts: P.
    max_operations: N.
    modulus: m.

  Returns:
    Prompts of N + 2 tokens. References are the right answers, `[P]` int32.
  """
  problems = _problems(rng_key, num_prompts, max_operations, modulus)
  tokens = _prompt_tokens(problems, modulus)
  lengths = jnp.full([num_prompts], max_operations + 2, jnp.int32)
  return base.Prompts(
    tokens=tokens,
    lengths=lengths,
    prompt_id=task.hash_tokens(tokens, lengths),
    references=_answers(problems, modulus),
  )


def references(tokens: base.Array, *, modulus: int) -> base.Array:
  """Returns the right answers to prompts, `[P]` int32.

  Args:
    tokens: `[P, N + 2]` int32, as of `prompts`.
    modulus: m.
  """
  operations_PN = tokens[:, 1:-1]
  numbers_PN = operations_PN - ZERO - modulus
  problems = Problems(
    start=tokens[:, 0] - ZERO,
    operators=numbers_PN // (modulus - 1),
    operands=numbers_PN % (modulus - 1) + 1,
    num_operations=jnp.sum(operations_PN != BLANK, axis=1),
  )
  return _answers(problems, modulus)


def reward(
  responses: base.Array, lengths: base.Array, references: base.Array
) -> base.Array:
  """Returns 1 for a response that ends with one marker and the right answer.

  Args:
    responses: `[B, R]` int32.
    lengths: `[B]` int32, tokens of each response, end-of-sequence included.
    references: `[B]` int32, the right answers.

  Returns:
    `[B]` float32, 0 for a response with another answer, with no marker or with
    several, without end-of-sequence, or with a token between these.
  """
  chex.assert_rank([responses, lengths, references], [2, 1, 1])
  chex.assert_equal_shape_prefix([responses, lengths, references], 1)
  places_BR = lengths[:, None] - jnp.arange(responses.shape[1])[None, :]

  def ends_with(tokens: base.Scalar, place: int) -> base.Array:
    # Returns [B]; the last token of a response has the place 1.
    return jnp.any((places_BR == place) & (responses == tokens), axis=1)

  num_markers_B = jnp.sum((responses == MARKER) & (places_BR > 0), axis=1)
  is_right_B = (
    (num_markers_B == 1)
    & ends_with(MARKER, 3)
    & ends_with(references[:, None] + ZERO, 2)
    & ends_with(EOS, 1)
  )
  return is_right_B.astype(jnp.float32)


@constants.checked
def teacher(
  rng_key: base.Array,
  num_rows: int,
  *,
  max_operations: MaxOperations,
  modulus: Modulus,
  direct_probability: Probability,
  stop_probability: Probability,
  slip_probability: Probability,
) -> tuple[base.Array, base.Array]:
  """Returns responses with none, some or all values before the answer.

  Args:
    rng_key: consumed.
    num_rows: B.
    max_operations: N.
    modulus: m.
    direct_probability: how often the teacher writes no value.
    stop_probability: how often the teacher stops writing values, after each
      value that it writes. It does the other operations in its head.
    slip_probability: how often an operation, written or not, gets one of its
      m - 1 wrong results. The teacher goes on from there.

  Returns:
    tokens `[B, L + R]` int32 and loss_mask `[B, L + R]` bool, True on the
    response and its end-of-sequence.
  """
  problem_key, stop_key, slip_key, shift_key = jax.random.split(rng_key, 4)
  problems = _problems(problem_key, num_rows, max_operations, modulus)
  shape = problems.operands.shape
  is_slip_BN = jax.random.bernoulli(slip_key, slip_probability, shape)
  shifts_BN = jax.random.randint(shift_key, shape, 1, modulus, jnp.int32)
  values = _values(problems, is_slip_BN * shifts_BN, modulus)
  is_first = jnp.arange(max_operations + 1)[None, :] == 0
  is_stop = jax.random.bernoulli(
    stop_key,
    jnp.where(is_first, direct_probability, stop_probability),
    values.shape,
  )
  num_before_stop_B = jnp.sum(jnp.cumsum(is_stop, axis=1) == 0, axis=1)
  num_written_B = jnp.minimum(num_before_stop_B, problems.num_operations + 1)
  responses = jnp.pad(values + ZERO, ((0, 0), (0, 2)))
  rows_B = jnp.arange(num_rows)
  answers_B = _last(values, problems) + ZERO
  responses = responses.at[rows_B, num_written_B].set(MARKER)
  responses = responses.at[rows_B, num_written_B + 1].set(answers_B)
  return task.demonstrations(
    _prompt_tokens(problems, modulus),
    responses,
    num_written_B + 2,
    max_new_tokens=max_operations + 5,
    eos_id=EOS,
    pad_id=PAD,
  )


def _problems(
  rng_key: base.Array, num_rows: int, max_operations: int, modulus: int
) -> Problems:
  keys = jax.random.split(rng_key, 4)
  draw = functools.partial(jax.random.randint, dtype=jnp.int32)
  rows, shape = (num_rows,), (num_rows, max_operations)
  return Problems(
    start=draw(keys[0], rows, 0, modulus),
    operators=draw(keys[1], shape, 0, len(OPERATORS)),
    operands=draw(keys[2], shape, 1, modulus),
    num_operations=draw(keys[3], rows, 1, max_operations + 1),
  )


def _values(problems: Problems, shifts: base.Array, modulus: int) -> base.Array:
  # Returns [B, N + 1], the value at the start and after each operation. For
  # slips, `shifts` [B, N] are added to the results of the operations.

  def operate(values_B, columns):
    operators_B, operands_B, shifts_B = columns
    results_B = jnp.select(
      [operators_B == i for i in range(len(OPERATORS))],
      [values_B + operands_B, values_B - operands_B, values_B * operands_B],
    )
    values_B = (results_B + shifts_B) % modulus
    return values_B, values_B

  columns = (problems.operators.T, problems.operands.T, shifts.T)
  _, results_NB = jax.lax.scan(operate, problems.start, columns)
  return jnp.concatenate([problems.start[:, None], results_NB.T], axis=1)


def _answers(problems: Problems, modulus: int) -> base.Array:
  no_shifts = jnp.zeros_like(problems.operands)
  return _last(_values(problems, no_shifts, modulus), problems)


def _last(values: base.Array, problems: Problems) -> base.Array:
  # Returns [B], the value after the last operation of each row.
  places_B1 = problems.num_operations[:, None]
  return jnp.take_along_axis(values, places_B1, axis=1)[:, 0]


def _prompt_tokens(problems: Problems, modulus: int) -> base.Array:
  num_rows, max_operations = problems.operands.shape
  numbers_BN = problems.operators * (modulus - 1) + problems.operands - 1
  places_N = jnp.arange(max_operations)[None, :]
  is_blank_BN = places_N >= problems.num_operations[:, None]
  operations_BN = jnp.where(is_blank_BN, BLANK, ZERO + modulus + numbers_BN)
  starts_B1 = problems.start[:, None] + ZERO
  equals_B1 = jnp.full((num_rows, 1), EQUALS, jnp.int32)
  return jnp.concatenate([starts_B1, operations_BN, equals_B1], axis=1)


def _symbols(modulus: int) -> tuple[str, ...]:
  values = (f'{value} ' for value in range(modulus))
  operations = (
    f'{operator}{operand} '
    for operator in OPERATORS
    for operand in range(1, modulus)
  )
  return ('# ', '= ', '<eos> ', '_ ', '. ', *values, *operations)
