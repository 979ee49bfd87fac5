"""Tests of the quantile of log ratios, and of the loss that reads it."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl.rl import losses
from replay_rl.rl import statistics
from tests.rl import loss_cases
from tests.run import updates

CLIP = {'clip_low': 0.2, 'clip_high': 0.3}
SAT = functools.partial(losses.sat, exponent=2.0, **CLIP)


def _quantile(inputs, quantile):
  found = statistics.log_ratio_quantile(inputs, quantile=quantile)
  return found['log_ratio_quantile']


def _loss(quantile):
  """The loss of a batch whose statistic is this number."""
  return loss_cases.of_arrays(
    SAT, {'statistics': {'log_ratio_quantile': jnp.float32(quantile)}}
  )


def _inputs(log_ratios, mask):
  zeros = np.zeros(np.shape(log_ratios), np.float32)
  return loss_cases.inputs_of(
    jnp.asarray(log_ratios, jnp.float32),
    zeros,
    np.zeros(len(zeros), np.float32),
    jnp.asarray(mask, bool),
  )


class LogRatioQuantileTest(parameterized.TestCase):
  @parameterized.parameters(
    # Sizes 0, 0.1, ..., 0.9 of ten tokens.
    (1.0, 0.9), (0.91, 0.9), (0.9, 0.8), (0.89, 0.8), (0.11, 0.1), (0.1, 0.0),
    (0.01, 0.0),
  )  # fmt: skip
  def test_a_value_by_hand(self, quantile, expected):
    sizes = [[0.3, -0.9, 0.1, -0.5, 50.0], [0.4, 0.8, -0.0, -0.2, 9.0]]
    mask = np.ones((3, 5), bool)
    mask[:2, 4] = mask[2, 2:] = False
    inputs = _inputs([*sizes, [0.6, -0.7, 60.0, -np.inf, 1.0]], mask)
    for compute in (_quantile, jax.jit(_quantile)):
      np.testing.assert_allclose(compute(inputs, quantile), expected, rtol=1e-6)

  @parameterized.parameters(0.1, 0.3, 0.6, 0.7, 0.9, 0.95)
  def test_it_is_the_inverse_of_the_empirical_distribution(self, quantile):
    @jax.jit
    def of_first(num_tokens):
      tokens = jnp.arange(200)
      mask = tokens < num_tokens
      return _quantile(_inputs(tokens[None] / 20, mask[None]), quantile) * 20

    for num_tokens in (*range(1, 60), 100, 200):
      expected = np.quantile(
        np.arange(num_tokens), quantile, method='inverted_cdf'
      )
      self.assertEqual(round(float(of_first(num_tokens))), expected)

  def test_without_a_token_it_is_zero_and_infinity_counts_as_20(self):
    mask = np.zeros((1, 2), bool)
    self.assertEqual(float(_quantile(_inputs([[1.0, 2.0]], mask), 0.9)), 0.0)
    infinite = _inputs([[1.0, -np.inf]], ~mask)
    self.assertEqual(float(_quantile(infinite, 0.9)), 20.0)

  @parameterized.parameters(0.0, 1.1, None)
  def test_a_share_out_of_range_raises(self, quantile):
    with self.assertRaisesRegex(ValueError, f'^quantile = {quantile}: must be'):
      _quantile(_inputs([[1.0]], [[True]]), quantile)


class SatTest(parameterized.TestCase):
  # q = log 1.2. At twice and at four times q, c is 1/5 and 1/17.
  Q = np.log(1.2)
  LOG_RATIOS = tuple(Q * np.array([0.0, 1.0, -1.0, 2.0, -2.0, 4.0, -4.0]))

  @parameterized.parameters(
    # Upper bounds: 1.3 up to q, then 1 + 0.3 / 5 and 1 + 0.3 / 17.
    (2.0, 3, 1.06, 5, 1 + 0.3 / 17),
    # Lower bounds: 0.8 up to q, then 1 - 0.2 / 5 and 1 - 0.2 / 17.
    (-2.0, 4, 0.96, 6, 1 - 0.2 / 17),
  )
  def test_by_hand(self, advantage, first, first_bound, second, second_bound):
    ratios = np.exp(self.LOG_RATIOS)
    is_clipped = np.isin(np.arange(7), [first, second])
    ratios[[first, second]] = first_bound, second_bound
    loss_cases.check_row(
      _loss(self.Q * (1 + 1e-6)),
      self.LOG_RATIOS,
      advantage,
      loss=-advantage * ratios,
      grad=-advantage * ratios * ~is_clipped,
      is_clipped=is_clipped,
    )

  def test_the_exponent_shapes_the_factor(self):
    # At twice q and with the exponent 3, c is 1/9.
    loss_fn = loss_cases.of_arrays(
      losses.sat,
      {'statistics': {'log_ratio_quantile': jnp.float32(self.Q)}},
      exponent=3.0,
      **CLIP,
    )
    loss = loss_fn(*loss_cases.one_row([2 * self.Q], 1.0)).loss
    np.testing.assert_allclose(loss, [[0.0, -(1 + 0.3 / 9)]], rtol=1e-6)

  @parameterized.parameters((0.5, 1.3), (-0.5, 0.8))
  def test_a_token_at_the_quantile_keeps_its_bound(self, log_ratio, bound):
    advantage = np.sign(log_ratio)
    batch = loss_cases.one_row([log_ratio], advantage)
    loss = _loss(0.5)(*batch).loss
    np.testing.assert_allclose(loss, [[0.0, -advantage * bound]], rtol=1e-6)

  @parameterized.parameters(0.0, 4.0)
  def test_where_no_token_is_far_it_is_ppo(self, quantile):
    # No log ratio of this batch is beyond 4; a quantile of 0 has no scale.
    batch = loss_cases.random_batch()
    expected = loss_cases.value_and_grad(
      loss_cases.of_arrays(losses.clipped_surrogate, dual_clip=None, **CLIP),
      batch,
    )
    actual = loss_cases.value_and_grad(_loss(quantile), batch)
    chex.assert_trees_all_equal(actual, expected)
    far = loss_cases.value_and_grad(_loss(0.1), batch)
    self.assertFalse(np.array_equal(far[0].loss, expected[0].loss))

  @parameterized.parameters(0.01, 0.1, 0.5, 1.0)
  def test_the_interval_is_inside_that_of_ppo(self, quantile):
    batch = loss_cases.random_batch()
    ppo, _ = loss_cases.value_and_grad(
      loss_cases.of_arrays(losses.clipped_surrogate, dual_clip=None, **CLIP),
      batch,
    )
    sat, grads = loss_cases.value_and_grad(_loss(quantile), batch)
    # The surrogate is lower, and what PPO clips is clipped.
    self.assertTrue((sat.loss >= ppo.loss).all())
    self.assertTrue((sat.is_clipped | ~ppo.is_clipped).all())
    self.assertGreater((sat.loss > ppo.loss).sum(), 0)
    # A token that moves back to a ratio of 1 has its whole gradient.
    logprobs, behavior_logprobs, advantages, mask = batch
    log_ratios = logprobs - behavior_logprobs
    moves_back = mask & (log_ratios * advantages[:, None] < 0)
    expected = -advantages[:, None] * np.exp(log_ratios)
    self.assertGreater(moves_back.sum(), 5)
    np.testing.assert_allclose(
      grads[moves_back], expected[moves_back], rtol=1e-5
    )

  def test_an_infinite_ratio_has_no_gradient_and_no_nan(self):
    for log_ratio, advantage, clip in (
      (np.inf, 1.0, 0.3),
      (-np.inf, -1.0, -0.2),
    ):
      # Its size counts as 20, which is not beyond a quantile of 20.
      for quantile, factor in ((1e-30, 0.0), (0.5, 1 / 1601), (20.0, 1.0)):
        token_loss, grads = loss_cases.value_and_grad(
          _loss(quantile), loss_cases.one_row([log_ratio], advantage)
        )
        expected = -advantage * (1 + clip * factor)
        np.testing.assert_allclose(
          token_loss.loss, [[0.0, expected]], rtol=1e-6
        )
        np.testing.assert_array_equal(grads, np.zeros((1, 2)))


def _updated(num_microbatches, statistics_fn):
  parts = updates.make_parts()
  return updates.update(
    *(parts, parts.init_params_fn(jax.random.key(0))),
    updates.make_rollouts(parts, 8),
    jnp.arange(8) != 2,
    num_microbatches=num_microbatches,
    loss_fn=functools.partial(
      losses.sat, clip_low=0.9, clip_high=5.0, exponent=2.0
    ),
    statistics_fn=statistics_fn,
  )


class BatchTest(parameterized.TestCase):
  def test_microbatches_read_the_quantile_of_the_batch(self):
    quantile = functools.partial(statistics.log_ratio_quantile, quantile=0.6)
    whole, seen, _ = _updated(1, quantile)
    split, seen_split, _ = _updated(4, quantile)
    gap = updates.distance(updates.gradient(split), updates.gradient(whole))
    self.assertLess(gap, 1e-6)
    np.testing.assert_array_equal(seen_split.is_clipped, seen.is_clipped)
    # With another quantile, other tokens are clipped.
    other = functools.partial(statistics.log_ratio_quantile, quantile=1.0)
    _, seen_other, _ = _updated(1, other)
    self.assertGreater(np.sum(seen.is_clipped & ~seen_other.is_clipped), 0)

  def test_devices_with_a_part_of_the_rows_agree(self):
    logprobs, behavior_logprobs, advantages, mask = loss_cases.random_batch()
    inputs = loss_cases.inputs_of(
      logprobs, behavior_logprobs, advantages, mask, {'statistics': None}
    )
    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((4,), ('data',), axis_types=auto)
    rows = jax.sharding.NamedSharding(mesh, jax.P('data'))
    compute = jax.jit(_quantile)
    self.assertEqual(
      float(compute(jax.device_put(inputs, rows), 0.9)),
      float(compute(inputs, 0.9)),
    )
