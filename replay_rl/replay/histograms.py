"""Histograms of ages and uses of rollouts.

The last bin also counts all larger values, so the counts add up to the number
of valid rows.
"""

import chex
import jax.numpy as jnp

from replay_rl import base


def histogram(
  values: base.Array, mask: base.Array, *, num_bins: int
) -> base.Array:
  """Counts integers.

  Args:
    values: `[N]` int, 0 or more.
    mask: `[N]` bool, which values to count.
    num_bins: bins for 0, 1, ..., and for all from `num_bins - 1` on.

  Returns:
    `[num_bins]` int32.

  Raises:
    ValueError: `num_bins` is below 1.
  """
  chex.assert_rank([values, mask], 1)
  chex.assert_equal_shape([values, mask])
  chex.assert_type([values, mask], [int, bool])
  if num_bins < 1:
    raise ValueError(f'num_bins = {num_bins}: must be at least 1')
  bins = jnp.clip(values, 0, num_bins - 1)
  return jnp.zeros(num_bins, jnp.int32).at[bins].add(mask)


def age_buckets(
  ages: base.Array, edges: tuple[int, ...]
) -> dict[str, base.Array]:
  """Returns which rows are in which bucket of ages.

  Args:
    ages: `[N]` int, 0 or more.
    edges: rising, the first age of each bucket but that of age 0: 1, 2 and 4
      give the ages 0, 1, 2 to 3, and 4 or more. None at all gives no bucket.

  Returns:
    `[N]` bool by the name of the bucket, such as 'age_2_3' or 'age_4_or_more'.
    Each row is in one bucket.
  """
  chex.assert_rank(ages, 1)
  chex.assert_type(ages, int)
  if not edges:
    return {}
  buckets = {}
  for first, after in zip((0, *edges), (*edges, None), strict=True):
    if after is None:
      buckets[f'age_{first}_or_more'] = ages >= first
    else:
      last = f'_{after - 1}' * (after - 1 > first)
      buckets[f'age_{first}{last}'] = (ages >= first) & (ages < after)
  return buckets


def steps_since_last_use(
  last_sampled: base.Array,
  slots: base.Array,
  is_valid: base.Array,
  step: base.Array,
  *,
  num_bins: int,
) -> base.Array:
  """Counts learner steps between a use of a rollout and the use before it.

  The third histogram of figure 2 of https://arxiv.org/abs/2604.08706. If a slot
  is several times in a batch, each repeat counts as 0 steps.

  Args:
    last_sampled: `[B]` int32, `BufferState.last_sampled` of each row, before
      this update.
    slots: `[B]` int32, the buffer slot of each row.
    is_valid: `[B]` bool, which rows to count.
    step: `[]` int32, the learner step of this update.
    num_bins: as in `histogram`.

  Returns:
    `[1 + num_bins]` int32: first uses, then uses after k steps at index 1 + k.
  """
  chex.assert_rank([last_sampled, slots, is_valid, step], [1, 1, 1, 0])
  chex.assert_equal_shape([last_sampled, slots, is_valid])
  is_same_BB = (slots[:, None] == slots[None, :]) & is_valid[None, :]
  is_repeat_B = jnp.any(jnp.tril(is_same_BB, k=-1), axis=1)
  gap_B = jnp.where(is_repeat_B, 0, step - last_sampled)
  is_new_B = ~is_repeat_B & (last_sampled < 0)
  num_new = jnp.sum(is_new_B & is_valid, dtype=jnp.int32)
  counts = histogram(gap_B, is_valid & ~is_new_B, num_bins=num_bins)
  return jnp.concatenate([num_new[None], counts])
