"""Policy losses, one function per paper, and how their tokens are averaged.

With its constants bound, each loss is a `base.LossFn`: it returns one number
per token, before any average. The ratio r is always pi / mu, the learner's
policy over the one that sampled the token; A is the advantage of the row.
`corrections` has the losses whose difference is the weight of a token, and
`penalties` those with a divergence from another policy.

`is_clipped` marks the tokens of non-zero advantage at which a bound acts. The
bound removes the gradient in `clipped_surrogate`, `gspo`, `bapo`, `sat` and
`m2po`, and limits the weight of the gradient in `cispo` and `topr`. Before any
exponential, every loss passes its log ratios through `importance.bounded`,
which is such a bound too.

A normalizer is a `base.NormalizerFn`: the loss is sum(weights * loss). The
weights come from the mask of the whole batch, before it is cut into
microbatches, so that the sum over the microbatches is the loss of the batch.
"""

import functools
import operator
from typing import Annotated

import chex
import jax
import jax.numpy as jnp

from replay_rl import base
from replay_rl import constants
from replay_rl.rl import importance
from replay_rl.rl import token_losses

_Clip = Annotated[base.Scalar, constants.interval('[0, inf]')]


@constants.checked
def clipped_surrogate(
  inputs: base.LossInputs,
  *,
  clip_low: _Clip,
  clip_high: _Clip,
  dual_clip: Annotated[base.Scalar | None, constants.interval('(1, inf)')],
) -> base.TokenLoss:
  """Returns -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A).

  PPO, https://arxiv.org/abs/1707.06347, equation 7; as in GRPO,
  https://arxiv.org/abs/2402.03300, equation 3, without the KL term. Two bounds
  as in DAPO, https://arxiv.org/abs/2503.14476, equation 10. With `dual_clip`,
  -max(min(...), dual_clip A) where A < 0, https://arxiv.org/abs/1912.09729.

  Args:
    inputs: logprobs, behavior_logprobs, advantages and loss_mask are read.
    clip_low: 1 or more for no lower bound.
    clip_high: inf for no upper bound.
    dual_clip: the largest ratio where A < 0; None for no bound.
  """
  surrogate_BT, is_clipped_BT = token_losses.bounded_surrogate(
    token_losses.log_ratios(inputs),
    inputs.advantages[:, None],
    lowest=1.0 - clip_low,
    highest=1.0 + clip_high,
    max_ratio=jnp.inf if dual_clip is None else dual_clip,
  )
  return token_losses.of_advantages(inputs, -surrogate_BT, is_clipped_BT)


@constants.checked
def gspo(
  inputs: base.LossInputs, *, clip_low: _Clip, clip_high: _Clip
) -> base.TokenLoss:
  """Returns the clipped surrogate of s = exp(mean of log r over the tokens).

  GSPO, https://arxiv.org/abs/2507.18071, equations 5 and 7: each token of a row
  has the ratio of the sequence, normalised by its length. With `sequence_mean`
  the loss is that of the paper.

  Args:
    inputs: logprobs, behavior_logprobs, advantages and loss_mask are read.
    clip_low: 1 or more for no lower bound; 3e-4 in the paper.
    clip_high: inf for no upper bound; 4e-4 in the paper.
  """
  log_ratios_BT = token_losses.log_ratios(inputs)
  lengths_B = jnp.maximum(jnp.sum(inputs.loss_mask, axis=1), 1)
  surrogate_B, is_clipped_B = token_losses.bounded_surrogate(
    jnp.sum(log_ratios_BT, axis=1) / lengths_B,
    inputs.advantages,
    lowest=1.0 - clip_low,
    highest=1.0 + clip_high,
    max_ratio=jnp.inf,
  )
  return token_losses.of_advantages(
    inputs, -surrogate_B[:, None], is_clipped_B[:, None]
  )


def m2po(inputs: base.LossInputs) -> base.TokenLoss:
  """Returns -r A, but zero for tokens that the whole batch drops.

  M2PO, https://arxiv.org/abs/2510.01161: tokens at which the gradient moves the
  ratio further from 1 are dropped where the square of their log ratio is above
  the cutoff, and count as clipped. The normalizer still counts them.

  Args:
    inputs: logprobs, behavior_logprobs, advantages, loss_mask and statistics
      are read. statistics: what `statistics.second_moment_cutoff` returned.

  Raises:
    ValueError: there is no such statistic.
  """
  cutoff = token_losses.statistic(inputs, 'second_moment_cutoff', 'm2po')
  log_ratios_BT = token_losses.log_ratios(inputs)
  is_dropped_BT = importance.moves_away(log_ratios_BT, inputs.advantages) & (
    log_ratios_BT**2 > cutoff
  )
  bounded_BT, is_bounded_BT = importance.bounded(log_ratios_BT)
  surrogate_BT = jnp.exp(bounded_BT) * inputs.advantages[:, None]
  return token_losses.of_advantages(
    inputs,
    jnp.where(is_dropped_BT, 0.0, -surrogate_BT),
    is_dropped_BT | is_bounded_BT,
  )


def bapo(inputs: base.LossInputs) -> base.TokenLoss:
  """Returns -min(r A, clip(r, c_low, c_high) A) with bounds of this batch.

  BAPO, https://arxiv.org/abs/2510.18927, algorithm 1. A batch has one pair of
  bounds, whatever its microbatches. The rows of a batch of the paper have one
  mu, where these have a mu each.

  Args:
    inputs: logprobs, behavior_logprobs, advantages, loss_mask and statistics
      are read. statistics: what `statistics.balanced_clip_bounds` returned.

  Raises:
    ValueError: there are no such statistics.
  """
  surrogate_BT, is_clipped_BT = token_losses.bounded_surrogate(
    token_losses.log_ratios(inputs),
    inputs.advantages[:, None],
    lowest=token_losses.statistic(inputs, 'lowest_ratio', 'bapo'),
    highest=token_losses.statistic(inputs, 'highest_ratio', 'bapo'),
    max_ratio=jnp.inf,
  )
  return token_losses.of_advantages(inputs, -surrogate_BT, is_clipped_BT)


@constants.checked
def sat(
  inputs: base.LossInputs,
  *,
  clip_low: Annotated[base.Scalar, constants.interval('[0, 1e+06]')],
  clip_high: Annotated[base.Scalar, constants.interval('[0, 1e+06]')],
  exponent: Annotated[base.Scalar, constants.interval('(0, 100]')],
) -> base.TokenLoss:
  """Returns -min(r A, clip(r, lowest, highest) A) with bounds of each token.

  SAT, "Stale but Stable: Staleness-Adaptive Trust Regions",
  https://arxiv.org/abs/2607.18722. With d = sg(log r) and q the quantile of |d|
  over the batch, a token with |d| <= q has the bounds 1 - clip_low and
  1 + clip_high of PPO. Beyond q, a factor c < 1 pulls in one bound:
  1 + c clip_high where d > 0, and 1 - c clip_low where d < 0. So the interval
  is inside that of PPO, and no token on its way back to r = 1 is clipped.

  We do not know the kernel of the paper. Here c = 1 / (1 + (|d| / q)^exponent),
  the Hill function, which is at most 1/2 there.

  Args:
    inputs: logprobs, behavior_logprobs, advantages, loss_mask and statistics
      are read. statistics: what `statistics.log_ratio_quantile` returned.
    clip_low: 1 or more for no lower bound of a token with |d| <= q.
    clip_high: finite, because no factor makes an infinite bound smaller.
    exponent: 2 in the paper.

  Raises:
    ValueError: there is no such statistic.
  """
  quantile = token_losses.statistic(inputs, 'log_ratio_quantile', 'sat')
  log_ratios_BT = token_losses.log_ratios(inputs)
  bounded_BT, _ = importance.bounded(jax.lax.stop_gradient(log_ratios_BT))
  # With q = 0, the tokens beyond it have no scale, and keep their bounds.
  is_far_BT = (jnp.abs(bounded_BT) > quantile) & (quantile > 0)
  scaled_BT = jnp.abs(bounded_BT) / jnp.where(quantile > 0, quantile, 1.0)
  kernel_BT = 1.0 / (1.0 + scaled_BT**exponent)
  # Both bounds may have the factor: that on the other side of 1 never acts.
  factors_BT = jnp.where(is_far_BT, kernel_BT, 1.0)
  surrogate_BT, is_clipped_BT = token_losses.bounded_surrogate(
    log_ratios_BT,
    inputs.advantages[:, None],
    lowest=1.0 - clip_low * factors_BT,
    highest=1.0 + clip_high * factors_BT,
    max_ratio=jnp.inf,
  )
  return token_losses.of_advantages(inputs, -surrogate_BT, is_clipped_BT)


def reinforce(inputs: base.LossInputs) -> base.TokenLoss:
  """Returns -A log pi, with no correction for the age of the rollout.

  Williams, "Simple Statistical Gradient-Following Algorithms for Connectionist
  Reinforcement Learning", 1992. Nothing is clipped.

  Args:
    inputs: logprobs, advantages and loss_mask are read.
  """
  token_losses.check(inputs)
  return token_losses.weighted(inputs, 1.0, jnp.zeros_like(inputs.loss_mask))


@constants.checked
def asymre(
  inputs: base.LossInputs,
  *,
  delta_v: Annotated[base.Scalar, constants.interval('[-1e+06, 1e+06]')],
) -> base.TokenLoss:
  """Returns -(A - delta_v) log pi, REINFORCE with a shifted baseline.

  AsymRE, https://arxiv.org/abs/2506.20520: the baseline is the mean reward of
  the group at generation plus `delta_v`, so A is to be
  `advantages.group_mean_baseline`. A negative `delta_v` gives more weight to
  good responses than to bad ones. Nothing is clipped.

  Args:
    inputs: logprobs, advantages and loss_mask are read.
    delta_v: in units of reward, -0.1 in https://arxiv.org/abs/2604.08706.
  """
  token_losses.check(inputs)
  return reinforce(inputs._replace(advantages=inputs.advantages - delta_v))


@constants.checked
def cispo(
  inputs: base.LossInputs, *, clip_low: _Clip, clip_high: _Clip
) -> base.TokenLoss:
  """Returns -sg(clip(r, 1 - clip_low, 1 + clip_high)) A log pi.

  CISPO, MiniMax-M1, https://arxiv.org/abs/2506.13585, equations 4 and 5: the
  weight is bounded, and no token loses its gradient.

  Args:
    inputs: logprobs, behavior_logprobs, advantages and loss_mask are read.
    clip_low: 1 or more for no lower bound, as in the paper.
    clip_high: inf for no upper bound.
  """
  log_ratios_BT, is_bounded_BT = importance.bounded(
    token_losses.log_ratios(inputs)
  )
  ratios_BT = jnp.exp(log_ratios_BT)
  weights_BT = jnp.clip(ratios_BT, 1.0 - clip_low, 1.0 + clip_high)
  return token_losses.weighted(
    inputs, weights_BT, is_bounded_BT | (weights_BT != ratios_BT)
  )


def topr(inputs: base.LossInputs) -> base.TokenLoss:
  """Returns -w A log pi, w = 1 where A >= 0, else sg(min(pi(y) / mu(y), 1)).

  TOPR, https://arxiv.org/abs/2503.14286, the canonical form: good responses
  are imitated, bad ones are dropped as they become unlikely. The ratio is that
  of the whole sequence y, so long responses are tapered sooner.

  Args:
    inputs: logprobs, behavior_logprobs, advantages and loss_mask are read.
  """
  log_ratios_B = jnp.sum(token_losses.log_ratios(inputs), axis=1)
  bounded_B, is_bounded_B = importance.bounded(log_ratios_B)
  is_bad_B = inputs.advantages < 0
  weights_B = jnp.where(is_bad_B, jnp.exp(jnp.minimum(bounded_B, 0.0)), 1.0)
  is_clipped_B = is_bad_B & (is_bounded_B | (log_ratios_B > 0))
  return token_losses.weighted(
    inputs, weights_B[:, None], is_clipped_B[:, None]
  )


def total(*loss_fns: base.LossFn) -> base.LossFn:
  """Returns the loss that adds these losses.

  It marks a token as clipped if any of them does.
  """

  def loss_fn(inputs: base.LossInputs) -> base.TokenLoss:
    terms = [function(inputs) for function in loss_fns]
    return base.TokenLoss(
      loss=functools.reduce(operator.add, [term.loss for term in terms]),
      is_clipped=functools.reduce(
        operator.or_, [term.is_clipped for term in terms]
      ),
    )

  return loss_fn


def token_mean(loss_mask: base.Array) -> base.Array:
  """Returns weights that give each token the same share.

  DAPO, https://arxiv.org/abs/2503.14476, equation 12.

  Args:
    loss_mask: `[B, T]` bool.

  Returns:
    `[B, T]` float32; they sum to 1, or to 0 if there is no token.
  """
  _check_mask(loss_mask)
  return loss_mask / _at_least_one(jnp.sum(loss_mask))


def sequence_mean(loss_mask: base.Array) -> base.Array:
  """Returns weights that give each row the same share, and so its tokens.

  GRPO, https://arxiv.org/abs/2402.03300, equation 3. Rows without a token are
  not counted.

  Args:
    loss_mask: `[B, T]` bool.

  Returns:
    `[B, T]` float32; they sum to 1, or to 0 if there is no token.
  """
  _check_mask(loss_mask)
  lengths_B1 = _at_least_one(jnp.sum(loss_mask, axis=1, keepdims=True))
  return loss_mask / (lengths_B1 * _at_least_one(_num_rows(loss_mask)))


@constants.checked
def constant(
  loss_mask: base.Array,
  *,
  tokens_per_row: Annotated[base.Scalar, constants.interval('[1, 1e+09]')],
) -> base.Array:
  """Returns one weight for all tokens, whatever the lengths of the responses.

  Dr. GRPO, https://arxiv.org/abs/2503.20783, section 3.2. Rows without a token
  are not counted.

  Args:
    loss_mask: `[B, T]` bool.
    tokens_per_row: the same number in all updates, such as R.

  Returns:
    `[B, T]` float32, 1 / (rows * tokens_per_row) in the mask.
  """
  _check_mask(loss_mask)
  return loss_mask / (tokens_per_row * _at_least_one(_num_rows(loss_mask)))


def _num_rows(loss_mask: base.Array) -> base.Array:
  return jnp.sum(jnp.any(loss_mask, axis=1))


def _at_least_one(counts: base.Array) -> base.Array:
  return jnp.maximum(counts, 1).astype(jnp.float32)


def _check_mask(loss_mask: base.Array) -> None:
  chex.assert_rank(loss_mask, 2)
  chex.assert_type(loss_mask, bool)
