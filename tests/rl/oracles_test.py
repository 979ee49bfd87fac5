"""Tests of losses against formulas of their papers, written out in NumPy.

tests/rl/losses_test.py and tests/rl/corrections_test.py compare the other
losses with rlax and with the formulas of trl.
"""

import functools

import jax
import numpy as np
from absl.testing import parameterized

from replay_rl.rl import corrections
from replay_rl.rl import losses
from replay_rl.rl import statistics
from tests.rl import loss_cases
from tests.rl import statistics_test


def _tokens(mask):
  """The rows and columns of the tokens."""
  return zip(*np.nonzero(mask), strict=True)


def _sequence_tis(logprobs, behavior_logprobs, advantages, mask, *, cap):
  """VCPO (arXiv 2602.17616): min(pi(y) / mu(y), cap) A log pi(y), its minus.

  Returns the weights of the rows too, of which no gradient is taken.
  """
  weights = [
    min(np.prod(np.exp(logprobs[i] - behavior_logprobs[i])[mask[i]]), cap)
    for i in range(len(mask))
  ]
  loss = np.zeros(mask.shape)
  for i, t in _tokens(mask):
    loss[i, t] = -weights[i] * advantages[i] * logprobs[i, t]
  return loss, np.array(weights)


def _m2po(logprobs, behavior_logprobs, advantages, mask, *, limit):
  """M2PO (arXiv 2510.01161): -r A of the tokens that are kept.

  Drops the token with the largest square of the log ratio, one at a time, until
  the mean of those that are candidates is at most the limit.
  """
  log_ratios = logprobs - behavior_logprobs
  candidates = [
    (log_ratios[i, t] ** 2, i, t)
    for i, t in _tokens(mask)
    if (advantages[i] > 0 and log_ratios[i, t] > 0)
    or (advantages[i] < 0 and log_ratios[i, t] < 0)
  ]
  kept = sorted(candidates)
  while kept and sum(square for square, _, _ in kept) > limit * len(kept):
    kept.pop()
  dropped = {(i, t) for _, i, t in candidates} - {(i, t) for _, i, t in kept}
  loss, is_dropped = np.zeros(mask.shape), np.zeros(mask.shape, bool)
  for i, t in _tokens(mask):
    is_dropped[i, t] = (i, t) in dropped
    loss[i, t] = -np.exp(log_ratios[i, t]) * advantages[i]
  return np.where(is_dropped, 0.0, loss), is_dropped


def _bapo(logprobs, behavior_logprobs, advantages, mask, *, bounds):
  loss = np.zeros(mask.shape)
  for i, t in _tokens(mask):
    ratio = np.exp(logprobs[i, t] - behavior_logprobs[i, t])
    bounded = min(max(ratio, bounds[0]), bounds[1])
    loss[i, t] = -min(ratio * advantages[i], bounded * advantages[i])
  return loss


def _slopes(loss_of, logprobs):
  """The derivative of each token's loss to its log-prob, by differences."""
  return (loss_of(logprobs + 1e-6) - loss_of(logprobs - 1e-6)) / 2e-6


def _batch():
  """Float64 arrays of the batch, of which the losses get float32."""
  logprobs, behavior_logprobs, advantages, mask = loss_cases.random_batch()
  return (
    logprobs.astype(np.float64),
    *(behavior_logprobs.astype(np.float64), advantages.astype(np.float64)),
    mask,
  )


def _ours(loss_fn, batch, statistics_fn=None):
  """The token loss and the gradient, with the statistics of the batch."""
  batch = tuple(x.astype(np.float32) for x in batch[:3]) + batch[3:]
  fields = {}
  if statistics_fn is not None:
    fields['statistics'] = jax.jit(statistics_fn)(loss_cases.inputs_of(*batch))
  loss_fn = loss_cases.of_arrays(loss_fn, fields)
  return loss_cases.value_and_grad(loss_fn, batch)


class NumPyTest(parameterized.TestCase):
  @parameterized.parameters(0.5, 1.2, 1e6)
  def test_sequence_truncated_importance_sampling(self, cap):
    batch = _batch()
    expected, weights = _sequence_tis(*batch, cap=cap)
    token_loss, grads = _ours(
      functools.partial(
        corrections.sequence_truncated_importance_sampling, max_ratio=cap
      ),
      batch,
    )
    np.testing.assert_allclose(token_loss.loss, expected, rtol=1e-4)
    slopes = -(weights * batch[2])[:, None] * batch[3]
    np.testing.assert_allclose(grads, slopes, rtol=1e-4)
    is_truncated = (weights == cap)[:, None] & batch[3]
    np.testing.assert_array_equal(token_loss.is_clipped, is_truncated)
    self.assertEqual(is_truncated.any(), cap < 1e6)

  @parameterized.parameters(0.04, 0.2, 10.0)
  def test_m2po(self, limit):
    batch = _batch()
    expected, is_dropped = _m2po(*batch, limit=limit)
    token_loss, grads = _ours(
      losses.m2po,
      batch,
      functools.partial(statistics.second_moment_cutoff, limit=limit),
    )
    np.testing.assert_allclose(token_loss.loss, expected, rtol=1e-4)
    np.testing.assert_allclose(grads, expected, rtol=1e-4)
    np.testing.assert_array_equal(token_loss.is_clipped, is_dropped)
    self.assertEqual(is_dropped.any(), limit < 10.0)
    # Some candidates are kept too.
    kept = np.exp(batch[0] - batch[1])[batch[3] & ~is_dropped]
    self.assertGreater(kept.size, 5)

  @parameterized.parameters(
    # The bounds stay, the upper one rises, and both are at their ends.
    (0.99, (0.6, 1.2)),
    (1.05, (0.6, 1.5)),
    (1.5, (0.9, 3.0)),
  )
  def test_bapo(self, rise, expected_bounds):
    batch = _batch()
    bounds, min_share = statistics_test.algorithm_1(
      loss_cases.inputs_of(*batch), rise
    )
    np.testing.assert_allclose(bounds, expected_bounds, rtol=1e-6)
    token_loss, grads = _ours(
      losses.bapo,
      batch,
      functools.partial(
        statistics.balanced_clip_bounds,
        **(statistics_test.BAPO | {'min_share': float(min_share)}),
      ),
    )
    expected = functools.partial(_bapo, bounds=bounds)
    np.testing.assert_allclose(token_loss.loss, expected(*batch), rtol=1e-4)
    slopes = _slopes(lambda logprobs: expected(logprobs, *batch[1:]), batch[0])
    np.testing.assert_allclose(grads, slopes, rtol=1e-3, atol=1e-6)
    is_clipped = (slopes == 0) & batch[3] & (batch[2] != 0)[:, None]
    np.testing.assert_array_equal(token_loss.is_clipped, is_clipped)
