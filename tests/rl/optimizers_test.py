"""Tests of replay_rl.rl.optimizers."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl.testing import absltest
from absl.testing import parameterized

from replay_rl.rl import optimizers

NUMBERS = {'b1': 0.9, 'b2': 0.99, 'eps': 1e-3, 'weight_decay': 0.1}
PARAMS = {'w': jnp.array([2.0, -1.0])}
GRADS = [{'w': jnp.array([0.5, -4.0])}, {'w': jnp.array([-1.0, 0.25])}]


def by_equation(rate, *, b1, b2, eps, weight_decay):
  """The updates of AdamW, in float64; equations of arXiv 1711.05101."""
  w, m, v = np.array(PARAMS['w'], float), 0.0, 0.0
  updates = []
  for t, grads in enumerate(GRADS, 1):
    g = np.array(grads['w'], float)
    m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
    scaled = m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + eps)
    updates.append(-rate * t * (scaled + weight_decay * w))
  return updates


def updates_of(rate, numbers):
  # The rate of update t is `t * rate`.
  optimizer = optimizers.adamw(lambda count: rate * (count + 1), **numbers)
  state, updates = optimizer.init(PARAMS), []
  for grads in GRADS:
    update, state = optimizer.update(grads, state, PARAMS)
    updates.append(update['w'])
  return updates


class AdamwTest(parameterized.TestCase):
  def test_updates_equal_the_equations(self):
    np.testing.assert_allclose(
      updates_of(0.01, NUMBERS), by_equation(0.01, **NUMBERS), rtol=1e-5
    )

  def test_every_number_may_be_traced(self):
    compute = jax.jit(chex.assert_max_traces(updates_of, n=1))
    others = {'b1': 0.5, 'b2': 0.999, 'eps': 1e-8, 'weight_decay': 0.0}
    for rate, numbers in [(0.01, NUMBERS), (1e-6, others)]:
      actual = compute(rate, numbers)
      # 1 - b2 has the rounding error of b2.
      np.testing.assert_allclose(actual, updates_of(rate, numbers), rtol=2e-5)
      np.testing.assert_allclose(
        actual, by_equation(rate, **numbers), rtol=2e-5
      )

  @parameterized.parameters(
    ('b1', 1.0, r'\[0, 1\)'),
    ('b2', -0.1, r'\[0, 1\)'),
    ('eps', 0.0, r'\[1e-20, 1000\]'),
    ('weight_decay', np.inf, r'\[0, inf\)'),
  )
  def test_wrong_constants_raise(self, name, value, allowed):
    with self.assertRaisesRegex(
      ValueError, f'^{name} = {value}: must be in {allowed}'
    ):
      updates_of(0.01, NUMBERS | {name: value})


class ClippedTest(absltest.TestCase):
  def test_the_rate_rises_linearly_and_then_stays(self):
    rates = [
      float(
        optimizers.warmed_up(
          jnp.int32(count), learning_rate=0.4, warmup_steps=3
        )
      )
      for count in range(6)
    ]
    self.assertSequenceAlmostEqual(
      rates, [0.1, 0.2, 0.3, 0.4, 0.4, 0.4], places=6
    )

  def test_the_norm_is_bounded_before_the_optimizer(self):
    optimizer = optimizers.clipped(optax.sgd, lambda count: 2.0, 0.5)
    gradients = {'x': jnp.array([3.0, 4.0])}
    changes, _ = optimizer.update(gradients, optimizer.init(gradients))
    np.testing.assert_allclose(changes['x'], [-0.6, -0.8], rtol=1e-6)
