"""Statistics of a whole batch, read by losses that see one microbatch.

With its constants bound, each function is a `base.StatisticsFn`.
"""

from typing import Annotated

import jax.numpy as jnp

from replay_rl import base
from replay_rl import constants
from replay_rl.rl import importance


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
