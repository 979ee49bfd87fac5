"""Tests of replay_rl.tasks.task."""

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
      max_new_tokens=5,
      eos_id=9,
      pad_id=0,
    )
    np.testing.assert_array_equal(
      tokens, [[1, 2, 5, 6, 9, 0, 0], [3, 4, 7, 8, 9, 0, 0]]
    )
    np.testing.assert_array_equal(loss_mask, [[0, 0, 1, 1, 1, 0, 0]] * 2)

  def test_demonstrations_without_room_for_the_end_raise(self):
    with self.assertRaisesRegex(ValueError, 'max_new_tokens = 2'):
      task.demonstrations(
        jnp.ones((1, 2), int),
        jnp.ones((1, 2), int),
        max_new_tokens=2,
        eos_id=9,
        pad_id=0,
      )
