"""Statistics of a whole batch, read by losses that see one microbatch.

With its constants bound, each function is a `base.StatisticsFn`.
"""

import math
from typing import Annotated

import jax
import jax.numpy as jnp

from replay_rl import base
from replay_rl import constants
from replay_rl.rl import importance
from replay_rl.rl import token_losses

_Low = Annotated[float, constants.FRACTION]
_High = Annotated[float, constants.interval('[1, 100]')]


@constants.checked
def second_moment_cutoff(
  inputs: base.LossInputs,
  *,
  limit: Annotated[base.Scalar, constants.interval('[0, inf]')],
) -> dict[str, base.Array]:
  """Returns the square of the log ratio above which `losses.m2po` drops tokens.

  M2PO, https://arxiv.org/abs/2510.01161: of the tokens that
  `importance.moves_away` selects, those with the largest squares are dropped,
  until the mean square of the others is at most `limit`. Tokens with equal
  squares are kept or dropped together.

  Args:
    inputs: of the whole batch.
    limit: nats squared, 0.04 in the paper.

  Returns:
    `second_moment_cutoff`: `[]` float, the largest square that is kept; -1 if
    none is.
  """
  log_ratios_BT = importance.log_ratios(
    inputs.logprobs, inputs.behavior_logprobs, inputs.loss_mask
  )
  is_candidate_BT = importance.moves_away(log_ratios_BT, inputs.advantages)
  # The others are sorted behind the candidates, and make any mean infinite.
  squares_BT = jnp.where(is_candidate_BT, log_ratios_BT**2, jnp.inf)
  squares_N = jnp.sort(squares_BT.ravel())
  means_N = jnp.cumsum(squares_N) / jnp.arange(1, squares_N.size + 1)
  next_N = jnp.append(squares_N[1:], jnp.inf)
  # The means rise with the square, so the largest allowed square is the cutoff.
  is_allowed_N = (means_N <= limit) & ((next_N > squares_N) | jnp.isinf(next_N))
  cutoff = jnp.max(jnp.where(is_allowed_N, squares_N, -1.0), initial=-1.0)
  return {'second_moment_cutoff': cutoff}


@constants.checked
def log_ratio_quantile(
  inputs: base.LossInputs,
  *,
  quantile: Annotated[base.Scalar, constants.interval('(0, 1]')],
) -> dict[str, base.Array]:
  """Returns the size of a log ratio beyond which `losses.sat` is stricter.

  SAT, https://arxiv.org/abs/2607.18722: the empirical quantile of |log r|. Here
  it is the smallest |log r| of a token such that at least the share `quantile`
  of all tokens has no larger one, without interpolation.

  Args:
    inputs: of the whole batch.
    quantile: share of the tokens, 0.9 in the paper; 1 for the largest |log r|.

  Returns:
    `log_ratio_quantile`: `[]` float, nats; 0 if there is no token.
  """
  mask_BT = inputs.loss_mask
  bounded_BT, _ = importance.bounded(token_losses.log_ratios(inputs))
  # The tokens are sorted before what is no token.
  sizes_N = jnp.sort(jnp.where(mask_BT, jnp.abs(bounded_BT), jnp.inf).ravel())
  num_tokens = jnp.sum(mask_BT)
  # A product that should be a whole number may be rounded up.
  rank = jnp.ceil(quantile * num_tokens * (1.0 - 1e-6)).astype(jnp.int32)
  size = sizes_N[rank - 1]
  return {'log_ratio_quantile': jnp.where(num_tokens > 0, size, 0.0)}


@constants.checked
def balanced_clip_bounds(
  inputs: base.LossInputs,
  *,
  min_share: Annotated[base.Scalar, constants.FRACTION],
  low_start: _Low,
  low_end: _Low,
  high_start: _High,
  high_end: _High,
  high_step: Annotated[float, constants.interval('[0.01, 100]')],
) -> dict[str, base.Array]:
  """Returns the bounds of the ratio for `losses.bapo`.

  BAPO, https://arxiv.org/abs/2510.18927, equation 8 and algorithm 1: the upper
  bound rises step by step until the tokens with A > 0 have `min_share` of the
  sum of |min(r A, clip(r) A)|. If they have less at its end, the lower bound
  rises too, which only lowers the share, so it goes to its end at once. The
  paper has a step size for it. The sum has no factor mu, because the tokens
  were sampled from mu.

  Args:
    inputs: of the whole batch.
    min_share: the least share of the tokens with A > 0, 0.4 in the paper.
    low_start: the lower bound while the upper one rises, 0.6 in the paper.
    low_end: the lower bound if the share stays too small, 0.9 in the paper.
    high_start: the first upper bound, 1.2 in the paper.
    high_end: the last upper bound, 3 in the paper.
    high_step: 0.05 in the paper; the last step may be shorter.

  Returns:
    `lowest_ratio` and `highest_ratio`: `[]` float.

  Raises:
    ValueError: a start is above its end.
  """
  for name, start, end in (
    ('low', low_start, low_end),
    ('high', high_start, high_end),
  ):
    if start > end:
      raise ValueError(
        f'{name}_start = {start}: must be at most {name}_end = {end}'
      )
  # Rounding may repeat the end, which changes nothing.
  num_steps = math.ceil((high_end - high_start) / high_step)
  highs_K = jnp.array(
    [*(high_start + high_step * i for i in range(num_steps)), high_end]
  )
  log_ratios_BT = token_losses.log_ratios(inputs)
  advantages_B1 = inputs.advantages[:, None]

  def is_enough(high: base.Array) -> base.Array:
    surrogate_BT, _ = token_losses.bounded_surrogate(
      log_ratios_BT,
      advantages_B1,
      lowest=low_start,
      highest=high,
      max_ratio=jnp.inf,
    )
    sizes_BT = jnp.where(inputs.loss_mask, jnp.abs(surrogate_BT), 0.0)
    positive = jnp.sum(jnp.where(advantages_B1 > 0, sizes_BT, 0.0))
    return positive >= min_share * jnp.sum(sizes_BT)

  is_enough_K = jax.lax.map(is_enough, highs_K)
  is_any = jnp.any(is_enough_K)
  first = highs_K[jnp.argmax(is_enough_K)]
  return {
    'lowest_ratio': jnp.where(is_any, low_start, low_end),
    'highest_ratio': jnp.where(is_any, first, high_end),
  }


@constants.checked
def optimal_baseline(
  inputs: base.LossInputs,
  *,
  max_ratio: Annotated[base.Scalar, constants.interval('[1e-06, inf]')],
) -> dict[str, base.Array]:
  """Returns the baseline of least variance for `corrections.vcpo`.

  VCPO, https://arxiv.org/abs/2602.17616: with w the weight of a response y and
  g = |grad log pi(y)|, b* = sum(w^2 g^2 R) / sum(w^2 g^2), over the batch.

  Args:
    inputs: of the whole batch. row_grad_norms is read.
    max_ratio: the largest weight w, as in the loss.

  Returns:
    `optimal_baseline`: `[]` float, in units of reward; 0 if no row has a
    gradient.

  Raises:
    ValueError: there are no row_grad_norms.
  """
  norms_B = base.required(inputs, 'row_grad_norms', 'optimal_baseline')
  log_ratios_B = jnp.sum(token_losses.log_ratios(inputs), axis=1)
  bounded_B, _ = importance.bounded(log_ratios_B)
  weights_B = (jnp.minimum(jnp.exp(bounded_B), max_ratio) * norms_B) ** 2
  total = jnp.sum(weights_B)
  mean = jnp.sum(weights_B * inputs.rewards) / jnp.where(total > 0, total, 1.0)
  return {'optimal_baseline': mean}


def mean_reference_log_ratio(inputs: base.LossInputs) -> dict[str, base.Array]:
  """Returns the mean of log pi(y) - log pi_ref(y) for each prompt, for `tba`.

  Args:
    inputs: of the whole batch.

  Returns:
    `mean_reference_log_ratio`: `[B]` float, nats, the mean over all rows with
      the prompt of this row; rows without a token are not counted, and 0 if
      there is no other.
    `prompt_id`: `[B]` uint32, the prompt of each row.

  Raises:
    ValueError: there are no reference_logprobs.
  """
  reader = 'mean_reference_log_ratio'
  reference_BT = base.required(inputs, 'reference_logprobs', reader)
  mask_BT = inputs.loss_mask
  log_ratios_BT = importance.log_ratios(inputs.logprobs, reference_BT, mask_BT)
  log_ratios_B = jnp.sum(log_ratios_BT, axis=1)
  has_prompt_BB = inputs.prompt_id[:, None] == inputs.prompt_id[None, :]
  is_counted_BB = has_prompt_BB & jnp.any(mask_BT, axis=1)[None, :]
  totals_B = jnp.sum(
    jnp.where(is_counted_BB, log_ratios_B[None, :], 0.0), axis=1
  )
  return {
    reader: totals_B / jnp.maximum(jnp.sum(is_counted_BB, axis=1), 1),
    'prompt_id': inputs.prompt_id,
  }
