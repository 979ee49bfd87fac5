"""Tests for `replay_rl.replay.feedback`."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl import base
from replay_rl.replay import buffer
from replay_rl.replay import feedback
from replay_rl.replay import sampling
from replay_rl.replay import weights
from tests.replay import buffers

RULE = feedback.reweighted_advantage_magnitude
STEP = jnp.int32(0)


def make_batch(state, slots, **fields) -> base.Batch:
  """Rows of a buffer, as a draw gives them; a slot of C is not valid."""
  slots = jnp.asarray(slots, jnp.int32)
  is_valid = slots < state.is_valid.shape[0]
  rows = buffers.make_rows(range(len(slots)), **fields)
  return base.Batch(
    rollouts=rows,
    slots=slots,
    is_valid=is_valid,
    is_fresh=jnp.zeros_like(is_valid),
    probs=jnp.where(is_valid, 0.25, 0.0),
    num_eligible=jnp.int32(4),
  )


def make_outcome(logprobs) -> base.Outcome:
  logprobs = jnp.asarray(logprobs, jnp.float32)
  return base.Outcome(
    loss=jnp.zeros([]),
    logprobs=logprobs,
    is_clipped=jnp.zeros(logprobs.shape, bool),
    row_weights=jnp.ones(logprobs.shape[0]),
    grad_norm=jnp.zeros([]),
    output_projection_grad_norm=jnp.zeros([]),
  )


class ReweightedAdvantageMagnitudeTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.state = buffers.filled(4, 4)
    log2 = np.log(2)
    self.batch = make_batch(
      self.state,
      [2, 0, 4, 3],
      advantages=[-3, 2, 5, 4],
      loss_mask=[[0, 1, 1], [0, 1, 0], [1, 1, 1], [0, 0, 0]],
      behavior_logprobs=-np.ones((4, 3)),
    )
    # Each log(pi / mu); what the mask leaves out must not count.
    log_ratios = [
      [np.nan, 3 * log2, -log2],  # The mean is log 2.
      [9, -2 * log2, 9],
      [log2] * 3,  # Not valid.
      [7, 7, 7],  # No token: nothing is known to have changed.
    ]
    self.outcome = make_outcome(np.array(log_ratios) - 1)
    self.expected = [6, 0.5, 0, 4]

  @parameterized.parameters(False, True)
  def test_by_hand(self, is_jitted):
    rule = jax.jit(RULE) if is_jitted else RULE
    priorities = rule(self.batch, self.outcome)
    self.assertEqual(priorities.dtype, jnp.float32)
    np.testing.assert_allclose(priorities, self.expected, rtol=1e-6)

  def test_on_the_policy_that_sampled_it_is_the_magnitude(self):
    outcome = make_outcome(self.batch.rollouts.behavior_logprobs)
    priorities = RULE(self.batch, outcome)
    np.testing.assert_array_equal(priorities, [3, 2, 0, 4])

  @parameterized.parameters((300.0, 20.0), (-300.0, -20.0))
  def test_the_log_ratio_is_bounded(self, log_ratio, bounded):
    batch = self.batch._replace(
      rollouts=self.batch.rollouts._replace(loss_mask=jnp.ones((4, 3), bool))
    )
    priorities = RULE(batch, make_outcome(np.full((4, 3), log_ratio - 1)))
    expected = np.exp(bounded) * np.array([3, 2, 0, 4])
    np.testing.assert_allclose(priorities, expected, rtol=1e-6)

  def test_the_next_draw_follows_the_new_priorities(self):
    @jax.jit
    def probabilities(state, batch, outcome):
      state = buffer.update_priorities(state, batch.slots, RULE(batch, outcome))
      weights_C = weights.proportional(state, STEP, exponent=1.0)
      drawn = buffer.sample(
        state, jax.random.key(0), weights_C, 4, draw=sampling.gumbel_top_k
      )
      return jnp.zeros(4).at[drawn.slots].set(drawn.probs)

    # Slots 2, 0 and 3 are updated; slot 1 keeps its priority of 1.
    expected = np.array([0.5, 1, 6, 4]) / 11.5
    np.testing.assert_allclose(
      probabilities(self.state, self.batch, self.outcome), expected, rtol=1e-6
    )

  def test_logprobs_of_another_shape_raise(self):
    with self.assertRaisesRegex(AssertionError, r'\(4, 2\)'):
      RULE(self.batch, make_outcome(np.zeros((4, 2))))
