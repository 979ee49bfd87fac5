"""Tests of the weight lag."""

import jax.numpy as jnp
from absl.testing import absltest
from absl.testing import parameterized

from replay_rl import base
from replay_rl.run import schedule


class DelayLineTest(parameterized.TestCase):
  @parameterized.parameters(0, 1, 3)
  def test_iteration_i_samples_with_the_weights_of_iteration_i_minus_lag(
    self, lag
  ):
    # Weights hold the learner step at which they were made: 2 per iteration.
    line = schedule.init({'w': jnp.zeros(2)}, lag)
    for iteration in range(8):
      step = jnp.int32(2 * iteration)
      learner = base.LearnerState({'w': jnp.full(2, 2.0 * iteration)}, (), step)
      params, version, line = schedule.behavior(
        line, learner, jnp.int32(iteration)
      )
      expected = 2 * max(iteration - lag, 0)
      self.assertEqual(int(version), expected)
      self.assertEqual(params['w'].tolist(), [expected, expected])


if __name__ == '__main__':
  absltest.main()
