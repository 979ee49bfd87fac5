"""Tests of the baseline of least variance, and of the loss that reads it."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl.testing import parameterized

from replay_rl import base
from replay_rl.rl import corrections
from replay_rl.rl import statistics
from tests.rl import loss_cases
from tests.run import updates

# The log ratios of the rows sum to 0, log 3, which is truncated, and log 0.5.
RATIOS = np.array([[2.0, 0.5], [3.0, 1.0], [0.5, 7.0]], np.float32)
MASK = np.array([[True, True], [True, True], [True, False]])
REWARDS = np.array([1.0, 0.0, -2.0], np.float32)
NORMS = np.array([1.0, 3.0, 4.0], np.float32)
# w^2 g^2 of w = 1, 2, 0.5: 1, 36 and 4. (1 x 1 + 36 x 0 - 4 x 2) / 41.
BASELINE = -7 / 41


def _inputs(norms=NORMS):
  return base.LossInputs(
    logprobs=jnp.log(RATIOS) - 1.0,
    behavior_logprobs=jnp.full(RATIOS.shape, -1.0),
    rewards=jnp.asarray(REWARDS),
    advantages=jnp.full(3, 99.0),  # They are not read.
    loss_mask=jnp.asarray(MASK),
    age=jnp.zeros(3, jnp.int32),
    prompt_id=jnp.zeros(3, jnp.uint32),
    is_fresh=jnp.ones(3, bool),
    row_grad_norms=norms if norms is None else jnp.asarray(norms),
  )


def _baseline(inputs):
  found = statistics.optimal_baseline(inputs, max_ratio=2.0)
  return found['optimal_baseline']


class OptimalBaselineTest(parameterized.TestCase):
  def test_a_value_by_hand(self):
    for compute in (_baseline, jax.jit(_baseline)):
      np.testing.assert_allclose(compute(_inputs()), BASELINE, rtol=1e-6)

  def test_no_other_baseline_has_less_variance(self):
    rng = np.random.default_rng(0)
    shape = (50, 4)
    log_ratios = rng.normal(0, 0.4, shape).astype(np.float32)
    norms, rewards = rng.exponential(size=50), rng.normal(size=50)
    inputs = base.LossInputs(
      logprobs=jnp.asarray(log_ratios),
      behavior_logprobs=jnp.zeros(shape),
      rewards=jnp.asarray(rewards, jnp.float32),
      advantages=jnp.zeros(50),
      loss_mask=jnp.ones(shape, bool),
      age=jnp.zeros(50, jnp.int32),
      prompt_id=jnp.zeros(50, jnp.uint32),
      is_fresh=jnp.ones(50, bool),
      row_grad_norms=jnp.asarray(norms, jnp.float32),
    )
    weights = np.minimum(np.exp(log_ratios.sum(axis=1)), 2.0)
    # Least squares of w g (R - b) over b.
    expected, *_ = np.linalg.lstsq(
      (weights * norms)[:, None], weights * norms * rewards, rcond=None
    )
    np.testing.assert_allclose(_baseline(inputs), expected[0], rtol=1e-4)

  def test_rows_without_a_gradient_have_the_baseline_zero(self):
    self.assertEqual(float(_baseline(_inputs(np.zeros(3)))), 0.0)

  def test_a_missing_norm_is_refused(self):
    message = 'row_grad_norms = None: must be given for optimal_baseline'
    with self.assertRaisesRegex(base.MissingFieldError, message):
      _baseline(_inputs(None))


class VcpoTest(parameterized.TestCase):
  @parameterized.parameters(
    ((1.0, 1.0, 3.0, 1.0), 2.0, 2.0, True),
    ((1.0, 1.0, 0.5, 0.5), -2.0, 0.25, False),
    # With a reward equal to the baseline nothing has a gradient to cut.
    ((1.0, 1.0, 3.0, 1.0), 0.5, 2.0, False),
  )
  def test_a_row_by_hand(self, ratios, reward, weight, is_clipped):
    lead = reward - loss_cases.STATISTICS['optimal_baseline']
    loss_cases.check_row(
      loss_cases.LOSSES['vcpo'],
      np.log(ratios),
      reward,
      loss=[weight * lead] * 4,
      grad=[-weight * lead] * 4,
      is_clipped=[is_clipped] * 4,
    )

  def test_it_reads_rewards_and_no_advantages(self):
    inputs = _inputs()._replace(statistics={'optimal_baseline': 0.0})
    other = inputs._replace(advantages=jnp.zeros(3))
    chex.assert_trees_all_equal(
      *(corrections.vcpo(x, max_ratio=2.0) for x in (inputs, other))
    )


class RowGradNormsTest(parameterized.TestCase):
  @parameterized.parameters((True, 1), (False, 2))
  def test_they_are_those_of_each_row_alone(self, tied, num_microbatches):
    parts = updates.make_parts(tied)
    params = parts.init_params_fn(jax.random.key(0))
    rollouts = updates.make_rollouts(parts, 4)
    logprobs_fn = parts.bind(parts.hyper).update.logprobs_fn
    is_valid = jnp.array([True, True, False, True])

    def logprob(params, row):
      logprobs, _ = logprobs_fn(params, rollouts.tokens[row : row + 1])
      return jnp.sum(logprobs[0] * rollouts.loss_mask[row])

    expected = [
      float(optax.tree.norm(jax.grad(logprob)(params, row))) for row in range(4)
    ]
    expected[2] = 0.0  # The row is not valid.

    def loss_fn(inputs):
      norms_B = base.required(inputs, 'row_grad_norms', 'the test')
      is_first_BT = jnp.cumsum(inputs.loss_mask, axis=1) == 1
      loss_BT = jnp.where(
        inputs.loss_mask & is_first_BT, (norms_B * inputs.rewards)[:, None], 0.0
      )
      return base.TokenLoss(loss_BT, inputs.loss_mask & False)

    for row in (1, 2):  # A row that is valid, and the one that is not.
      one_hot = (jnp.arange(4) == row).astype(jnp.float32)
      _, outcome, _ = updates.update(
        *(parts, params, rollouts._replace(rewards=one_hot), is_valid),
        num_microbatches=num_microbatches,
        has_row_grad_norms=True,
        loss_fn=loss_fn,
        normalizer_fn=lambda mask: mask.astype(jnp.float32),
      )
      np.testing.assert_allclose(outcome.loss, expected[row], rtol=1e-4)
