"""Tests of replay_rl.tasks.countdown."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl.tasks import countdown
from replay_rl.tasks import task as task_lib

EOS = countdown.EOS
REWARD = jax.jit(countdown.reward)


def is_solution(response, length, numbers, target):
  """The slow twin: reads one response token by token."""
  tokens = [int(t) for t in response[:length]]
  if not tokens or tokens.pop() != EOS or len(tokens) % 2 == 0:
    return False
  operands, operators = tokens[0::2], tokens[1::2]
  if any(t < countdown.ZERO for t in operands):
    return False
  operands = [t - countdown.ZERO for t in operands]
  if sorted(operands) != sorted(numbers):
    return False
  value = operands[0]
  for operator, operand in zip(operators, operands[1:], strict=True):
    if operator == countdown.PLUS:
      value += operand
    elif operator == countdown.MINUS:
      value -= operand
    elif operator == countdown.TIMES:
      value *= operand
    else:
      return False
  return value == target


def length_of(response):
  """Tokens until the sampler stops: at end-of-sequence, or at the last."""
  is_end = response == EOS
  return int(np.argmax(is_end)) + 1 if is_end.any() else len(response)


def twin(responses, lengths, references):
  numbers, targets = (np.asarray(x).tolist() for x in references)
  rows = zip(responses, lengths, numbers, targets, strict=True)
  return [is_solution(*row) for row in rows]


def references_of(prompt_tokens):
  """Reads the prompts again, so as to check the references."""
  tokens = np.asarray(prompt_tokens)
  numbers, colon, target, equals = np.split(tokens, [-3, -2, -1], axis=1)
  np.testing.assert_array_equal(colon, countdown.COLON)
  np.testing.assert_array_equal(equals, countdown.EQUALS)
  return countdown.References(
    numbers=numbers - countdown.ZERO, target=target[:, 0] - countdown.ZERO
  )


class PromptsTest(parameterized.TestCase):
  def test_prompts_show_sorted_numbers_and_the_target(self):
    task = countdown.make(num_numbers=4, max_number=6, slip_probability=0.3)
    prompts = jax.jit(task.prompts_fn, static_argnums=1)(jax.random.key(0), 500)
    self.assertEqual(prompts.tokens.shape, (500, task.shape.prompt_length))
    np.testing.assert_array_equal(prompts.lengths, task.shape.prompt_length)
    shown = references_of(prompts.tokens)
    np.testing.assert_array_equal(shown.numbers, prompts.references.numbers)
    np.testing.assert_array_equal(shown.target, prompts.references.target)
    self.assertTrue((np.diff(shown.numbers, axis=1) >= 0).all())
    self.assertEqual((shown.numbers.min(), shown.numbers.max()), (1, 6))
    self.assertEqual((shown.target.min(), shown.target.max()), (0, 24))

  def test_a_seed_axis_changes_nothing(self):
    task = countdown.make(num_numbers=3, max_number=9, slip_probability=0.3)
    keys = jax.random.split(jax.random.key(0), 2)

    def prompts_fn(rng_key):
      return task.prompts_fn(rng_key, 4)

    actual = jax.device_get(jax.jit(jax.vmap(prompts_fn))(keys))
    hash_tokens = jax.jit(task_lib.hash_tokens)
    for seed in range(2):
      expected = jax.jit(prompts_fn)(keys[seed])
      np.testing.assert_array_equal(actual.tokens[seed], expected.tokens)
      np.testing.assert_array_equal(
        actual.prompt_id[seed], hash_tokens(expected.tokens, expected.lengths)
      )
    self.assertFalse((actual.tokens[0] == actual.tokens[1]).all())


class RewardTest(parameterized.TestCase):
  @parameterized.parameters(
    ('7 - 4 - 2 .', 6, 1.0),
    ('2 * 4 - 7 .', 6, 1.0),
    ('2 - 7 * 4 .', 6, 0.0),  # From left to right: -20.
    ('7 - 4 - 2 2', 6, 0.0),  # No end.
    ('7 - 4 - 2 .', 5, 0.0),  # The sampler stopped before the end.
    ('7 - 4 - 2 .', 7, 0.0),  # The sampler went on.
    ('2 - 2 + 1 .', 6, 0.0),  # Not the numbers given.
    ('7 - 4 2 - .', 6, 0.0),
    ('7 : 4 - 2 .', 6, 0.0),
    ('2 + 4 + 7 .', 6, 0.0),
  )
  def test_reward_by_hand(self, response, length, expected):
    tokens = [
      ('+-*:=._'.index(s) if s in '+-*:=._' else countdown.ZERO + int(s))
      for s in response.split()
    ]
    references = countdown.References(jnp.array([[2, 4, 7]]), jnp.array([1]))
    rewards = REWARD(np.array([tokens]), np.array([length]), references)
    np.testing.assert_array_equal(rewards, [expected])

  @parameterized.parameters(
    ((1, 2), 1, 1),  # 2-1.
    ((1, 2), 2, 2),  # 1*2 and 2*1.
    ((2, 2), 4, 2),  # 2+2 and 2*2.
    ((1, 2), 4, 0),
  )
  def test_reward_of_every_response_to_two_numbers(
    self, numbers, target, num_solutions
  ):
    vocab_size = countdown.ZERO + 4
    responses = np.array(
      list(itertools.product(range(vocab_size), repeat=4)), np.int32
    )
    lengths = np.array([length_of(r) for r in responses], np.int32)
    references = countdown.References(
      numbers=jnp.tile(jnp.array([numbers]), (len(responses), 1)),
      target=jnp.full(len(responses), target),
    )
    rewards = REWARD(responses, lengths, references)
    np.testing.assert_array_equal(rewards, twin(responses, lengths, references))
    self.assertEqual(rewards.sum(), num_solutions)
    self.assertEqual(rewards.dtype, jnp.float32)

  def test_reward_of_damaged_expressions(self):
    # Right and wrong expressions, with some of their tokens replaced.
    task = countdown.make(num_numbers=3, max_number=4, slip_probability=0.3)
    tokens, _ = jax.jit(task.teacher_fn, static_argnums=1)(
      jax.random.key(0), 4000
    )
    tokens = np.asarray(tokens)
    references = references_of(tokens[:, : task.shape.prompt_length])
    responses = tokens[:, task.shape.prompt_length :]
    rng = np.random.default_rng(0)
    noise = rng.integers(0, task.shape.vocab_size, responses.shape)
    is_damaged = rng.random(responses.shape) < 0.1
    responses = np.where(is_damaged, noise, responses).astype(np.int32)
    lengths = np.array([length_of(r) for r in responses], np.int32)
    rewards = np.asarray(
      jax.jit(task.reward_fn)(responses, lengths, references)
    )
    np.testing.assert_array_equal(rewards, twin(responses, lengths, references))
    self.assertBetween(rewards.mean(), 0.2, 0.6)

  def test_numbers_outside_the_vocabulary_are_not_rewarded(self):
    huge, one, two = 2**31 - 1, countdown.ZERO + 1, countdown.ZERO + 2
    responses = jnp.array(
      [
        [huge, countdown.TIMES, huge, EOS],
        [one, -1, two, EOS],
        [one, countdown.PLUS, two, EOS],
      ]
    )
    references = countdown.References(
      numbers=jnp.tile(jnp.array([[1, 2]]), (3, 1)), target=jnp.full(3, 3)
    )
    rewards = REWARD(responses, np.full(3, 4), references)
    np.testing.assert_array_equal(rewards, [0.0, 0.0, 1.0])

  def test_wrong_inputs_raise(self):
    references = countdown.References(jnp.array([[1, 2]]), jnp.array([3]))
    with self.assertRaisesRegex(AssertionError, 'dimension'):
      countdown.reward(jnp.zeros((1, 3), int), jnp.ones(1, int), references)
    with self.assertRaisesRegex(AssertionError, 'shape'):
      countdown.reward(jnp.zeros((2, 4), int), jnp.ones(2, int), references)


@functools.cache
def demonstrate(slip_probability, num_rows=4000):
  """Responses, references and rewards of the teacher, with one key."""
  task = countdown.make(
    num_numbers=3, max_number=9, slip_probability=slip_probability
  )
  tokens, loss_mask = jax.jit(task.teacher_fn, static_argnums=1)(
    jax.random.key(0), num_rows
  )
  np.testing.assert_array_equal(
    loss_mask, np.tile([0] * 6 + [1] * 6, (num_rows, 1))
  )
  tokens = np.asarray(tokens)
  references = references_of(tokens[:, :6])
  rewards = twin(tokens[:, 6:], [6] * num_rows, references)
  return tokens[:, 6:], references, np.array(rewards)


class TeacherTest(parameterized.TestCase):
  def test_every_target_can_be_reached(self):
    responses, _, rewards = demonstrate(0.0)
    self.assertTrue(rewards.all())
    for column in (1, 3):
      shares = np.bincount(responses[:, column]) / len(responses)
      self.assertLen(shares, 3)
      self.assertGreater(shares.min(), 0.1)

  def test_values_on_the_way_stay_within_the_bounds(self):
    responses, references, _ = demonstrate(0.0)
    a, op, b = (responses[:, i] - [7, 0, 7][i] for i in range(3))
    value = np.choose(op, [a + b, a - b, a * b])
    self.assertGreaterEqual(value.min(), 0)
    self.assertEqual(value.max(), 27)
    self.assertEqual(
      (references.target.min(), references.target.max()), (0, 27)
    )

  def test_first_operators_are_uniform_among_the_allowed(self):
    responses, _, _ = demonstrate(0.0)
    a, op, b = (responses[:, i] - [7, 0, 7][i] for i in range(3))
    for is_case, allowed in [
      ((a >= b) & (a * b <= 27), [0, 1, 2]),
      ((a < b) & (a * b <= 27), [0, 2]),
      ((a >= b) & (a * b > 27), [0, 1]),
    ]:
      counts = np.bincount(op[is_case], minlength=3)
      expected = np.isin(range(3), allowed) * is_case.sum() / len(allowed)
      np.testing.assert_allclose(
        counts, expected, atol=5 * np.sqrt(is_case.sum() / 4)
      )

  def test_the_second_operator_does_not_depend_on_the_first(self):
    responses, _, _ = demonstrate(0.0)
    a, first, b, second, c = (responses[:, :5] - [7, 0, 7, 0, 7]).T
    value = np.choose(first, [a + b, a - b, a * b])
    is_free = (a >= b) & (a * b <= 27) & (value >= c) & (value * c <= 27)
    is_equal = first[is_free] == second[is_free]
    tolerance = 5 * np.sqrt(2 / 9 / len(is_equal))
    np.testing.assert_allclose(is_equal.mean(), 1 / 3, atol=tolerance)
    self.assertLess(tolerance, 0.2)

  def test_slips_replace_operators_evenly_and_one_by_one(self):
    right, right_references, _ = demonstrate(0.0)
    slipped, references, _ = demonstrate(0.3)
    # The same key draws the same problems.
    np.testing.assert_array_equal(references.target, right_references.target)
    np.testing.assert_array_equal(slipped[:, 0::2], right[:, 0::2])
    shift = (slipped[:, 1:5:2] - right[:, 1:5:2]) % 3
    shares = np.bincount(shift[:, 0] * 3 + shift[:, 1]) / len(shift)
    np.testing.assert_allclose(
      shares, np.outer([0.7, 0.15, 0.15], [0.7, 0.15, 0.15]).ravel(), atol=0.04
    )

  def test_the_teacher_is_right_only_partly(self):
    # Both operators right: 0.7^2 = 0.49. A slip may be right by chance.
    _, _, rewards = demonstrate(0.3)
    self.assertBetween(rewards.mean(), 0.46, 0.58)
    _, _, rewards = demonstrate(1.0)
    self.assertBetween(rewards.mean(), 0.0, 0.15)


class MakeTest(parameterized.TestCase):
  def test_sizes_of_three_numbers_up_to_eight(self):
    task = countdown.make(num_numbers=3, max_number=8, slip_probability=0.3)
    self.assertEqual(task.shape, (32, 6, 6, (5,), 6))
    tokens = np.array([9, 11, 14, 3, 8, 4, 14, 1, 11, 1, 9, 5, 6, 31, 32])
    self.assertEqual(
      task.decode_fn(tokens), '2 4 7 : 1 = 7 - 4 - 2 <eos> _ 24 ?'
    )

  @parameterized.parameters(
    (1, 9, 0.3, r'num_numbers = 1: must be in \[2, 30\]'),
    (3, 0, 0.3, r'max_number = 0: must be in \[1, inf\)'),
    (4, 256, 0.3, r'max_number \*\* num_numbers = 4294967296: must be below'),
    (31, 1, 0.3, r'num_numbers = 31: must be in \[2, 30\]'),
    (3, 9, 1.1, r'slip_probability = 1.1: must be in \[0, 1\]'),
    (3, 9, -0.1, r'slip_probability = -0.1: must be in \[0, 1\]'),
  )
  def test_wrong_arguments_raise(self, num_numbers, max_number, slip, message):
    with self.assertRaisesRegex(ValueError, message):
      countdown.make(
        num_numbers=num_numbers, max_number=max_number, slip_probability=slip
      )
