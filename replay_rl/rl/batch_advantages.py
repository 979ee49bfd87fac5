"""Advantages that compare the rows of one batch, fresh and replayed ones.

The advantages of `advantages` compare the rollouts of a generation and are
stored with them. These replace them when a batch is composed, and are not
stored. `joint` and `apart` compare rows of the same `prompt_id`, whatever their
group. Rows that are not valid count nowhere and get 0.
"""

from typing import Annotated

import jax.numpy as jnp

from replay_rl import base
from replay_rl import constants
from replay_rl.rl import advantages

_Eps = Annotated[base.Scalar, constants.interval('[1e-12, 1000]')]


@constants.checked
def joint(batch: base.Batch, *, eps: _Eps) -> base.Array:
  """Returns (r - mean) / (std + eps) over all rows of the same prompt.

  The joint baseline of RLEP (arXiv 2507.07451).

  Args:
    batch: the rows.
    eps: in units of reward.

  Returns:
    `[B]` float; 0 for a row that is alone with its prompt, as in
    `advantages.group_standardized`. Its stored advantage would have the scale
    of another set of rewards.
  """
  return _standardized(batch, _is_same_prompt(batch), eps)


@constants.checked
def apart(batch: base.Batch, *, eps: _Eps) -> base.Array:
  """Returns (r - mean) / (std + eps), of fresh and of replayed rows apart.

  RePO (arXiv 2506.09340): the fresh rows of a prompt are compared with each
  other, and the replayed rows of this prompt with each other.

  Args:
    batch: the rows.
    eps: in units of reward.

  Returns:
    `[B]` float; 0 for a row that is the only fresh or the only replayed one of
    its prompt. So a prompt needs at least two replayed rows.
  """
  is_same_BB = _is_same_prompt(batch)
  is_same_BB &= batch.is_fresh[:, None] == batch.is_fresh[None, :]
  return _standardized(batch, is_same_BB, eps)


@constants.checked
def of_batch(batch: base.Batch, *, eps: _Eps) -> base.Array:
  """Returns (r - mean) / (std + eps) over all rows, whatever their prompt.

  The recomputed advantage that "Rollout-Level Advantage-Prioritized Experience
  Replay for GRPO" (arXiv 2606.04560) compares with the stored one. We do not
  know the formula of the paper. Where no prompt comes back, a replayed rollout
  may be alone with its prompt, and `joint` then gives it 0. All rows of a batch
  can be compared, but then an easy prompt makes an advantage positive.

  Args:
    batch: the rows.
    eps: in units of reward.

  Returns:
    `[B]` float; 0 if there is one valid row, or if all rewards are equal.
  """
  num_rows = batch.is_valid.shape[0]
  return _standardized(batch, jnp.ones((num_rows, num_rows), bool), eps)


def _is_same_prompt(batch: base.Batch) -> base.Array:
  prompt_id_B = batch.rollouts.prompt_id
  return prompt_id_B[:, None] == prompt_id_B[None, :]


def _standardized(
  batch: base.Batch, is_same_BB: base.Array, eps: base.Scalar
) -> base.Array:
  """Returns the standardized rewards of the valid rows that are the same."""
  is_valid_B = batch.is_valid
  # Rows that are compared have the number of the first of them, and a row that
  # is not valid has its own.
  first_B = jnp.argmax(is_same_BB & is_valid_B[None, :], axis=1)
  number_B = jnp.where(is_valid_B, first_B, jnp.arange(is_valid_B.shape[0]))
  advantages_B = advantages.group_standardized(
    batch.rollouts.rewards, number_B, eps=eps
  )
  return jnp.where(is_valid_B, advantages_B, 0.0)
