"""Tests of replay_rl.tasks.modular_arithmetic."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl.tasks import modular_arithmetic
from replay_rl.tasks import task as task_lib

EOS, PAD = modular_arithmetic.EOS, modular_arithmetic.PAD
REWARD = jax.jit(modular_arithmetic.reward)
_SETTINGS = {
  'max_operations': 4,
  'modulus': 7,
  'direct_probability': 0.5,
  'stop_probability': 0.25,
  'slip_probability': 0.0,
}


def make(**changes):
  return modular_arithmetic.make(**_SETTINGS | changes)


def tokens_of(text, modulus=7):
  """Reads the text of tokens, such as '3 +4 . =', without their names."""
  tokens = {'#': 0, '=': 1, '$': 2, '_': 3, '.': 4}
  tokens |= {str(value): 5 + value for value in range(modulus)}
  for place, operator in enumerate('+-*'):
    for operand in range(1, modulus):
      number = place * (modulus - 1) + operand - 1
      tokens[f'{operator}{operand}'] = 5 + modulus + number
  return [tokens[word] for word in text.split()]


def values_of(prompt, modulus):
  """The slow twin: the start and the value after each operation of a text."""
  start, *operations, equals = prompt.split()
  assert equals == '='
  values = [int(start)]
  for operation in operations:
    if operation == '.':
      continue
    operand = int(operation[1:])
    match operation[0]:
      case '+':
        value = values[-1] + operand
      case '-':
        value = values[-1] - operand
      case '*':
        value = values[-1] * operand
    values.append(value % modulus)
  return values


def is_right(response, length, answer):
  """The slow twin: reads one response from its end."""
  words = [int(token) for token in response[:length]]
  if words.count(0) != 1 or len(words) < 3:
    return False
  return words[-3:] == [0, 5 + int(answer), 2]


def length_of(response):
  """Tokens until the sampler stops: at end-of-sequence, or at the last."""
  is_end = response == EOS
  return int(np.argmax(is_end)) + 1 if is_end.any() else len(response)


class PromptsTest(parameterized.TestCase):
  @parameterized.parameters((1, 2), (4, 7), (12, 10), (60, 10_000))
  def test_references_are_those_of_the_slow_twin(self, max_operations, modulus):
    task = make(max_operations=max_operations, modulus=modulus)
    prompts = jax.jit(task.prompts_fn, static_argnums=1)(jax.random.key(0), 200)
    self.assertEqual(prompts.tokens.shape, (200, task.shape.prompt_length))
    np.testing.assert_array_equal(prompts.lengths, max_operations + 2)
    rows = np.asarray(prompts.tokens), np.asarray(prompts.references)
    counts = set()
    for tokens, reference in zip(*rows, strict=True):
      text = task.decode_fn(tokens)
      values = values_of(text, modulus)
      self.assertEqual(reference, values[-1], text)
      counts.add(len(values) - 1)
      # Blanks come after all operations.
      self.assertNotRegex(text, r'\. [+*-]')
    self.assertContainsSubset({1, max_operations}, counts)
    self.assertLessEqual(max(counts), max_operations)

  @parameterized.parameters(
    ('3 +4 *2 -6 =', [3, 0, 0, 1]),
    ('0 -5 . . =', [0, 2]),
    ('6 *6 +1 . =', [6, 1, 2]),
  )
  def test_the_slow_twin_by_hand(self, prompt, values):
    self.assertEqual(values_of(prompt, 7), values)

  def test_start_operations_and_their_number_are_uniform(self):
    task = make(max_operations=3, modulus=5)
    prompts_fn = jax.jit(task.prompts_fn, static_argnums=1)
    prompts = jax.device_get(prompts_fn(jax.random.key(0), 6000))
    tokens = prompts.tokens
    places = (
      (tokens[:, 0], range(5, 10)),  # The start.
      (tokens[:, 1], range(10, 22)),  # The first operation, always there.
      (tokens[:, 3][tokens[:, 3] != 4], range(10, 22)),
      ((tokens[:, 1:4] != 4).sum(1), range(1, 4)),
    )
    for values, allowed in places:
      found, counts = np.unique(values, return_counts=True)
      self.assertEqual(found.tolist(), list(allowed))
      expected = len(values) / len(allowed)
      np.testing.assert_allclose(counts, expected, atol=5 * expected**0.5)
    np.testing.assert_array_equal(tokens[:, 4], modular_arithmetic.EQUALS)

  def test_jit_and_a_seed_axis_change_nothing_and_ids_hash_the_tokens(self):
    task = make()
    keys = jax.random.split(jax.random.key(0), 2)
    actual = jax.device_get(
      jax.jit(jax.vmap(lambda key: task.prompts_fn(key, 4)))(keys)
    )
    for seed in range(2):
      one = task.prompts_fn(keys[seed], 4)
      for name in ('tokens', 'lengths', 'prompt_id', 'references'):
        np.testing.assert_array_equal(
          getattr(actual, name)[seed], getattr(one, name)
        )
      np.testing.assert_array_equal(
        one.prompt_id, task_lib.hash_tokens(one.tokens, one.lengths)
      )
      self.assertEqual(one.tokens.dtype, jnp.int32)
    self.assertFalse((actual.tokens[0] == actual.tokens[1]).all())


class RewardTest(parameterized.TestCase):
  @parameterized.parameters(
    ('# 1 $ _ _ _ _ _', 3, 1.0),  # At once.
    ('3 0 0 1 # 1 $ _', 7, 1.0),  # All values.
    ('6 6 # 1 $ _ _ _', 5, 1.0),  # Nobody judges the scratch.
    ('+3 = . # 1 $ _ _', 6, 1.0),
    ('# 2 $ _ _ _ _ _', 3, 0.0),  # Wrong.
    ('3 0 0 1 # 2 $ _', 7, 0.0),
    ('1 $ _ _ _ _ _ _', 2, 0.0),  # No marker.
    ('3 1 $ _ _ _ _ _', 3, 0.0),
    ('# $ _ _ _ _ _ _', 2, 0.0),  # No answer.
    ('$ _ _ _ _ _ _ _', 1, 0.0),
    ('# 2 # 1 $ _ _ _', 5, 0.0),  # Two markers.
    ('# # 1 $ _ _ _ _', 4, 0.0),
    ('# 1 1 $ _ _ _ _', 4, 0.0),  # A token after the answer.
    ('3 0 0 1 3 3 # 1', 8, 0.0),  # Truncated before the end.
    ('3 0 0 1 # 1 3 3', 8, 0.0),
    ('3 0 0 1 3 # 1 3', 8, 0.0),  # No end in the place of the end.
    ('# 1 $ _ _ _ _ _', 2, 0.0),  # The sampler stopped before the end.
    ('# 1 $ _ _ _ _ _', 4, 0.0),  # The sampler went on.
    ('# 1 $ # _ _ _ _', 3, 1.0),  # Tokens after the end do not count.
  )
  def test_reward_by_hand(self, response, length, expected):
    arguments = np.array([tokens_of(response)]), np.array([length])
    for reward in (REWARD, modular_arithmetic.reward):
      rewards = reward(*arguments, np.array([1]))
      np.testing.assert_array_equal(rewards, [expected])
      self.assertEqual(rewards.dtype, jnp.float32)

  def test_reward_of_damaged_responses(self):
    task = make(direct_probability=0.3, modulus=3)
    length = task.shape.prompt_length
    tokens, _ = jax.jit(task.teacher_fn, static_argnums=1)(
      jax.random.key(0), 6000
    )
    tokens = np.asarray(tokens)
    answers = np.array(
      [values_of(task.decode_fn(row[:length]), 3)[-1] for row in tokens]
    )
    rng = np.random.default_rng(0)
    responses = tokens[:, length:]
    # Markers, ends and values are frequent among what replaces tokens.
    noise = rng.choice([0, 2, 5, 6, 7, 4, 9], responses.shape)
    is_damaged = rng.random(responses.shape) < 0.15
    responses = np.where(is_damaged, noise, responses).astype(np.int32)
    lengths = np.array([length_of(row) for row in responses], np.int32)
    rewards = jax.jit(task.reward_fn)(responses, lengths, answers)
    rows = zip(responses, lengths, answers, strict=True)
    expected = [is_right(*row) for row in rows]
    np.testing.assert_array_equal(rewards, expected)
    self.assertBetween(np.mean(expected), 0.2, 0.7)

  def test_wrong_inputs_raise(self):
    with self.assertRaisesRegex(AssertionError, 'shape'):
      modular_arithmetic.reward(
        jnp.zeros((2, 6), int), jnp.ones(2, int), jnp.ones(1, int)
      )
    with self.assertRaisesRegex(AssertionError, 'rank'):
      modular_arithmetic.reward(
        jnp.zeros((2, 6), int), jnp.ones(2, int), jnp.ones((2, 1), int)
      )


@functools.cache
def demonstrate(num_rows=4000, **changes):
  """Rows of the teacher: values by the slow twin, scratch and answer."""
  task = make(**changes)
  tokens, loss_mask = jax.jit(task.teacher_fn, static_argnums=1)(
    jax.random.key(3), num_rows
  )
  rows, modulus = [], (_SETTINGS | changes)['modulus']
  length = task.shape.prompt_length
  for row, is_response in zip(
    np.asarray(tokens), np.asarray(loss_mask), strict=True
  ):
    end = length + length_of(row[length:])
    np.testing.assert_array_equal(
      is_response, (np.arange(len(row)) >= length) & (np.arange(len(row)) < end)
    )
    np.testing.assert_array_equal(row[end:], PAD)
    *scratch, marker, answer, eos = task.decode_fn(row[length:end]).split()
    assert (marker, eos) == ('#', '<eos>')
    values = values_of(task.decode_fn(row[:length]), modulus)
    rows.append((values, [int(x) for x in scratch], int(answer)))
  return rows


class TeacherTest(parameterized.TestCase):
  def test_without_slips_it_is_always_right_whatever_it_writes(self):
    for values, scratch, answer in demonstrate():
      self.assertEqual(answer, values[-1])
      self.assertEqual(scratch, values[: len(scratch)])

  def test_the_reward_of_a_teacher_without_slips_is_1(self):
    task = make(max_operations=9, modulus=10)
    rng_key = jax.random.key(0)
    tokens, loss_mask = jax.jit(task.teacher_fn, static_argnums=1)(rng_key, 500)
    problem_key = jax.random.split(rng_key, 4)[0]
    prompts = task.prompts_fn(problem_key, 500)
    np.testing.assert_array_equal(tokens[:, :11], prompts.tokens)
    rewards = REWARD(tokens[:, 11:], loss_mask.sum(1), prompts.references)
    np.testing.assert_array_equal(rewards, 1.0)

  def test_how_many_values_it_writes(self):
    counts = np.zeros((5, 6))
    for values, scratch, _ in demonstrate():
      counts[len(values) - 1, len(scratch)] += 1
    for num_operations in range(1, 5):
      total = counts[num_operations].sum()
      # None: .5. Then it stops after each with .25, and writes n + 1 at most.
      shares = [0.5] + [
        0.5 * 0.75 ** (k - 1) * (1 if k == num_operations + 1 else 0.25)
        for k in range(1, num_operations + 2)
      ]
      np.testing.assert_allclose(sum(shares), 1.0)
      np.testing.assert_allclose(
        counts[num_operations, : len(shares)] / total,
        shares,
        atol=5 * np.sqrt(0.25 / total),
      )
      self.assertEqual(counts[num_operations, len(shares) :].sum(), 0)

  @parameterized.parameters(
    ({'direct_probability': 1.0}, lambda n: 0),
    ({'direct_probability': 0.0, 'stop_probability': 1.0}, lambda n: 1),
    ({'direct_probability': 0.0, 'stop_probability': 0.0}, lambda n: n + 1),
  )
  def test_it_can_write_none_one_or_all(self, changes, expected):
    for values, scratch, _ in demonstrate(num_rows=300, **changes):
      self.assertLen(scratch, expected(len(values) - 1))

  def test_each_operation_slips_on_its_own_and_evenly(self):
    rows = demonstrate(
      num_rows=8000,
      max_operations=2,
      modulus=3,
      direct_probability=0.0,
      stop_probability=0.0,
      slip_probability=0.3,
    )
    prompts = demonstrate(
      num_rows=8000,
      max_operations=2,
      modulus=3,
      direct_probability=0.0,
      stop_probability=0.0,
    )
    shifts = []
    for (values, scratch, answer), (same, _, _) in zip(
      rows, prompts, strict=True
    ):
      self.assertEqual(values, same)  # The same key draws the same problems.
      self.assertEqual(scratch[0], values[0])  # The start is only copied.
      self.assertEqual(answer, scratch[-1])
      shifts.append((scratch[1] - values[1]) % 3)
    np.testing.assert_allclose(
      np.bincount(shifts) / 8000, [0.7, 0.15, 0.15], atol=0.03
    )
    # The second operation goes on from the first one's result, and slips alone.
    one_operation = [row for row in rows if len(row[0]) == 2]
    two = [row for row in rows if len(row[0]) == 3]
    right = [scratch == values for values, scratch, _ in two]
    np.testing.assert_allclose(np.mean(right), 0.7**2, atol=0.04)
    right = [scratch == values for values, scratch, _ in one_operation]
    np.testing.assert_allclose(np.mean(right), 0.7, atol=0.04)

  def test_a_slip_in_the_head_makes_the_answer_wrong(self):
    rows = demonstrate(direct_probability=1.0, slip_probability=1.0, modulus=2)
    for values, _, answer in rows:
      # Modulo 2 each operation of the teacher is wrong, and the only operand,
      # 1, keeps or flips the value: n slips flip it n times.
      self.assertEqual((answer - values[-1]) % 2, (len(values) - 1) % 2)

  def test_responses_differ_in_length_by_more_than_a_factor_of_three(self):
    rows = demonstrate(max_operations=10)
    lengths = {}
    for values, scratch, _ in rows:
      lengths.setdefault(len(values) - 1, []).append(len(scratch) + 3)
    self.assertEqual(min(map(min, lengths.values())), 3)
    self.assertEqual(max(map(max, lengths.values())), 14)
    self.assertGreater(np.mean(lengths[10]), 1.2 * np.mean(lengths[1]))


class MakeTest(parameterized.TestCase):
  def test_sizes_and_symbols(self):
    task = make()
    self.assertEqual(task.shape, (30, 6, 9, (EOS,), PAD))
    tokens = np.array(tokens_of('3 +4 *6 -1 . = 0 # 6 $ _') + [30])
    self.assertEqual(task.decode_fn(tokens), '3 +4 *6 -1 . = 0 # 6 <eos> _ ?')

  def test_the_longest_response_of_the_teacher_leaves_one_token(self):
    task = make(direct_probability=0.0, stop_probability=0.0)
    tokens, loss_mask = task.teacher_fn(jax.random.key(0), 50)
    self.assertEqual(tokens.shape, (50, task.shape.num_tokens))
    self.assertEqual(loss_mask.sum(1).max(), task.shape.max_new_tokens - 1)

  @parameterized.parameters(
    ({'max_operations': 0}, r'max_operations = 0: must be in \[1, 1000\]'),
    ({'max_operations': 1001}, r'max_operations = 1001: must be in \[1, 1000'),
    ({'modulus': 1}, r'modulus = 1: must be in \[2, 10000\]'),
    ({'modulus': 10_001}, r'modulus = 10001: must be in \[2, 10000\]'),
    *(
      ({f'{name}_probability': value}, f'{name}_probability = {value}: must be')
      for name in ('direct', 'stop', 'slip')
      for value in (-0.1, 1.1)
    ),
  )
  def test_wrong_arguments_raise(self, changes, message):
    with self.assertRaisesRegex(ValueError, message):
      make(**changes)
