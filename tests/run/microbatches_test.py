"""Tests of how the rows of an update are cut."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl.run import microbatches
from tests.run import updates


class MicrobatchesTest(parameterized.TestCase):
  @parameterized.parameters(
    (8, None, 1), (8, 8, 1), (8, 7, 2), (8, 3, 3), (8, 1, 8), (8, 99, 1)
  )
  def test_the_least_number_of_microbatches(self, num_rows, at_most, expected):
    self.assertEqual(microbatches.number(num_rows, at_most), expected)

  @parameterized.parameters(
    (8, 1, 1, 8), (8, 3, 1, 9), (7, 2, 1, 8), (8, 1, 3, 9), (9, 2, 4, 16)
  )
  def test_rows_are_filled_up_to_equal_parts(
    self, num_rows, num_microbatches, num_parts, expected
  ):
    actual = microbatches.padded_rows(num_rows, num_microbatches, num_parts)
    self.assertEqual(actual, expected)

  def test_rows_that_fill_a_batch_are_not_valid_and_in_no_slot(self):
    rollouts = updates.make_rollouts(updates.make_parts(), 5)
    batch = updates.make_batch(rollouts)._replace(is_fresh=jnp.ones(5, bool))
    filled = microbatches.padded(batch, num_microbatches=3, capacity=40)
    chex.assert_trees_all_equal(
      jax.tree.map(lambda leaf: leaf[:5], filled._replace(num_eligible=())),
      batch._replace(num_eligible=()),
    )
    self.assertEqual(filled.slots.tolist(), [0, 1, 2, 3, 4, 40])
    self.assertEqual(filled.is_valid.tolist(), [True] * 5 + [False])
    self.assertEqual(filled.is_fresh.tolist(), [True] * 5 + [False])
    self.assertEqual(float(filled.probs[5]), 0.0)
    self.assertEqual(int(filled.num_eligible), 5)
    same = microbatches.padded(batch, num_microbatches=5, capacity=40)
    chex.assert_trees_all_equal(same, batch)

  def test_a_batch_that_was_filled_has_the_gradient_of_its_rows(self):
    parts = updates.make_parts()
    params = parts.init_params_fn(jax.random.key(0))
    rollouts = updates.make_rollouts(parts, 5)
    filled = microbatches.padded(
      updates.make_batch(rollouts), num_microbatches=3, capacity=40
    )
    whole, _, _ = updates.update(parts, params, rollouts)
    cut, _, _ = updates.update(
      parts, params, filled.rollouts, filled.is_valid, num_microbatches=3
    )
    gap = updates.distance(updates.gradient(cut), updates.gradient(whole))
    self.assertLess(gap, 1e-5)

  @parameterized.parameters(1, 2, 3)
  def test_scores_do_not_depend_on_the_microbatches(self, num_microbatches):
    parts = updates.make_parts()
    params = parts.init_params_fn(jax.random.key(0))
    tokens = updates.make_rollouts(parts, 5).tokens
    logprobs_fn = parts.bind(parts.hyper).update.logprobs_fn
    actual = microbatches.score(
      *(logprobs_fn, params, tokens, tokens > 0),
      num_microbatches=num_microbatches,
      packed=None,
    )
    expected, _ = logprobs_fn(params, tokens)
    np.testing.assert_allclose(actual, expected, atol=1e-5)
