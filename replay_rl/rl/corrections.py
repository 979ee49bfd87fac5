"""Policy losses that correct for the age of a token by a weight.

They are functions as in `losses`: r is pi / mu, A is the advantage of the row,
and sg stops the gradient. `is_clipped` marks the tokens of non-zero advantage
whose gradient a bound removes, or whose weight it changes.
"""

from typing import Annotated

import chex
import jax
import jax.numpy as jnp

from replay_rl import base
from replay_rl import constants
from replay_rl.rl import importance
from replay_rl.rl import losses
from replay_rl.rl import token_losses

_Clip = Annotated[base.Scalar, constants.interval('[0, inf]')]
_MaxRatio = Annotated[base.Scalar, constants.interval('[1e-06, inf]')]
# A band without 1 would drop the tokens of the policy itself.
_Lowest = Annotated[base.Scalar, constants.FRACTION]
_Highest = Annotated[base.Scalar, constants.interval('[1, inf]')]


@constants.checked
def truncated_importance_sampling(
  inputs: base.LossInputs, *, max_ratio: _MaxRatio
) -> base.TokenLoss:
  """Returns -sg(min(r, max_ratio)) A log pi.

  Truncation as in IMPALA, https://arxiv.org/abs/1802.01561, section 4.1, at
  each token by itself.

  Args:
    inputs: logprobs, behavior_logprobs, advantages and loss_mask are read.
    max_ratio: the largest weight of a token.
  """
  return _truncated(inputs, token_losses.log_ratios(inputs), max_ratio)


@constants.checked
def sequence_truncated_importance_sampling(
  inputs: base.LossInputs, *, max_ratio: _MaxRatio
) -> base.TokenLoss:
  """Returns -sg(min(pi(y) / mu(y), max_ratio)) A log pi, y the whole response.

  The objective of `vcpo` with the advantage A in place of R - b*.

  Args:
    inputs: logprobs, behavior_logprobs, advantages and loss_mask are read.
    max_ratio: the largest weight of a row, 8 in the paper.
  """
  log_ratios_BT = token_losses.log_ratios(inputs)
  log_ratios_B1 = jnp.sum(log_ratios_BT, axis=1, keepdims=True)
  return _truncated(inputs, log_ratios_B1, max_ratio)


@constants.checked
def vcpo(inputs: base.LossInputs, *, max_ratio: _MaxRatio) -> base.TokenLoss:
  """Returns -sg(min(pi(y) / mu(y), max_ratio)) (R - b*) log pi.

  VCPO, "Stable Asynchrony: Variance-Controlled Off-Policy RL for LLMs",
  https://arxiv.org/abs/2602.17616. R is the reward of the response y and b* the
  baseline of least variance. `gates.ess_scaled_rate` is the other half of the
  method. The advantages are not read.

  Args:
    inputs: logprobs, behavior_logprobs, rewards, loss_mask and statistics are
      read. statistics: what `statistics.optimal_baseline` returned.
    max_ratio: the largest weight of a row, 8 in the paper.

  Raises:
    ValueError: there is no such statistic.
  """
  token_losses.check(inputs)
  chex.assert_equal_shape([inputs.rewards, inputs.advantages])
  baseline = token_losses.statistic(inputs, 'optimal_baseline', 'vcpo')
  return sequence_truncated_importance_sampling(
    inputs._replace(advantages=inputs.rewards - baseline), max_ratio=max_ratio
  )


@constants.checked
def masked_importance_sampling(
  inputs: base.LossInputs, *, max_ratio: _Highest
) -> base.TokenLoss:
  """Returns -sg(w) A log pi, w = r where r <= max_ratio, else 0.

  Masked importance sampling (MIS), as `icepop` without a lower bound. There, r
  is the mismatch of two programs that compute one policy. Here, r also has the
  age of the token.

  Args:
    inputs: logprobs, behavior_logprobs, advantages and loss_mask are read.
    max_ratio: the largest ratio of a token that is kept, such as 2.
  """
  return _banded(inputs, 0.0, max_ratio)


@constants.checked
def icepop(
  inputs: base.LossInputs, *, lowest: _Lowest, highest: _Highest
) -> base.TokenLoss:
  """Returns -sg(w) A log pi, w = r where lowest <= r <= highest, else 0.

  IcePop, in "Every Step Evolves: Scaling Reinforcement Learning for
  Trillion-Scale Thinking Model", https://arxiv.org/abs/2510.18855. There, w is
  the mismatch of two programs that compute one policy, and the factor of a
  clipped surrogate. Here, r also has the age of the token, and w is the only
  factor.

  Args:
    inputs: logprobs, behavior_logprobs, advantages and loss_mask are read.
    lowest: the smallest ratio of a token that is kept, such as 0.5.
    highest: the largest ratio of a token that is kept, such as 5.
  """
  return _banded(inputs, lowest, highest)


@constants.checked
def decoupled_ppo(
  inputs: base.LossInputs,
  *,
  clip_low: _Clip,
  clip_high: _Clip,
  max_ratio: _MaxRatio,
) -> base.TokenLoss:
  """Returns -sg(min(w, max_ratio)) min(u A, clip(u) A).

  w is pi_prox / mu and u is pi / pi_prox, bounded by 1 - clip_low and
  1 + clip_high: decoupled PPO as in AReaL, https://arxiv.org/abs/2505.24298.
  The code of its authors drops the tokens whose w is above a cap, where this
  truncates w. With one update in each `Learn` event, pi_prox is the policy of
  the update itself, u is 1, and only w corrects.

  Args:
    inputs: logprobs, behavior_logprobs, proximal_logprobs, advantages and
      loss_mask are read.
    clip_low: 1 or more for no lower bound.
    clip_high: inf for no upper bound.
    max_ratio: the largest weight w of a token.

  Raises:
    ValueError: there are no proximal_logprobs.
  """
  proximal_BT = base.required(inputs, 'proximal_logprobs', 'decoupled_ppo')
  token_losses.check(inputs)
  mask_BT = inputs.loss_mask
  return _decoupled(
    inputs,
    importance.log_ratios(proximal_BT, inputs.behavior_logprobs, mask_BT),
    importance.log_ratios(inputs.logprobs, proximal_BT, mask_BT),
    clip_low=clip_low,
    clip_high=clip_high,
    max_ratio=max_ratio,
  )


@constants.checked
def a3po(
  inputs: base.LossInputs,
  *,
  clip_low: _Clip,
  clip_high: _Clip,
  max_ratio: _MaxRatio,
) -> base.TokenLoss:
  """Returns the loss of `decoupled_ppo` with an interpolated pi_prox.

  A-3PO, https://arxiv.org/abs/2512.06547: pi_prox is the policy of one update
  ago. With a row of age d, log pi_prox = log mu + (1 - 1 / d) sg(log pi -
  log mu), so it needs no forward pass. At age 0 and 1 it is mu, which gives
  `losses.clipped_surrogate`. The paper takes the version of each token, where
  this takes the age of the row.

  Args:
    inputs: logprobs, behavior_logprobs, advantages, loss_mask and age are read.
    clip_low: 1 or more for no lower bound.
    clip_high: inf for no upper bound.
    max_ratio: the largest weight pi_prox / mu of a token.
  """
  log_ratios_BT = token_losses.log_ratios(inputs)
  chex.assert_equal_shape([inputs.age, inputs.advantages])
  chex.assert_type(inputs.age, int)
  shares_B = 1.0 - 1.0 / jnp.maximum(inputs.age, 1)
  # An infinite log ratio times a share of 0 would be nan.
  bounded_BT, _ = importance.bounded(log_ratios_BT)
  log_weights_BT = jax.lax.stop_gradient(shares_B[:, None] * bounded_BT)
  return _decoupled(
    inputs,
    log_weights_BT,
    log_ratios_BT - log_weights_BT,
    clip_low=clip_low,
    clip_high=clip_high,
    max_ratio=max_ratio,
  )


@constants.checked
def exgrpo(
  inputs: base.LossInputs,
  *,
  clip_low: _Clip,
  clip_high: _Clip,
  beta: Annotated[base.Scalar, constants.interval('[1e-06, 1e+06]')],
) -> base.TokenLoss:
  """Returns -f(r) A for replayed rows, and the clipped surrogate for fresh.

  ExGRPO, https://arxiv.org/abs/2510.02245, the policy shaping of replayed
  rollouts: f(r) = r / (r + beta). Where r has the gradient r to log pi, f has
  r beta / (r + beta)^2, which is larger for a small r, and falls as beta / r
  for a large one. Nothing is clipped there.

  Args:
    inputs: logprobs, behavior_logprobs, advantages, loss_mask and is_fresh are
      read.
    clip_low: of fresh rows; 1 or more for no lower bound.
    clip_high: of fresh rows; inf for no upper bound.
    beta: 0.1 in the paper.
  """
  fresh = losses.clipped_surrogate(
    inputs, clip_low=clip_low, clip_high=clip_high, dual_clip=None
  )
  bounded_BT, is_bounded_BT = importance.bounded(
    token_losses.log_ratios(inputs)
  )
  # r / (r + beta) = 1 / (1 + exp(-(log r - log beta))).
  shaped_BT = jax.nn.sigmoid(bounded_BT - jnp.log(beta))
  replayed = token_losses.of_advantages(
    inputs, -shaped_BT * inputs.advantages[:, None], is_bounded_BT
  )
  return jax.tree.map(
    lambda of_fresh, of_replayed: jnp.where(
      inputs.is_fresh[:, None], of_fresh, of_replayed
    ),
    *(fresh, replayed),
  )


def _truncated(
  inputs: base.LossInputs, log_ratios: base.Array, max_ratio: base.Scalar
) -> base.TokenLoss:
  bounded, is_bounded = importance.bounded(log_ratios)
  ratios = jnp.exp(bounded)
  return token_losses.weighted(
    inputs, jnp.minimum(ratios, max_ratio), is_bounded | (ratios > max_ratio)
  )


def _banded(
  inputs: base.LossInputs, lowest: base.Scalar, highest: base.Scalar
) -> base.TokenLoss:
  log_ratios_BT = token_losses.log_ratios(inputs)
  bounded_BT, is_bounded_BT = importance.bounded(log_ratios_BT)
  ratios_BT = jnp.exp(bounded_BT)
  is_kept_BT = (ratios_BT >= lowest) & (ratios_BT <= highest)
  return token_losses.weighted(
    inputs,
    jnp.where(is_kept_BT, ratios_BT, 0.0),
    is_bounded_BT | ~is_kept_BT,
  )


def _decoupled(
  inputs: base.LossInputs,
  log_weights: base.Array,
  log_ratios: base.Array,
  *,
  clip_low: base.Scalar,
  clip_high: base.Scalar,
  max_ratio: base.Scalar,
) -> base.TokenLoss:
  """Returns `decoupled_ppo` from log w and log u, zero outside the mask."""
  bounded_BT, is_bounded_BT = importance.bounded(log_weights)
  weights_BT = jnp.exp(bounded_BT)
  surrogate_BT, is_clipped_BT = token_losses.bounded_surrogate(
    log_ratios,
    inputs.advantages[:, None],
    lowest=1.0 - clip_low,
    highest=1.0 + clip_high,
    max_ratio=jnp.inf,
  )
  return token_losses.of_advantages(
    inputs,
    -jnp.minimum(weights_BT, max_ratio) * surrogate_BT,
    is_clipped_BT | is_bounded_BT | (weights_BT > max_ratio),
  )
