"""Tests of replay_rl.rl.statistics, and of losses with their statistics."""

import functools
import types

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl import base
from replay_rl.rl import losses
from replay_rl.rl import penalties
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
    rewards=np.asarray(advantages, np.float32),
    advantages=np.asarray(advantages, np.float32),
    loss_mask=np.asarray(mask, bool),
    age=np.zeros(len(advantages), np.int32),
    prompt_id=np.zeros(len(advantages), np.uint32),
    is_fresh=np.ones(len(advantages), bool),
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


# The paper's values.
BAPO = {
  'min_share': 0.4,
  'low_start': 0.6,
  'low_end': 0.9,
  'high_start': 1.2,
  'high_end': 3.0,
  'high_step': 0.05,
}


def algorithm_1(inputs, rise):
  """The loop of the paper, with its steps of the lower bound.

  Returns the bounds, and the least share: that of the start times `rise`.
  """
  numbers = types.SimpleNamespace(**BAPO)
  mask = inputs.loss_mask
  ratios = np.exp((inputs.logprobs - inputs.behavior_logprobs)[mask])
  advantages = np.broadcast_to(inputs.advantages[:, None], mask.shape)[mask]

  def share(low, high):
    surrogate = np.minimum(
      ratios * advantages, np.clip(ratios, low, high) * advantages
    )
    sizes = np.abs(surrogate.astype(np.float64))
    return sizes[advantages > 0].sum() / sizes.sum()

  low, high = numbers.low_start, numbers.high_start
  min_share = rise * share(low, high)
  while share(low, high) < min_share and low < numbers.low_end - 1e-9:
    if high < numbers.high_end - 1e-9:
      high = min(high + numbers.high_step, numbers.high_end)
    else:
      low = min(low + 0.02, numbers.low_end)
  return (low, high), min_share


class BalancedClipBoundsTest(parameterized.TestCase):
  @parameterized.parameters(
    # One good token of ratio 2 and bad ones of 1 and 0.5: the share is
    # c / (c + 1 + 0.6), and at most 2 / 3.6 = 0.556.
    (0.0, 0.6, 1.2), (0.4, 0.6, 1.2), (0.45, 0.6, 1.35), (0.555, 0.6, 2.0),
    (0.56, 0.9, 3.0), (1.0, 0.9, 3.0),
  )  # fmt: skip
  def test_bounds_by_hand(self, min_share, low, high):
    inputs = inputs_of(
      np.log([[2.0, 9.0], [1.0, 0.5]]), [1.0, -1.0], [[1, 0], [1, 1]]
    )
    for compute in (jax.jit, lambda function: function):
      actual = compute(
        lambda share: statistics.balanced_clip_bounds(
          inputs, **(BAPO | {'min_share': share})
        )
      )(min_share)
      np.testing.assert_allclose(actual['lowest_ratio'], low, rtol=1e-6)
      np.testing.assert_allclose(actual['highest_ratio'], high, rtol=1e-6)

  def test_the_last_step_ends_at_the_end(self):
    inputs = inputs_of(np.log([[2.0], [1.0]]), [1.0, -1.0], np.ones((2, 1)))
    for min_share, low, high in (
      (0.6, 0.6, 1.7),
      (0.64, 0.6, 1.9),
      (0.9, 0.9, 1.9),
    ):
      actual = statistics.balanced_clip_bounds(
        inputs,
        **(BAPO | dict(min_share=min_share, high_end=1.9, high_step=0.5)),
      )
      np.testing.assert_allclose(actual['highest_ratio'], high, rtol=1e-6)
      np.testing.assert_allclose(actual['lowest_ratio'], low, rtol=1e-6)

  def test_bounds_equal_those_of_the_loop_of_the_paper(self):
    rng = np.random.default_rng(0)
    bounds = set()
    for rise in np.linspace(0.99, 1.15, 20):
      inputs = inputs_of(
        rng.normal(0.0, 0.7, (6, 5)),
        rng.normal(size=6),
        rng.random((6, 5)) < 0.8,
      )
      expected, min_share = algorithm_1(inputs, rise)
      actual = statistics.balanced_clip_bounds(
        inputs, **(BAPO | {'min_share': float(min_share)})
      )
      np.testing.assert_allclose(
        (actual['lowest_ratio'], actual['highest_ratio']), expected, rtol=1e-5
      )
      bounds.add(expected)
    self.assertGreater(len(bounds), 8)

  def test_padding_and_rows_of_no_advantage_have_no_part(self):
    inputs = inputs_of(LOG_RATIOS, ADVANTAGES, MASK)
    expected = statistics.balanced_clip_bounds(inputs, **BAPO)
    padded = inputs_of(
      np.vstack([np.where(MASK, LOG_RATIOS, np.inf), LOG_RATIOS + 1]),
      [*ADVANTAGES, 0.0, 0.0],
      np.vstack([MASK, MASK]),
    )
    actual = statistics.balanced_clip_bounds(padded, **BAPO)
    self.assertEqual(actual, expected)
    nothing = inputs_of(LOG_RATIOS, ADVANTAGES, np.zeros_like(MASK))
    actual = statistics.balanced_clip_bounds(nothing, **BAPO)
    np.testing.assert_allclose(actual['lowest_ratio'], 0.6, rtol=1e-6)

  @parameterized.parameters(
    ({'low_start': 0.95}, r'^low_start = 0.95: must be at most low_end = 0.9$'),
    ({'high_end': 1.1}, r'^high_start = 1.2: must be at most high_end = 1.1$'),
    ({'low_end': 1.1}, r'^low_end = 1.1: must be in \[0, 1\]$'),
    ({'high_start': 0.9}, r'^high_start = 0.9: must be in \[1, 100\]$'),
    ({'high_step': 0}, r'^high_step = 0: must be in \[0.01, 100\]$'),
    ({'min_share': 1.5}, r'^min_share = 1.5: must be in \[0, 1\]$'),
    ({'high_step': None}, r'^high_step = None: must be of type float$'),
  )
  def test_numbers_that_cannot_be_meant_raise(self, changes, message):
    with self.assertRaisesRegex(ValueError, message):
      statistics.balanced_clip_bounds(
        inputs_of(LOG_RATIOS, ADVANTAGES, MASK), **(BAPO | changes)
      )


class MeanReferenceLogRatioTest(parameterized.TestCase):
  def test_mean_over_the_rows_of_a_prompt_that_have_tokens(self):
    inputs = inputs_of(np.zeros((4, 3)), np.zeros(4), np.ones((4, 3)))
    # log pi is -1; l is 0.5 + 1, 2 and 4, and a row without tokens is not one.
    reference = np.array(
      [[-1.5, -2.0, np.inf], [-3.0, -np.inf, np.inf], [9, 9, 9], [-5, 9, 9]],
      np.float32,
    )
    mask = np.array([[1, 1, 0], [1, 0, 0], [0, 0, 0], [1, 0, 0]], bool)
    prompt_id = np.array([5, 2**32 - 1, 5, 5], np.uint32)
    mean_of = jax.jit(statistics.mean_reference_log_ratio)
    for given, expected in (
      (mask, [2.75, 2.0, 2.75, 2.75]),
      (np.zeros_like(mask), [0.0] * 4),
    ):
      rows = {'reference_logprobs': reference, 'prompt_id': prompt_id}
      actual = mean_of(inputs._replace(loss_mask=given, **rows))
      np.testing.assert_allclose(
        actual['mean_reference_log_ratio'], expected, rtol=1e-6
      )
      np.testing.assert_array_equal(actual['prompt_id'], prompt_id)

  def test_without_a_reference_policy_it_raises(self):
    with self.assertRaisesRegex(
      ValueError,
      '^LossInputs.reference_logprobs = None: must be given for mean_reference',
    ):
      statistics.mean_reference_log_ratio(
        inputs_of(LOG_RATIOS, ADVANTAGES, MASK)
      )


class MicrobatchesTest(parameterized.TestCase):
  @parameterized.parameters(
    (
      losses.bapo,
      functools.partial(statistics.balanced_clip_bounds, **BAPO),
    ),
    (
      functools.partial(penalties.tba, beta=0.5),
      statistics.mean_reference_log_ratio,
    ),
  )
  def test_statistics_of_the_whole_batch_give_its_gradient(
    self, loss_fn, statistics_fn
  ):
    rng = np.random.default_rng(0)
    inputs = inputs_of(
      rng.normal(0.0, 0.5, (4, 6)), rng.normal(size=4), rng.random((4, 6)) < 0.8
    )
    inputs = inputs._replace(
      logprobs=rng.normal(-1.0, 0.5, (4, 6)).astype(np.float32),
      reference_logprobs=rng.normal(-1.0, 0.5, (4, 6)).astype(np.float32),
      # Rows of a prompt are in both halves.
      prompt_id=np.array([8, 5, 5, 8], np.uint32),
    )

    def gradient(rows, whole):
      part = jax.tree.map(lambda leaf: leaf[rows], inputs)

      def total(logprobs):
        of_part = part._replace(logprobs=logprobs, statistics=whole)
        return jnp.sum(loss_fn(of_part).loss)

      return jax.jit(jax.grad(total))(part.logprobs)

    halves, every = (slice(0, 2), slice(2, 4)), slice(0, 4)
    whole = statistics_fn(inputs)
    expected = gradient(every, whole)
    np.testing.assert_allclose(
      np.concatenate([gradient(rows, whole) for rows in halves]),
      expected,
      rtol=1e-6,
    )
    # Statistics of each half would have given another gradient.
    parts = [
      gradient(
        rows,
        statistics_fn(jax.tree.map(lambda leaf: leaf[rows], inputs)),  # noqa: B023
      )
      for rows in halves
    ]
    self.assertFalse(np.allclose(np.concatenate(parts), expected))

  @parameterized.parameters(
    functools.partial(statistics.balanced_clip_bounds, **BAPO),
    statistics.mean_reference_log_ratio,
  )
  def test_devices_with_a_part_of_the_rows_agree(self, statistics_fn):
    rng = np.random.default_rng(5)
    inputs = inputs_of(
      rng.normal(0.0, 0.5, (8, 6)), rng.normal(size=8), rng.random((8, 6)) < 0.8
    )._replace(
      reference_logprobs=np.full((8, 6), -1.5, np.float32),
      prompt_id=np.arange(8, dtype=np.uint32) % 3,
    )
    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((4,), ('data',), axis_types=auto)
    rows = jax.sharding.NamedSharding(mesh, jax.P('data'))
    chex.assert_trees_all_close(
      jax.jit(statistics_fn)(jax.device_put(inputs, rows)),
      jax.jit(statistics_fn)(inputs),
      rtol=1e-6,
    )
