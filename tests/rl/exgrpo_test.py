"""Tests of the loss that shapes the ratio of replayed rows."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl.rl import corrections
from replay_rl.rl import losses
from replay_rl.run import learner
from tests.rl import loss_cases
from tests.run import updates

CLIP = {'clip_low': 0.2, 'clip_high': 0.3}


def _loss(is_fresh, beta=0.5):
  fields = {'is_fresh': jnp.asarray(is_fresh)}
  return loss_cases.of_arrays(corrections.exgrpo, fields, beta=beta, **CLIP)


class ExgrpoTest(parameterized.TestCase):
  @parameterized.parameters(2.0, -2.0)
  def test_a_replayed_row_by_hand(self, advantage):
    # With beta = 1/2, f is 2/3, 3/4, 1/2 and 8/9, and its gradient f (1 - f).
    shaped = np.array([2 / 3, 3 / 4, 1 / 2, 8 / 9])
    loss_cases.check_row(
      _loss([False]),
      np.log([1.0, 1.5, 0.5, 4.0]),
      advantage,
      loss=-advantage * shaped,
      grad=-advantage * shaped * (1 - shaped),
      is_clipped=[False] * 4,
    )

  def test_fresh_rows_have_the_clipped_surrogate(self):
    batch = loss_cases.random_batch()
    is_fresh = np.arange(8) % 2 == 1
    of_fresh, of_replayed, actual = (
      loss_cases.value_and_grad(loss_fn, batch)
      for loss_fn in (
        loss_cases.of_arrays(losses.clipped_surrogate, dual_clip=None, **CLIP),
        _loss([False] * 8),
        _loss(is_fresh),
      )
    )
    for rows, expected in ((is_fresh, of_fresh), (~is_fresh, of_replayed)):
      chex.assert_trees_all_equal(
        *(
          jax.tree.map(lambda leaf, rows=rows: leaf[rows], found)
          for found in (actual, expected)
        )
      )
    self.assertFalse(np.array_equal(of_fresh[1], of_replayed[1]))

  def test_a_large_beta_scales_the_ratio(self):
    # f is r / beta, up to a share of r / beta of itself.
    batch = loss_cases.random_batch()
    logprobs, behavior_logprobs, advantages, mask = batch
    token_loss, grads = loss_cases.value_and_grad(
      _loss([False] * 8, 1e6), batch
    )
    ratios = np.where(mask, np.exp(logprobs - behavior_logprobs), 0.0)
    expected = -ratios * advantages[:, None]
    np.testing.assert_allclose(1e6 * token_loss.loss, expected, rtol=1e-4)
    np.testing.assert_allclose(1e6 * grads, expected, rtol=1e-4)

  @parameterized.parameters(-50.0, 50.0)
  def test_a_ratio_beyond_e_to_the_20_counts_as_clipped(self, log_ratio):
    token_loss, grads = loss_cases.value_and_grad(
      _loss([False]), loss_cases.one_row([log_ratio], 1.0)
    )
    expected = -float(log_ratio > 0)
    np.testing.assert_allclose(token_loss.loss, [[0, expected]], atol=1e-8)
    np.testing.assert_array_equal(grads, [[0.0, 0.0]])
    np.testing.assert_array_equal(token_loss.is_clipped, [[False, True]])


class UpdateTest(parameterized.TestCase):
  def test_microbatches_know_which_of_their_rows_are_replayed(self):
    parts = updates.make_parts()
    functions = updates.make_functions(
      parts, loss_fn=functools.partial(corrections.exgrpo, beta=0.5, **CLIP)
    )
    start = learner.init(parts.init_params_fn(jax.random.key(0)), functions)
    batch = updates.make_batch(updates.make_rollouts(parts, 4))
    batch = batch._replace(is_fresh=jnp.array([True, False, False, True]))
    (whole, seen, _), (split, seen_split, _) = (
      jax.jit(
        functools.partial(
          learner.update,
          functions=functions,
          num_updates_since_fresh=0,
          num_microbatches=num_microbatches,
        )
      )(start, batch)
      for num_microbatches in (1, 2)
    )
    gap = updates.distance(updates.gradient(split), updates.gradient(whole))
    self.assertLess(gap, 1e-6)
    np.testing.assert_allclose(seen_split.loss, seen.loss, rtol=1e-5)
    # The loss of the outcome is that of these rows as they are marked.
    rollouts = batch.rollouts
    token_loss = _loss(batch.is_fresh)(
      *(seen.logprobs, rollouts.behavior_logprobs, rollouts.advantages),
      rollouts.loss_mask,
    )
    weights = losses.token_mean(rollouts.loss_mask)
    np.testing.assert_allclose(
      seen.loss, jnp.sum(weights * token_loss.loss), rtol=1e-5
    )
