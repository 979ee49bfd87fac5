"""Policy losses, one function per paper, and how their tokens are averaged.

With its constants bound, each loss is a `base.LossFn`: it returns one number
per token, before any average. The ratio r is always pi / mu, the learner's
policy over the one that sampled the token; A is the advantage of the row.

`is_clipped` marks the tokens of non-zero advantage at which a bound acts. The
bound removes the gradient in `clipped_surrogate`, `gspo` and `m2po`, and limits
the weight of the gradient in the others. Before any exponential, every loss
passes its log ratios through `importance.bounded`, which is such a bound too.

A normalizer is a `base.NormalizerFn`: the loss is sum(weights * loss). The
weights come from the mask of the whole batch, before it is cut into
microbatches, so that the sum over the microbatches is the loss of the batch.
"""

from typing import Annotated

import chex
import jax
import jax.numpy as jnp

from replay_rl import base
from replay_rl import constants
from replay_rl.rl import importance

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
  surrogate_BT, is_clipped_BT = _bounded_surrogate(
    _log_ratios(inputs),
    inputs.advantages[:, None],
    clip_low=clip_low,
    clip_high=clip_high,
    max_ratio=jnp.inf if dual_clip is None else dual_clip,
  )
  return _token_loss(inputs, -surrogate_BT, is_clipped_BT)


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
  log_ratios_BT = _log_ratios(inputs)
  lengths_B = jnp.maximum(jnp.sum(inputs.loss_mask, axis=1), 1)
  surrogate_B, is_clipped_B = _bounded_surrogate(
    jnp.sum(log_ratios_BT, axis=1) / lengths_B,
    inputs.advantages,
    clip_low=clip_low,
    clip_high=clip_high,
    max_ratio=jnp.inf,
  )
  return _token_loss(inputs, -surrogate_B[:, None], is_clipped_B[:, None])


def m2po(inputs: base.LossInputs) -> base.TokenLoss:
  """Returns -r A, but zero for tokens that the whole batch drops.

  M2PO, https://arxiv.org/abs/2510.01161: tokens at which the gradient moves the
  ratio further from 1 are dropped where the square of their log ratio is above
  the cutoff, and count as clipped. The normalizer still counts them.

  Args:
    inputs: logprobs, behavior_logprobs, advantages, loss_mask and statistics
      are read. statistics: what `statistics.second_moment_cutoff` returned.

  Raises:
    ValueError: there are no statistics.
  """
  statistics = base.required(inputs, 'statistics', 'm2po')
  log_ratios_BT = _log_ratios(inputs)
  is_dropped_BT = importance.moves_away(log_ratios_BT, inputs.advantages) & (
    log_ratios_BT**2 > statistics['second_moment_cutoff']
  )
  bounded_BT, is_bounded_BT = importance.bounded(log_ratios_BT)
  surrogate_BT = jnp.exp(bounded_BT) * inputs.advantages[:, None]
  return _token_loss(
    inputs,
    jnp.where(is_dropped_BT, 0.0, -surrogate_BT),
    is_dropped_BT | is_bounded_BT,
  )


def reinforce(inputs: base.LossInputs) -> base.TokenLoss:
  """Returns -A log pi, with no correction for the age of the rollout.

  Williams, "Simple Statistical Gradient-Following Algorithms for Connectionist
  Reinforcement Learning", 1992. Nothing is clipped.

  Args:
    inputs: logprobs, advantages and loss_mask are read.
  """
  _check(inputs)
  return _weighted(inputs, 1.0, jnp.zeros_like(inputs.loss_mask))


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
  _check(inputs)
  return reinforce(inputs._replace(advantages=inputs.advantages - delta_v))


@constants.checked
def truncated_importance_sampling(
  inputs: base.LossInputs,
  *,
  max_ratio: Annotated[base.Scalar, constants.interval('[1e-06, inf]')],
) -> base.TokenLoss:
  """Returns -sg(min(r, max_ratio)) A log pi, sg stopping the gradient.

  Truncation as in IMPALA, https://arxiv.org/abs/1802.01561, section 4.1, at
  each token by itself.

  Args:
    inputs: logprobs, behavior_logprobs, advantages and loss_mask are read.
    max_ratio: the largest weight of a token.
  """
  log_ratios_BT, is_bounded_BT = importance.bounded(_log_ratios(inputs))
  ratios_BT = jnp.exp(log_ratios_BT)
  return _weighted(
    inputs,
    jnp.minimum(ratios_BT, max_ratio),
    is_bounded_BT | (ratios_BT > max_ratio),
  )


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
  log_ratios_BT, is_bounded_BT = importance.bounded(_log_ratios(inputs))
  ratios_BT = jnp.exp(log_ratios_BT)
  weights_BT = jnp.clip(ratios_BT, 1.0 - clip_low, 1.0 + clip_high)
  return _weighted(
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
  log_ratios_B = jnp.sum(_log_ratios(inputs), axis=1)
  bounded_B, is_bounded_B = importance.bounded(log_ratios_B)
  is_bad_B = inputs.advantages < 0
  weights_B = jnp.where(is_bad_B, jnp.exp(jnp.minimum(bounded_B, 0.0)), 1.0)
  is_clipped_B = is_bad_B & (is_bounded_B | (log_ratios_B > 0))
  return _weighted(inputs, weights_B[:, None], is_clipped_B[:, None])


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


def _bounded_surrogate(
  log_ratios: base.Array,
  advantages: base.Array,
  *,
  clip_low: base.Scalar,
  clip_high: base.Scalar,
  max_ratio: base.Scalar,
) -> tuple[base.Array, base.Array]:
  # min(r A, clip(r) A) is A times r, bounded on the one side to which A pushes
  # r: above where A > 0 and below where A < 0.
  lower = jnp.where(advantages < 0, jnp.maximum(1.0 - clip_low, 0.0), 0.0)
  upper = jnp.where(advantages < 0, max_ratio, 1.0 + clip_high)
  # The bound is on log r. On r itself, the gradient of a clipped token would be
  # 0 * exp(log r), which is nan once exp overflows.
  bounded, _ = importance.bounded(log_ratios)
  bounded = jnp.clip(bounded, jnp.log(lower), jnp.log(upper))
  return jnp.exp(bounded) * advantages, bounded != log_ratios


def _weighted(
  inputs: base.LossInputs,
  weights: base.Array | float,
  is_clipped: base.Array,
) -> base.TokenLoss:
  """Returns -sg(weights) A log pi."""
  weights = jax.lax.stop_gradient(weights)
  loss_BT = -weights * inputs.advantages[:, None] * inputs.logprobs
  return _token_loss(inputs, loss_BT, is_clipped)


def _token_loss(
  inputs: base.LossInputs, loss: base.Array, is_clipped: base.Array
) -> base.TokenLoss:
  mask_BT = inputs.loss_mask
  has_gradient_BT = mask_BT & (inputs.advantages != 0)[:, None]
  return base.TokenLoss(
    loss=jnp.where(mask_BT, loss, 0.0),
    is_clipped=has_gradient_BT & is_clipped,
  )


def _log_ratios(inputs: base.LossInputs) -> base.Array:
  _check(inputs)
  return importance.log_ratios(
    inputs.logprobs, inputs.behavior_logprobs, inputs.loss_mask
  )


def _check(inputs: base.LossInputs) -> None:
  chex.assert_rank([inputs.logprobs, inputs.advantages], [2, 1])
  chex.assert_equal_shape(
    [inputs.logprobs, inputs.behavior_logprobs, inputs.loss_mask]
  )
  chex.assert_equal_shape_prefix([inputs.logprobs, inputs.advantages], 1)
  chex.assert_type(
    [inputs.logprobs, inputs.behavior_logprobs, inputs.advantages], float
  )
  chex.assert_type(inputs.loss_mask, bool)


def _num_rows(loss_mask: base.Array) -> base.Array:
  return jnp.sum(jnp.any(loss_mask, axis=1))


def _at_least_one(counts: base.Array) -> base.Array:
  return jnp.maximum(counts, 1).astype(jnp.float32)


def _check_mask(loss_mask: base.Array) -> None:
  chex.assert_rank(loss_mask, 2)
  chex.assert_type(loss_mask, bool)
