"""Losses with a divergence from another policy.

`reference_kl` and `behavior_kl` are terms to add to a policy loss, such as
`clipped_surrogate(...) + behavior_kl(coefficient=0.01)`. `tba` is a policy loss
with the divergence in its advantage.
"""

from typing import Annotated

import jax
import jax.numpy as jnp

from replay_rl import base
from replay_rl import constants
from replay_rl.rl import importance
from replay_rl.rl import token_losses

_Coefficient = Annotated[base.Scalar, constants.interval('[0, 1e+06]')]


@constants.checked
def reference_kl(
  inputs: base.LossInputs, *, coefficient: _Coefficient
) -> base.TokenLoss:
  """Returns coefficient (exp(x) - x - 1), x = log pi_ref - log pi.

  GRPO, https://arxiv.org/abs/2402.03300, equation 4. Its mean over tokens of pi
  is KL(pi, pi_ref); as in GRPO, no weight corrects for tokens that mu sampled.

  Args:
    inputs: logprobs, reference_logprobs and loss_mask are read.
    coefficient: in units of the policy loss per nat, 0.04 in the paper.

  Raises:
    ValueError: there are no reference_logprobs.
  """
  reference_BT = base.required(inputs, 'reference_logprobs', 'reference_kl')
  return _k3(inputs, reference_BT, inputs.logprobs, coefficient)


@constants.checked
def behavior_kl(
  inputs: base.LossInputs, *, coefficient: _Coefficient
) -> base.TokenLoss:
  """Returns coefficient (exp(x) - x - 1), x = log pi - log mu.

  Its mean over tokens of mu is KL(mu, pi), the penalty of PPO,
  https://arxiv.org/abs/1707.06347, equation 8. The paper sums over all tokens
  and adapts the coefficient, where this takes the sampled token and a constant.

  Args:
    inputs: logprobs, behavior_logprobs and loss_mask are read.
    coefficient: in units of the policy loss per nat.
  """
  return _k3(inputs, inputs.logprobs, inputs.behavior_logprobs, coefficient)


@constants.checked
def tba(
  inputs: base.LossInputs,
  *,
  beta: Annotated[base.Scalar, constants.interval('[0, 1e+06]')],
) -> base.TokenLoss:
  """Returns -sg(A - beta (l - mean l)) log pi, l = log pi(y) / pi_ref(y).

  Trajectory Balance with Asynchrony, https://arxiv.org/abs/2503.18929: the
  gradient of its loss, up to a constant factor, if A is
  `advantages.group_mean_baseline`. The mean of l is over the rows with the same
  prompt, so a prompt with one row has no penalty. Nothing is clipped.

  Args:
    inputs: logprobs, reference_logprobs, advantages, prompt_id, loss_mask and
      statistics are read. statistics: what
      `statistics.mean_reference_log_ratio` returned.
    beta: in units of reward per nat.

  Raises:
    ValueError: there are no reference_logprobs or no such statistic.
  """
  token_losses.check(inputs)
  reference_BT = base.required(inputs, 'reference_logprobs', 'tba')
  means_C, prompt_id_C = (
    token_losses.statistic(inputs, name, 'tba')
    for name in ('mean_reference_log_ratio', 'prompt_id')
  )
  # Each row of a microbatch is one of the C rows of the whole batch.
  is_prompt_BC = inputs.prompt_id[:, None] == prompt_id_C[None, :]
  means_B = means_C[jnp.argmax(is_prompt_BC, axis=1)]
  log_ratios_BT = importance.log_ratios(
    inputs.logprobs, reference_BT, inputs.loss_mask
  )
  log_ratios_B = jnp.sum(log_ratios_BT, axis=1)
  advantages_B = inputs.advantages - beta * (log_ratios_B - means_B)
  return token_losses.weighted(
    inputs._replace(advantages=jax.lax.stop_gradient(advantages_B)),
    1.0,
    jnp.zeros_like(inputs.loss_mask),
  )


def _k3(
  inputs: base.LossInputs,
  logprobs: base.Array,
  sampling_logprobs: base.Array,
  coefficient: base.Scalar,
) -> base.TokenLoss:
  # k3 of Schulman, "Approximating KL Divergence", 2020: it has the mean of -x
  # over tokens of the sampling policy, and is never negative.
  token_losses.check(inputs)
  log_ratios_BT, is_bounded_BT = importance.bounded(
    importance.log_ratios(logprobs, sampling_logprobs, inputs.loss_mask)
  )
  return base.TokenLoss(
    loss=coefficient * (jnp.expm1(log_ratios_BT) - log_ratios_BT),
    is_clipped=is_bounded_BT,
  )
