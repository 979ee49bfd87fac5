"""Tests of what an update reports."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest

from replay_rl import base
from replay_rl.replay import buffer
from replay_rl.run import learner
from replay_rl.run import update_metrics


def _metrics(log_ratio):
  """Three rows of two tokens: fresh of age 0, replayed of age 3, not valid."""
  mask = jnp.array([[False, True], [True, True], [True, True]])
  rollouts = base.Rollout(
    tokens=jnp.zeros((3, 2), jnp.int32),
    loss_mask=mask,
    behavior_logprobs=jnp.where(mask, -1.0, 0.0),
    rewards=jnp.zeros(3),
    advantages=jnp.zeros(3),
    group_id=jnp.zeros(3, jnp.int32),
    policy_version=jnp.array([5, 2, 5], jnp.int32),
  )
  batch = base.Batch(
    rollouts=rollouts,
    slots=jnp.array([0, 1, 4]),
    is_valid=jnp.array([True, True, False]),
    is_fresh=jnp.array([True, False, False]),
    num_eligible=jnp.int32(2),
  )
  outcome = learner.Outcome(
    loss=jnp.float32(0.5),
    logprobs=-1.0 + jnp.asarray(log_ratio, jnp.float32),
    is_clipped=jnp.array([[True, False], [True, False], [True, True]]),
    grad_norm=jnp.float32(2.0),
    output_projection_grad_norm=jnp.float32(1.0),
  )
  state = buffer.init(rollouts, capacity=4)
  state = state._replace(last_sampled=jnp.array([-1, 3, -1, -1], jnp.int32))
  return jax.jit(update_metrics.of_update, static_argnames='num_bins')(
    batch, outcome, state, jnp.int32(5), num_bins=5
  )


class UpdateMetricsTest(absltest.TestCase):
  def test_fresh_and_replayed_tokens_are_told_apart(self):
    one = _metrics([[9.0, 0.25], [-0.5, 1.5], [7.0, 7.0]])
    found = update_metrics.combine(jax.tree.map(lambda x: x[None], one))
    self.assertEqual(float(found['clip_fraction/fresh']), 0.0)
    self.assertEqual(float(found['clip_fraction/replayed']), 0.5)
    self.assertEqual(float(found['abs_log_ratio/fresh']), 0.25)
    self.assertEqual(float(found['abs_log_ratio/replayed']), 1.0)
    self.assertEqual(float(found['staleness/mean']), 1.5)
    self.assertEqual(float(found['sampler_learner_gap']), 0.25)
    self.assertEqual(float(found['batch/num_valid']), 2)
    self.assertEqual(found['histogram/staleness'].tolist(), [1, 0, 0, 1, 0])
    # New, and two learner steps ago.
    self.assertEqual(
      found['histogram/steps_since_last_use'].tolist(), [1, 0, 0, 1, 0, 0]
    )
    weights = np.exp([0.25, -0.5, 1.5])
    np.testing.assert_allclose(
      found['ess'], weights.sum() ** 2 / (3 * (weights**2).sum()), rtol=1e-5
    )

  def test_every_kind_of_row_is_counted_where_it_belongs(self):
    # Two tokens a row, both sampled. Fresh: of age 0, and of age 2 from a
    # lagging sampler. Replayed: of age 0, and of age 4. Then one fresh and one
    # replayed row that are not valid; what they hold must not show.
    is_fresh = np.array([1, 1, 0, 0, 1, 0], bool)
    is_valid = np.array([1, 1, 1, 1, 0, 0], bool)
    gaps = np.array([0.25, -3.0, -0.5, 2.0, 9.0, 8.0], np.float32)
    both = np.ones((6, 2), np.float32)
    rollouts = base.Rollout(
      tokens=jnp.zeros((6, 2), jnp.int32),
      loss_mask=jnp.ones((6, 2), bool),
      behavior_logprobs=jnp.full((6, 2), -10.0),
      rewards=jnp.zeros(6),
      advantages=jnp.zeros(6),
      group_id=jnp.zeros(6, jnp.int32),
      policy_version=jnp.array([5, 3, 5, 1, 5, 5], jnp.int32),
    )
    is_clipped = np.array([[1, 1], [0, 1], [0, 1], [0, 0], [1, 1], [1, 1]])
    outcome = learner.Outcome(
      loss=jnp.float32(0.5),
      logprobs=jnp.asarray(-10.0 + gaps[:, None] * both),
      is_clipped=jnp.asarray(is_clipped, bool),
      grad_norm=jnp.float32(2.0),
      output_projection_grad_norm=jnp.float32(1.5),
    )
    # Slot 3, the last one, was used at step 4; the second row was not stored.
    state = buffer.init(rollouts, capacity=4)._replace(
      last_sampled=jnp.array([-1, 0, 2, 4], jnp.int32)
    )
    one = update_metrics.of_update(
      base.Batch(
        rollouts=rollouts,
        slots=jnp.array([0, 4, 1, 2, 4, 4]),
        is_valid=jnp.asarray(is_valid),
        is_fresh=jnp.asarray(is_fresh),
        num_eligible=jnp.int32(17),
      ),
      outcome,
      state,
      jnp.int32(5),
      num_bins=6,
    )
    found = update_metrics.combine(jax.tree.map(lambda x: x[None], one))
    ratios = np.exp(gaps[is_valid])
    expected = {
      'loss': 0.5,
      'grad_norm': 2.0,
      'output_projection_grad_norm': 1.5,
      'ess': ratios.sum() ** 2 / (4 * (ratios**2).sum()),
      'clip_fraction/fresh': 3 / 4,
      'clip_fraction/replayed': 1 / 4,
      'abs_log_ratio/fresh': (0.25 + 3.0) / 2,
      'abs_log_ratio/replayed': (0.5 + 2.0) / 2,
      'staleness/mean': (0 + 2 + 0 + 4) / 4,
      'batch/num_valid': 4,
      'batch/num_fresh': 2,
      'buffer/num_eligible': 17,
      # Of the rows of age 0, whether fresh or not.
      'sampler_learner_gap': 0.5,
    }
    histograms = {
      'histogram/staleness': [2, 0, 1, 0, 1, 0],
      # Never used: slot 0 and the row without a slot; then 5 and 3 steps ago.
      'histogram/steps_since_last_use': [2, 0, 0, 0, 1, 0, 1],
    }
    self.assertEqual(set(found), {*expected, *histograms})
    for name, value in expected.items():
      self.assertAlmostEqual(float(found[name]), value, places=5, msg=name)
    for name, counts in histograms.items():
      self.assertEqual(found[name].tolist(), counts)

  def test_several_updates_count_by_their_tokens(self):
    first = _metrics([[0.0, 0.25], [-0.5, 1.5], [0.0, 0.0]])
    second = _metrics([[0.0, 0.75], [0.0, 0.0], [0.0, 0.0]])
    second = second._replace(
      means=second.means
      | {
        'abs_log_ratio/fresh': update_metrics.Mean(
          jnp.float32(0.75 * 3), jnp.float32(3)
        )
      }
    )
    both = jax.tree.map(lambda x, y: jnp.stack([x, y]), first, second)
    found = update_metrics.combine(both)
    self.assertEqual(float(found['abs_log_ratio/fresh']), (0.25 + 2.25) / 4)
    self.assertEqual(float(found['sampler_learner_gap']), 0.75)
    self.assertEqual(found['histogram/staleness'].tolist(), [2, 0, 0, 2, 0])

  def test_a_mean_over_nothing_is_nan(self):
    one = _metrics(np.zeros((3, 2)))
    none = one._replace(
      means={'x': update_metrics.Mean(jnp.zeros(()), jnp.zeros(()))}
    )
    found = update_metrics.combine(jax.tree.map(lambda x: x[None], none))
    self.assertTrue(np.isnan(found['x']))


if __name__ == '__main__':
  absltest.main()
