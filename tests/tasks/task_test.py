"""Tests of replay_rl.tasks.task."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl.tasks import task


class TaskTest(parameterized.TestCase):
  def test_decode_shows_tokens_without_a_symbol(self):
    tokens = np.array([1, 0, 2, -1])
    self.assertEqual(task.decode(tokens, symbols=('a', 'b')), 'ba??')

  def test_decode_takes_one_row(self):
    with self.assertRaisesRegex(AssertionError, 'rank'):
      task.decode(np.zeros((2, 3), int), symbols=('a',))

  def test_demonstrations_are_prompt_response_end_and_padding(self):
    tokens, loss_mask = task.demonstrations(
      jnp.array([[1, 2], [3, 4]]),
      jnp.array([[5, 6], [7, 8]]),
      jnp.array([2, 1]),
      max_new_tokens=5,
      eos_id=9,
      pad_id=10,
    )
    np.testing.assert_array_equal(
      tokens, [[1, 2, 5, 6, 9, 10, 10], [3, 4, 7, 9, 10, 10, 10]]
    )
    np.testing.assert_array_equal(
      loss_mask, [[0, 0, 1, 1, 1, 0, 0], [0, 0, 1, 1, 0, 0, 0]]
    )
    self.assertEqual(tokens.dtype, jnp.int32)

  def test_demonstrations_without_room_for_the_end_raise(self):
    with self.assertRaisesRegex(
      ValueError, 'max_new_tokens = 2: must exceed the 2'
    ):
      task.demonstrations(
        jnp.ones((1, 2), int),
        jnp.ones((1, 2), int),
        jnp.ones(1, int),
        max_new_tokens=2,
        eos_id=9,
        pad_id=0,
      )


HASH = jax.jit(task.hash_tokens)


class HashTokensTest(parameterized.TestCase):
  def test_hash_by_hand(self):
    def mix(word):
      word = ((word ^ (word >> 16)) * 0x85EBCA6B) % 2**32
      word = ((word ^ (word >> 13)) * 0xC2B2AE35) % 2**32
      return word ^ (word >> 16)

    golden = 0x9E3779B9
    expected = mix((mix(5 ^ golden) + mix(7 ^ (2 * golden % 2**32))) % 2**32)
    tokens, lengths = jnp.array([[5, 7, 9]]), jnp.array([2])
    for hash_tokens in (task.hash_tokens, HASH):
      hashes = hash_tokens(tokens, lengths)
      self.assertEqual(hashes.dtype, jnp.uint32)
      np.testing.assert_array_equal(hashes, [expected])

  def test_only_the_tokens_within_the_length_count_and_their_order(self):
    tokens = jnp.array(
      [
        [1, 2, 3, 0, 0],
        [1, 2, 3, 9, 9],
        [1, 2, 3, 0, 0],
        [2, 1, 3, 0, 0],
        [1, 2, 4, 0, 0],
        [0, 1, 2, 3, 0],
      ]
    )
    lengths = jnp.array([3, 3, 4, 3, 3, 4])
    hashes = np.asarray(HASH(tokens, lengths))
    self.assertEqual(hashes[0], hashes[1])
    self.assertLen(set(hashes.tolist()), 5)
    wider = HASH(np.pad(tokens, ((0, 0), (0, 2))), lengths)
    np.testing.assert_array_equal(wider, hashes)

  @parameterized.parameters(16, 150_000)
  def test_random_prompts_collide_about_as_often_as_chance(self, vocab_size):
    rng = np.random.default_rng(0)
    tokens = np.unique(rng.integers(0, vocab_size, (100_000, 12)), axis=0)
    hashes = HASH(tokens, np.full(len(tokens), 12))
    num_collisions = len(tokens) - len(np.unique(hashes))
    # n^2 / 2^33 = 1.2 are expected; 8 or more have a chance of 1e-4.
    self.assertLess(num_collisions, 8)
    # Each bit is one in half of the hashes.
    bits = (np.asarray(hashes)[:, None] >> np.arange(32)) & 1
    np.testing.assert_allclose(bits.mean(axis=0), 0.5, atol=0.01)

  def test_prompts_that_differ_in_one_token_hash_apart(self):
    tokens = np.arange(150_000)[:, None]
    hashes = HASH(tokens, np.ones(150_000, int))
    self.assertLen(np.unique(hashes), 150_000)

  def test_rows_without_a_length_raise(self):
    with self.assertRaisesRegex(AssertionError, 'shape'):
      task.hash_tokens(jnp.ones((2, 3), int), jnp.ones(1, int))
