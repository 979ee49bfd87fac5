"""Tests of replay_rl.rl.statistics, and of M2PO with its statistics."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl import base
from replay_rl.rl import losses
from replay_rl.rl import statistics

# Rows of A = 2 and A = -2. The squares of the log ratios that move away from
# zero are, sorted, 0.01, 0.04, 0.09 and 0.16; their means up to each of them
# are 0.01, 0.025, 0.0467 and 0.075.
LOG_RATIOS = np.array([[0.1, 0.3, -0.5, 0.0], [-0.2, 0.6, -0.4, -0.01]])
ADVANTAGES = np.array([2.0, -2.0])
MASK = np.array([[True, True, True, True], [True, True, True, False]])


def inputs_of(log_ratios, advantages, mask):
  log_ratios = np.asarray(log_ratios, np.float32)
  return base.LossInputs(
    logprobs=log_ratios - 1.0,
    behavior_logprobs=np.full_like(log_ratios, -1.0),
    advantages=np.asarray(advantages, np.float32),
    loss_mask=np.asarray(mask),
    age=np.zeros(len(advantages), np.int32),
  )


@jax.jit
def statistics_of(inputs, limit):
  return statistics.second_moment_cutoff(inputs, limit=limit)


def cutoff_of(inputs, limit):
  return statistics_of(inputs, limit)['second_moment_cutoff']


@jax.jit
def loss_and_grad(inputs):
  def total(logprobs):
    token_loss = losses.m2po(inputs._replace(logprobs=logprobs))
    return jnp.sum(token_loss.loss), token_loss

  (_, token_loss), grads = jax.value_and_grad(total, has_aux=True)(
    inputs.logprobs
  )
  return token_loss, grads


class SecondMomentCutoffTest(parameterized.TestCase):
  @parameterized.parameters(
    (0.0, -1.0), (0.009, -1.0), (0.02, 0.01), (0.04, 0.04), (0.05, 0.09),
    (0.076, 0.16), (np.inf, np.inf),
  )  # fmt: skip
  def test_cutoff_by_hand(self, limit, expected):
    inputs = inputs_of(LOG_RATIOS, ADVANTAGES, MASK)
    np.testing.assert_allclose(cutoff_of(inputs, limit), expected, rtol=1e-5)
    # A constant of a schedule is no array.
    actual = statistics.second_moment_cutoff(inputs, limit=limit)
    np.testing.assert_allclose(
      actual['second_moment_cutoff'], expected, rtol=1e-5
    )

  def test_equal_squares_are_dropped_together(self):
    # With one of the two 0.25, the mean would be 0.13.
    inputs = inputs_of([[0.1, 0.5, 0.5]], [1.0], np.ones((1, 3), bool))
    np.testing.assert_allclose(cutoff_of(inputs, 0.15), 0.01, rtol=1e-5)
    np.testing.assert_allclose(cutoff_of(inputs, 0.18), 0.25, rtol=1e-5)

  def test_cutoff_equals_dropping_one_token_after_the_other(self):
    rng = np.random.default_rng(0)
    for _ in range(10):
      log_ratios = rng.normal(0.0, 0.5, (6, 5)).astype(np.float32)
      advantages, mask = rng.normal(size=6), rng.random((6, 5)) < 0.8
      kept = sorted(
        x**2
        for row, sign, is_row in zip(
          log_ratios, np.sign(advantages), mask, strict=True
        )
        for x, is_token in zip(row, is_row, strict=True)
        if is_token and x * sign > 0
      )
      while kept and np.mean(kept) > 0.04:
        kept.pop()
      actual = cutoff_of(inputs_of(log_ratios, advantages, mask), 0.04)
      np.testing.assert_allclose(actual, kept[-1] if kept else -1, rtol=1e-5)

  @parameterized.parameters(np.inf, -np.inf)
  def test_infinite_log_ratios_are_dropped_first(self, infinity):
    log_ratios = np.where([[0, 1, 0]], infinity, [[0.1, 0.0, -0.1]])
    sign = np.sign(infinity)
    inputs = inputs_of(log_ratios, [sign], np.ones((1, 3), bool))
    cutoff = cutoff_of(inputs, 0.04)
    np.testing.assert_allclose(cutoff, 0.01, rtol=1e-5)
    # As a token that moves back to zero it is no candidate.
    np.testing.assert_allclose(
      cutoff_of(inputs._replace(advantages=-inputs.advantages), 0.04),
      0.01,
      rtol=1e-5,
    )

  def test_masked_tokens_and_rows_of_no_advantage_have_no_part(self):
    expected = cutoff_of(inputs_of(LOG_RATIOS, ADVANTAGES, MASK), 0.04)
    log_ratios = np.where(MASK, LOG_RATIOS, -np.inf)
    actual = cutoff_of(
      inputs_of(
        np.vstack([log_ratios, LOG_RATIOS]),
        [*ADVANTAGES, 0.0, 0.0],
        np.vstack([MASK, MASK]),
      ),
      0.04,
    )
    np.testing.assert_array_equal(actual, expected)
    nothing = inputs_of(LOG_RATIOS, ADVANTAGES, np.zeros_like(MASK))
    np.testing.assert_array_equal(cutoff_of(nothing, 0.04), -1.0)

  def test_a_limit_out_of_range_raises(self):
    with self.assertRaisesRegex(ValueError, r'^limit = -1: must be in \[0, in'):
      statistics.second_moment_cutoff(
        inputs_of(LOG_RATIOS, ADVANTAGES, MASK), limit=-1
      )


class M2poTest(parameterized.TestCase):
  def test_loss_and_gradient_by_hand(self):
    # The cutoff is 0.04: the log ratios 0.3 and -0.4 are dropped.
    inputs = inputs_of(LOG_RATIOS, ADVANTAGES, MASK)
    token_loss, grads = loss_and_grad(
      inputs._replace(statistics=statistics_of(inputs, 0.04))
    )
    expected = [
      [-2 * np.exp(0.1), 0.0, -2 * np.exp(-0.5), -2.0],
      [2 * np.exp(-0.2), 2 * np.exp(0.6), 0.0, 0.0],
    ]
    np.testing.assert_allclose(token_loss.loss, expected, rtol=1e-5)
    np.testing.assert_allclose(grads, expected, rtol=1e-5)
    np.testing.assert_array_equal(
      token_loss.is_clipped,
      [[False, True, False, False], [False, False, True, False]],
    )

  def test_microbatches_with_the_same_statistics_give_the_whole_gradient(self):
    rng = np.random.default_rng(0)
    inputs = inputs_of(
      rng.normal(0.0, 0.3, (4, 6)), rng.normal(size=4), rng.random((4, 6)) < 0.8
    )
    halves = [
      inputs._replace(
        **{name: getattr(inputs, name)[rows] for name in inputs._fields[:5]}
      )
      for rows in (slice(0, 2), slice(2, 4))
    ]
    whole = statistics_of(inputs, 0.04)
    _, expected = loss_and_grad(inputs._replace(statistics=whole))
    grads = [loss_and_grad(x._replace(statistics=whole))[1] for x in halves]
    np.testing.assert_array_equal(np.concatenate(grads), expected)
    # Statistics of each half would have dropped other tokens.
    grads = [
      loss_and_grad(x._replace(statistics=statistics_of(x, 0.04)))[1]
      for x in halves
    ]
    self.assertFalse(np.array_equal(np.concatenate(grads), expected))
