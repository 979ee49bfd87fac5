"""Parts that policy losses share: what they read, weigh and bound."""

from collections.abc import Mapping

import chex
import jax
import jax.numpy as jnp

from replay_rl import base
from replay_rl.rl import importance


def check(inputs: base.LossInputs) -> None:
  """Raises AssertionError if the arrays that most losses read do not fit."""
  chex.assert_rank([inputs.logprobs, inputs.advantages], [2, 1])
  chex.assert_equal_shape(
    [inputs.logprobs, inputs.behavior_logprobs, inputs.loss_mask]
  )
  chex.assert_equal_shape_prefix([inputs.logprobs, inputs.advantages], 1)
  chex.assert_type(
    [inputs.logprobs, inputs.behavior_logprobs, inputs.advantages], float
  )
  chex.assert_type(inputs.loss_mask, bool)


def statistic(inputs: base.LossInputs, name: str, reader: str) -> base.Array:
  """Returns a statistic of the whole batch.

  Args:
    inputs: statistics is read.
    name: key of the statistic.
    reader: name of the loss that needs it, for the message.

  Raises:
    ValueError: there are no statistics, or none of this name.
  """
  statistics = base.required(inputs, 'statistics', reader)
  names = list(statistics) if isinstance(statistics, Mapping) else []
  if name not in names:
    raise ValueError(
      f'LossInputs.statistics = {names}: must have {name!r} for {reader}'
    )
  return statistics[name]


def log_ratios(inputs: base.LossInputs) -> base.Array:
  """Returns log pi - log mu, `[B, T]`, and zero outside the mask."""
  check(inputs)
  return importance.log_ratios(
    inputs.logprobs, inputs.behavior_logprobs, inputs.loss_mask
  )


def bounded_surrogate(
  log_ratios: base.Array,
  advantages: base.Array,
  *,
  lowest: base.Scalar,
  highest: base.Scalar,
  max_ratio: base.Scalar,
) -> tuple[base.Array, base.Array]:
  """Returns min(r A, clip(r, lowest, highest) A), and where a bound acts.

  Args:
    log_ratios: float, any shape, log r in nats.
    advantages: float, of a shape that broadcasts, A.
    lowest: bound of r where A < 0; 0 or less for none.
    highest: bound of r where A >= 0; inf for none.
    max_ratio: a second bound of r where A < 0, from above; inf for none.
  """
  # min(r A, clip(r) A) is A times r, bounded on the one side to which A pushes
  # r: above where A > 0 and below where A < 0.
  lower = jnp.where(advantages < 0, jnp.maximum(lowest, 0.0), 0.0)
  upper = jnp.where(advantages < 0, max_ratio, highest)
  # The bound is on log r. On r itself, the gradient of a clipped token would be
  # 0 * exp(log r), which is nan once exp overflows.
  bounded, _ = importance.bounded(log_ratios)
  bounded = jnp.clip(bounded, jnp.log(lower), jnp.log(upper))
  return jnp.exp(bounded) * advantages, bounded != log_ratios


def weighted(
  inputs: base.LossInputs,
  weights: base.Array | float,
  is_clipped: base.Array,
) -> base.TokenLoss:
  """Returns -sg(weights) A log pi, sg stopping the gradient."""
  weights = jax.lax.stop_gradient(weights)
  loss_BT = -weights * inputs.advantages[:, None] * inputs.logprobs
  return of_advantages(inputs, loss_BT, is_clipped)


def of_advantages(
  inputs: base.LossInputs, loss: base.Array, is_clipped: base.Array
) -> base.TokenLoss:
  """Returns the record of a loss with a factor A, zero outside the mask."""
  mask_BT = inputs.loss_mask
  has_gradient_BT = mask_BT & (inputs.advantages != 0)[:, None]
  return base.TokenLoss(
    loss=jnp.where(mask_BT, loss, 0.0),
    is_clipped=has_gradient_BT & is_clipped,
  )
