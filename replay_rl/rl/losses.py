"""Policy losses, one function per paper, and how their tokens are averaged.

With its constants bound, each loss is a `base.LossFn`: it returns one number
per token, before any average. The ratio is always pi / mu, the learner's policy
over the one that sampled the token. `is_clipped` marks the tokens of non-zero
advantage at which a bound acts: it removes the gradient in `clipped_surrogate`
and `gspo`, and limits its weight in the others.

A normalizer is a `base.NormalizerFn`: the loss is sum(weights * loss). The
weights come from the mask of the whole batch, before it is cut into
microbatches, so that the sum over the microbatches is the loss of the batch.
"""

import chex
import jax
import jax.numpy as jnp

from replay_rl import base
from replay_rl.rl import importance


def clipped_surrogate(
  logprobs: base.Array,
  behavior_logprobs: base.Array,
  advantages: base.Array,
  loss_mask: base.Array,
  *,
  clip_low: float,
  clip_high: float,
  dual_clip: float | None,
) -> base.TokenLoss:
  """Returns -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), r = pi / mu.

  PPO, https://arxiv.org/abs/1707.06347, equation 7; as in GRPO,
  https://arxiv.org/abs/2402.03300, equation 3, without the KL term. Two bounds
  as in DAPO, https://arxiv.org/abs/2503.14476, equation 10. With `dual_clip`,
  -max(min(...), dual_clip A) where A < 0, https://arxiv.org/abs/1912.09729.

  Args:
    logprobs: `[B, T]` float, log pi of each token.
    behavior_logprobs: `[B, T]` float, log mu of each token.
    advantages: `[B]` float, A of each row.
    loss_mask: `[B, T]` bool.
    clip_low: 1 or more for no lower bound.
    clip_high: inf for no upper bound.
    dual_clip: the largest ratio where A < 0, above 1; None for no bound.

  Returns:
    `base.TokenLoss`.
  """
  _check(logprobs, behavior_logprobs, advantages, loss_mask)
  log_ratios_BT = importance.log_ratios(logprobs, behavior_logprobs, loss_mask)
  surrogate_BT, is_clipped_BT = _bounded_surrogate(
    log_ratios_BT,
    advantages[:, None],
    clip_low=clip_low,
    clip_high=clip_high,
    max_ratio=jnp.inf if dual_clip is None else dual_clip,
  )
  return _token_loss(-surrogate_BT, is_clipped_BT, advantages, loss_mask)


def gspo(
  logprobs: base.Array,
  behavior_logprobs: base.Array,
  advantages: base.Array,
  loss_mask: base.Array,
  *,
  clip_low: float,
  clip_high: float,
) -> base.TokenLoss:
  """Returns the clipped surrogate of s = exp(mean of log r over the tokens).

  GSPO, https://arxiv.org/abs/2507.18071, equations 5 and 7: the ratio of the
  sequence, normalised by its length, which each token of the row repeats. With
  `sequence_mean` the loss is that of the paper.

  Args:
    logprobs: `[B, T]` float, log pi of each token.
    behavior_logprobs: `[B, T]` float, log mu of each token.
    advantages: `[B]` float, A of each row.
    loss_mask: `[B, T]` bool.
    clip_low: 1 or more for no lower bound; 3e-4 in the paper.
    clip_high: inf for no upper bound; 4e-4 in the paper.

  Returns:
    `base.TokenLoss`.
  """
  _check(logprobs, behavior_logprobs, advantages, loss_mask)
  log_ratios_BT = importance.log_ratios(logprobs, behavior_logprobs, loss_mask)
  lengths_B = jnp.maximum(jnp.sum(loss_mask, axis=1), 1)
  surrogate_B, is_clipped_B = _bounded_surrogate(
    jnp.sum(log_ratios_BT, axis=1) / lengths_B,
    advantages,
    clip_low=clip_low,
    clip_high=clip_high,
    max_ratio=jnp.inf,
  )
  return _token_loss(
    -surrogate_B[:, None], is_clipped_B[:, None], advantages, loss_mask
  )


def reinforce(
  logprobs: base.Array,
  behavior_logprobs: base.Array,
  advantages: base.Array,
  loss_mask: base.Array,
) -> base.TokenLoss:
  """Returns -A log pi, with no correction for the age of the rollout.

  Williams, "Simple Statistical Gradient-Following Algorithms for Connectionist
  Reinforcement Learning", 1992.

  Args:
    logprobs: `[B, T]` float, log pi of each token.
    behavior_logprobs: `[B, T]` float, not used.
    advantages: `[B]` float, A of each row.
    loss_mask: `[B, T]` bool.

  Returns:
    `base.TokenLoss`; nothing is clipped.
  """
  _check(logprobs, behavior_logprobs, advantages, loss_mask)
  del behavior_logprobs
  loss_BT = -advantages[:, None] * logprobs
  return _token_loss(loss_BT, jnp.zeros_like(loss_mask), advantages, loss_mask)


def asymre(
  logprobs: base.Array,
  behavior_logprobs: base.Array,
  advantages: base.Array,
  loss_mask: base.Array,
  *,
  delta_v: float,
) -> base.TokenLoss:
  """Returns -(A - delta_v) log pi, REINFORCE with a shifted baseline.

  AsymRE, https://arxiv.org/abs/2506.20520: the baseline is the mean reward of
  the group at generation plus `delta_v`, so A is to be
  `advantages.group_mean_baseline`. A negative `delta_v` gives more weight to
  good responses than to bad ones.

  Args:
    logprobs: `[B, T]` float, log pi of each token.
    behavior_logprobs: `[B, T]` float, not used.
    advantages: `[B]` float, A = r - mean of each row.
    loss_mask: `[B, T]` bool.
    delta_v: in units of reward, -0.1 in https://arxiv.org/abs/2604.08706.

  Returns:
    `base.TokenLoss`; nothing is clipped.
  """
  _check(logprobs, behavior_logprobs, advantages, loss_mask)
  return reinforce(logprobs, behavior_logprobs, advantages - delta_v, loss_mask)


def truncated_importance_sampling(
  logprobs: base.Array,
  behavior_logprobs: base.Array,
  advantages: base.Array,
  loss_mask: base.Array,
  *,
  max_ratio: float,
) -> base.TokenLoss:
  """Returns -sg(min(r, max_ratio)) A log pi, sg stopping the gradient.

  Truncation as in IMPALA, https://arxiv.org/abs/1802.01561, section 4.1, at
  each token by itself.

  Args:
    logprobs: `[B, T]` float, log pi of each token.
    behavior_logprobs: `[B, T]` float, log mu of each token.
    advantages: `[B]` float, A of each row.
    loss_mask: `[B, T]` bool.
    max_ratio: the largest weight of a token.

  Returns:
    `base.TokenLoss`.
  """
  _check(logprobs, behavior_logprobs, advantages, loss_mask)
  ratios_BT = jax.lax.stop_gradient(
    jnp.exp(importance.log_ratios(logprobs, behavior_logprobs, loss_mask))
  )
  weights_BT = jnp.minimum(ratios_BT, max_ratio)
  return _token_loss(
    -weights_BT * advantages[:, None] * logprobs,
    ratios_BT > max_ratio,
    advantages,
    loss_mask,
  )


def cispo(
  logprobs: base.Array,
  behavior_logprobs: base.Array,
  advantages: base.Array,
  loss_mask: base.Array,
  *,
  clip_low: float,
  clip_high: float,
) -> base.TokenLoss:
  """Returns -sg(clip(r, 1 - clip_low, 1 + clip_high)) A log pi.

  CISPO, MiniMax-M1, https://arxiv.org/abs/2506.13585, equations 4 and 5: the
  weight is bounded, and no token loses its gradient.

  Args:
    logprobs: `[B, T]` float, log pi of each token.
    behavior_logprobs: `[B, T]` float, log mu of each token.
    advantages: `[B]` float, A of each row.
    loss_mask: `[B, T]` bool.
    clip_low: 1 or more for no lower bound, as in the paper.
    clip_high: inf for no upper bound.

  Returns:
    `base.TokenLoss`.
  """
  _check(logprobs, behavior_logprobs, advantages, loss_mask)
  ratios_BT = jax.lax.stop_gradient(
    jnp.exp(importance.log_ratios(logprobs, behavior_logprobs, loss_mask))
  )
  weights_BT = jnp.clip(ratios_BT, 1.0 - clip_low, 1.0 + clip_high)
  return _token_loss(
    -weights_BT * advantages[:, None] * logprobs,
    weights_BT != ratios_BT,
    advantages,
    loss_mask,
  )


def topr(
  logprobs: base.Array,
  behavior_logprobs: base.Array,
  advantages: base.Array,
  loss_mask: base.Array,
) -> base.TokenLoss:
  """Returns -w A log pi, w = 1 where A >= 0, else sg(min(pi(y) / mu(y), 1)).

  TOPR, https://arxiv.org/abs/2503.14286, the canonical form: good responses
  are imitated, bad ones are dropped as they become unlikely. The ratio is that
  of the whole sequence y, so long responses are tapered sooner.

  Args:
    logprobs: `[B, T]` float, log pi of each token.
    behavior_logprobs: `[B, T]` float, log mu of each token.
    advantages: `[B]` float, A of each row.
    loss_mask: `[B, T]` bool.

  Returns:
    `base.TokenLoss`.
  """
  _check(logprobs, behavior_logprobs, advantages, loss_mask)
  log_ratios_BT = importance.log_ratios(logprobs, behavior_logprobs, loss_mask)
  log_ratios_B = jax.lax.stop_gradient(jnp.sum(log_ratios_BT, axis=1))
  is_bad_B = advantages < 0
  tapered_B = jnp.exp(jnp.minimum(log_ratios_B, 0.0))
  weights_B = jnp.where(is_bad_B, tapered_B, 1.0)
  return _token_loss(
    -(weights_B * advantages)[:, None] * logprobs,
    (is_bad_B & (log_ratios_B > 0))[:, None],
    advantages,
    loss_mask,
  )


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


def constant(loss_mask: base.Array, *, tokens_per_row: float) -> base.Array:
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
  clip_low: float,
  clip_high: float,
  max_ratio: float,
) -> tuple[base.Array, base.Array]:
  # min(r A, clip(r) A) is A times r, bounded on the one side to which A pushes
  # r: above where A > 0 and below where A < 0.
  lower = jnp.where(advantages < 0, jnp.maximum(1.0 - clip_low, 0.0), 0.0)
  upper = jnp.where(advantages < 0, max_ratio, 1.0 + clip_high)
  # The bound is on log r. On r itself, the gradient of a clipped token would be
  # 0 * exp(log r), which is nan once exp overflows.
  bounded = jnp.clip(log_ratios, jnp.log(lower), jnp.log(upper))
  return jnp.exp(bounded) * advantages, bounded != log_ratios


def _token_loss(
  loss: base.Array,
  is_clipped: base.Array,
  advantages: base.Array,
  loss_mask: base.Array,
) -> base.TokenLoss:
  has_gradient_BT = loss_mask & (advantages != 0)[:, None]
  return base.TokenLoss(
    loss=jnp.where(loss_mask, loss, 0.0),
    is_clipped=has_gradient_BT & is_clipped,
  )


def _num_rows(loss_mask: base.Array) -> base.Array:
  return jnp.sum(jnp.any(loss_mask, axis=1))


def _at_least_one(counts: base.Array) -> base.Array:
  return jnp.maximum(counts, 1).astype(jnp.float32)


def _check(
  logprobs: base.Array,
  behavior_logprobs: base.Array,
  advantages: base.Array,
  loss_mask: base.Array,
) -> None:
  chex.assert_rank([logprobs, advantages], [2, 1])
  chex.assert_equal_shape([logprobs, behavior_logprobs, loss_mask])
  chex.assert_equal_shape_prefix([logprobs, advantages], 1)
  chex.assert_type([logprobs, behavior_logprobs, advantages], float)
  chex.assert_type(loss_mask, bool)


def _check_mask(loss_mask: base.Array) -> None:
  chex.assert_rank(loss_mask, 2)
  chex.assert_type(loss_mask, bool)
