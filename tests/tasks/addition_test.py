"""Tests of replay_rl.tasks.addition."""

import functools
import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl.tasks import addition

REWARD = jax.jit(addition.reward)


def text(tokens):
  return ''.join(addition.SYMBOLS[t] for t in tokens)


def answer(prompt, forget=lambda position: False):
  """The slow twin: adds the numbers of '21+43=' as a child does."""
  left, right = prompt[:-1].split('+')
  digits, carry = '', 0
  for position, (a, b) in enumerate(zip(left, right, strict=True)):
    carry, digit = divmod(int(a) + int(b) + carry, 10)
    digits += str(digit)
    if carry and forget(position):
      carry = 0
  return digits + str(carry)


def num_carries(prompt):
  carries = []
  answer(prompt, lambda position: carries.append(position))
  return len(carries)


def length_of(response):
  """Tokens until the sampler stops: at end-of-sequence, or at the last."""
  is_end = response == addition.EOS
  return int(np.argmax(is_end)) + 1 if is_end.any() else len(response)


class PromptsTest(parameterized.TestCase):
  # Compiled digit by digit, a hundred would take a minute.
  @parameterized.parameters(1, 3, 12, 100)
  def test_references_are_the_sum(self, num_digits):
    task = addition.make(num_digits=num_digits, forget_probability=0.5)
    prompts = jax.jit(task.prompts_fn, static_argnums=1)(jax.random.key(0), 200)
    self.assertEqual(prompts.tokens.shape, (200, task.shape.prompt_length))
    np.testing.assert_array_equal(prompts.lengths, task.shape.prompt_length)
    rows = np.asarray(prompts.tokens), np.asarray(prompts.references)
    for tokens, reference in zip(*rows, strict=True):
      left, right = task.decode_fn(tokens)[:-1].split('+')
      total = f'{int(left[::-1]) + int(right[::-1]):0{num_digits + 1}}'
      self.assertEqual(text(reference), total[::-1])

  def test_operands_are_uniform_and_each_prompt_has_its_own_id(self):
    task = addition.make(num_digits=2, forget_probability=0.5)
    prompts_fn = jax.jit(task.prompts_fn, static_argnums=1)
    prompts = jax.device_get(prompts_fn(jax.random.key(0), 4000))
    tokens, prompt_id = prompts.tokens, prompts.prompt_id
    _, first, again = np.unique(
      tokens, axis=0, return_index=True, return_inverse=True
    )
    self.assertBetween(len(first), 3000, 3999)
    self.assertLen(np.unique(prompt_id), len(first))
    np.testing.assert_array_equal(prompt_id[first][again.ravel()], prompt_id)
    for column in (0, 1, 3, 4):
      counts = np.bincount(tokens[:, column], minlength=10)
      # Five standard deviations of a count of 400 in 4000.
      np.testing.assert_allclose(counts, 400, atol=95)
    np.testing.assert_array_equal(tokens[:, 2], addition.PLUS)
    np.testing.assert_array_equal(tokens[:, 5], addition.EQUALS)

  def test_jit_and_a_seed_axis_change_nothing(self):
    task = addition.make(num_digits=3, forget_probability=0.5)
    keys = jax.random.split(jax.random.key(0), 2)

    def prompts_fn(rng_key):
      return task.prompts_fn(rng_key, 4)

    actual = jax.device_get(jax.jit(jax.vmap(prompts_fn))(keys))
    for seed in range(2):
      chex.assert_trees_all_equal(
        jax.tree.map(lambda leaf, seed=seed: leaf[seed], actual),
        jax.jit(prompts_fn)(keys[seed]),
      )
    self.assertFalse((actual.tokens[0] == actual.tokens[1]).all())


class RewardTest(parameterized.TestCase):
  @parameterized.parameters(
    ('0321<eos>_', 5, 1.0),  # 1230, least significant digit first.
    ('0321<eos>_', 6, 0.0),  # The sampler went on.
    ('0321<eos>_', 4, 0.0),  # The sampler stopped before the end.
    ('0321__', 6, 0.0),  # No end.
    ('03210_', 5, 0.0),  # A digit in the place of the end.
    ('03210<eos>', 6, 0.0),  # A digit too many.
    ('032<eos>__', 4, 0.0),  # A digit too few.
    ('0311<eos>_', 5, 0.0),  # A forgotten carry.
    ('1230<eos>_', 5, 0.0),  # Most significant digit first.
  )
  def test_reward_by_hand(self, response, length, expected):
    symbols = response.replace('<eos>', '$')
    tokens = np.array([['0123456789+=$_'.index(s) for s in symbols]])
    actual = REWARD(tokens, np.array([length]), np.array([[0, 3, 2, 1]]))
    np.testing.assert_array_equal(actual, [expected])

  def test_reward_of_every_response_to_one_digit_sums(self):
    responses = np.array(list(itertools.product(range(14), repeat=4)), np.int32)
    lengths = np.array([length_of(r) for r in responses], np.int32)
    for prompt in ('0+0=', '7+5='):
      right = answer(prompt) + '<eos>'
      expected = [
        text(r[:length]) == right
        for r, length in zip(responses, lengths, strict=True)
      ]
      reference = np.array([int(d) for d in answer(prompt)], np.int32)
      references = np.tile(reference, (len(responses), 1))
      rewards = REWARD(responses, lengths, references)
      np.testing.assert_array_equal(rewards, expected)
      # What follows the end does not matter, and there is one such token.
      self.assertEqual(rewards.sum(), 14)
      self.assertEqual(rewards.dtype, jnp.float32)

  def test_responses_without_room_for_an_answer_raise(self):
    with self.assertRaisesRegex(AssertionError, 'dimension'):
      addition.reward(
        jnp.zeros((1, 4), int), jnp.ones(1, int), jnp.zeros((1, 4), int)
      )
    with self.assertRaisesRegex(AssertionError, 'shape'):
      addition.reward(
        jnp.zeros((2, 6), int), jnp.ones(2, int), jnp.zeros((1, 4), int)
      )


@functools.cache
def demonstrate(forget_probability, num_rows):
  """Prompts and answers of the teacher, as text."""
  task = addition.make(num_digits=3, forget_probability=forget_probability)
  tokens, loss_mask = jax.jit(task.teacher_fn, static_argnums=1)(
    jax.random.key(1), num_rows
  )
  tokens = np.asarray(tokens)
  np.testing.assert_array_equal(
    loss_mask, np.tile([0] * 8 + [1] * 5 + [0], (num_rows, 1))
  )
  np.testing.assert_array_equal(tokens[:, 12], addition.EOS)
  np.testing.assert_array_equal(tokens[:, 13], addition.PAD)
  return [(text(row[:8]), text(row[8:12])) for row in tokens]


class TeacherTest(parameterized.TestCase):
  @parameterized.parameters(0.0, 1.0)
  def test_a_teacher_that_never_or_always_forgets(self, forget_probability):
    for prompt, actual in demonstrate(forget_probability, 300):
      expected = answer(prompt, lambda _: bool(forget_probability))
      self.assertEqual(actual, expected)

  def test_each_carry_is_forgotten_on_its_own(self):
    rows = demonstrate(0.25, 8000)
    is_right = np.array([answer(prompt) == actual for prompt, actual in rows])
    carries = np.array([num_carries(prompt) for prompt, _ in rows])
    for count in range(4):
      right = is_right[carries == count]
      p = 0.75**count
      tolerance = 5 * np.sqrt(p * (1 - p) / len(right))
      np.testing.assert_allclose(right.mean(), p, atol=tolerance)

  def test_wrong_answers_are_those_of_some_forgotten_carry(self):
    for prompt, actual in demonstrate(0.5, 8000)[:300]:
      reachable = {
        answer(prompt, lambda position, f=forgotten: f[position])
        for forgotten in itertools.product([False, True], repeat=3)
      }
      self.assertIn(actual, reachable)


class MakeTest(parameterized.TestCase):
  def test_sizes_of_three_digits(self):
    task = addition.make(num_digits=3, forget_probability=0.5)
    self.assertEqual(task.shape, (32, 8, 6, (addition.EOS,), addition.PAD))
    self.assertEqual(task.shape.num_tokens, 14)
    tokens = np.array([addition.EOS, addition.PAD])
    self.assertEqual(task.decode_fn(tokens), '<eos>_')
    self.assertEqual(task.decode_fn(np.array([1, 10, 2, 11, 31])), '1+2=?')

  @parameterized.parameters(
    (0, 0.5, r'num_digits = 0: must be in \[1, 1000\]'),
    (1001, 0.5, r'num_digits = 1001: must be in \[1, 1000\]'),
    (3, -0.1, r'forget_probability = -0.1: must be in \[0, 1\]'),
    (3, 1.5, r'forget_probability = 1.5: must be in \[0, 1\]'),
  )
  def test_wrong_arguments_raise(self, num_digits, probability, message):
    with self.assertRaisesRegex(ValueError, message):
      addition.make(num_digits=num_digits, forget_probability=probability)
