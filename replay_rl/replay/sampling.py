"""How slots are drawn from weights.

No sum tree: ages change all weights at every step, and one pass over them is
cheap beside an update. A slot is eligible if its weight is finite and at least
MIN_WEIGHT; no other slot is ever drawn. Every prefix of the draws is fair: its
slots have the same probabilities as those of all draws. Only `most_varied` has
no such prefixes.

Letters of this module: N blocks of K slots each; T private shards.
"""

from typing import Annotated

import jax
import jax.numpy as jnp

from replay_rl import base
from replay_rl import constants

# Slots whose weights are summed together. The number is fixed, so that a draw
# does not depend on how many devices there are; 128 is the lane width of a TPU.
BLOCK_SIZE = 128
# The smallest normal float32. A backend may flush a smaller weight to zero in a
# sum, and yet find it above zero.
MIN_WEIGHT = 2.0**-126
# The reciprocal of this power of two is still a normal float32.
_MAX_SCALE = 2.0**126


@constants.checked
def blocked_inverse_cdf(
  rng_key: base.Array, weights: base.Array, num_draws: int, *, stratified: bool
) -> base.Draw:
  """Draws with replacement, slot i with probability w_i / sum(w).

  This draws a block of BLOCK_SIZE slots by its summed weight, and then a slot
  inside it with a fresh uniform. A uniform float32 has 2^23 values: one level
  alone would draw slots narrower than that unevenly, and some never.

  Args:
    rng_key: random key, consumed.
    weights: `[C]` float32.
    num_draws: B.
    stratified: if True, there is one draw from each of B equal parts of the
      mass, in random order: the same probabilities, with less variance.

  Returns:
    `base.Draw` of B draws; all are valid unless no slot is eligible.
  """
  _check_weights(weights)
  capacity = weights.shape[0]
  scaled_C = scaled(weights)
  num_blocks = -(-capacity // BLOCK_SIZE)
  blocks_NK = jnp.pad(
    scaled_C, (0, num_blocks * BLOCK_SIZE - capacity)
  ).reshape(num_blocks, BLOCK_SIZE)
  masses_N = jnp.sum(blocks_NK, axis=1)

  uniform_key, order_key = jax.random.split(rng_key)
  block_u_B, slot_u_B = jax.random.uniform(
    uniform_key, (2, num_draws), jnp.float32
  )
  if stratified:
    # In order of the strata the first draws would all be of low slots.
    strata_B = jax.random.permutation(order_key, num_draws)
    block_u_B = (strata_B + block_u_B) / num_draws
  block_B = jax.vmap(first_hit, (None, 0))(masses_N, block_u_B)
  slots_B = block_B * BLOCK_SIZE
  slots_B += jax.vmap(first_hit)(blocks_NK[block_B], slot_u_B)

  num_eligible = jnp.sum(is_eligible(weights), dtype=jnp.int32)
  is_valid_B = jnp.broadcast_to(num_eligible > 0, (num_draws,))
  return _draw(scaled_C, slots_B, is_valid_B, num_eligible)


def gumbel_top_k(
  rng_key: base.Array, weights: base.Array, num_draws: int
) -> base.Draw:
  """Draws without replacement, each from the slots that are left.

  The Gumbel-top-k trick of "Stochastic Beams and Where to Find Them" (arXiv
  1903.06059) takes the slots of the B largest log(w_i) + Gumbel noise, the
  largest first.

  Args:
    rng_key: random key, consumed.
    weights: `[C]` float32.
    num_draws: B, at most C.

  Returns:
    `base.Draw` of B draws, valid as long as there are eligible slots. `probs`
    are those of the first draw, w_i / sum(w). The probability that a slot is
    among the B draws is not B times as large.

  Raises:
    ValueError: if `num_draws` exceeds C.
  """
  _check_weights(weights)
  capacity = weights.shape[0]
  _check_num_draws(num_draws, capacity)
  is_eligible_C = is_eligible(weights)
  # The noise is added to a value near 0, where float32 resolves it best.
  logits_C = jnp.log(weights) - jnp.log(_scale(weights))
  # Noise of mode 'low' has too few values near its top, so that ties decide.
  noise_C = jax.random.gumbel(rng_key, (capacity,), jnp.float32, mode='high')
  keys_C = jnp.where(is_eligible_C, logits_C + noise_C, -jnp.inf)
  keys_B, slots_B = jax.lax.top_k(keys_C, num_draws)
  num_eligible = jnp.sum(is_eligible_C, dtype=jnp.int32)
  return _draw(scaled(weights), slots_B, keys_B > -jnp.inf, num_eligible)


def largest(
  rng_key: base.Array, weights: base.Array, num_draws: int
) -> base.Draw:
  """Takes the slots of the largest weights, without chance.

  Args:
    rng_key: not used.
    weights: `[C]` float32. Of equal weights the slot with the lower number is
      taken first.
    num_draws: B, at most C.

  Returns:
    `base.Draw` of B draws, the largest first, valid as long as there are
    eligible slots. `probs` are 1, because nothing is left to chance.

  Raises:
    ValueError: if `num_draws` exceeds C.
  """
  del rng_key
  _check_weights(weights)
  _check_num_draws(num_draws, weights.shape[0])
  is_eligible_C = is_eligible(weights)
  largest_B, slots_B = jax.lax.top_k(
    jnp.where(is_eligible_C, weights, 0.0), num_draws
  )
  is_valid_B = largest_B > 0
  return base.Draw(
    jnp.where(is_valid_B, slots_B, weights.shape[0]),
    is_valid_B.astype(jnp.float32),
    is_valid_B,
    jnp.sum(is_eligible_C, dtype=jnp.int32),
  )


def most_varied(
  rng_key: base.Array, weights: base.Array, num_draws: int
) -> base.Draw:
  """Takes the slots whose log-weights have the largest variance.

  The variance-driven replay of RePO (arXiv 2506.09340). The best B slots are
  the i with the largest and the B - i with the smallest weights, for some i:
  this compares all i. With `weights.exp_reward` the log-weights are rewards.

  The draws begin with the largest weights. So the first of them are not the
  most varied ones of their number: use this where all draws count.

  Args:
    rng_key: not used.
    weights: `[C]` float32. Of equal weights, the lower slots count as larger.
    num_draws: B, at most C.

  Returns:
    `base.Draw` of B draws, valid as long as there are eligible slots. `probs`
    are 1, because nothing is left to chance.

  Raises:
    ValueError: if `num_draws` exceeds C.
  """
  del rng_key
  _check_weights(weights)
  capacity = weights.shape[0]
  _check_num_draws(num_draws, capacity)
  is_eligible_C = is_eligible(weights)
  num_eligible = jnp.sum(is_eligible_C, dtype=jnp.int32)
  logs_C = jnp.where(is_eligible_C, jnp.log(weights), -jnp.inf)
  order_C = jnp.argsort(logs_C, descending=True).astype(jnp.int32)
  count_B = jnp.arange(num_draws)
  # The last eligible slot is the first of the smallest.
  smallest_B = order_C[jnp.maximum(num_eligible - 1 - count_B, 0)]

  # Rounding is least around the mean.
  mean = jnp.sum(logs_C, where=is_eligible_C) / jnp.maximum(num_eligible, 1)

  def sums(slots_B):
    """Sums and sums of squares of the first 0, 1, ..., B values."""
    values_B = jnp.where(is_eligible_C[slots_B], logs_C[slots_B] - mean, 0.0)
    powers_2B = jnp.stack([values_B, values_B**2])
    return jnp.pad(jnp.cumsum(powers_2B, axis=1), ((0, 0), (1, 0)))

  # Entry i is for the i largest and the B - i smallest. If there are fewer than
  # B eligible slots, every entry stands for all of them.
  total, squares = sums(order_C[:num_draws]) + sums(smallest_B)[:, ::-1]
  best = jnp.argmax(squares - total**2 / num_draws)

  is_valid_B = count_B < num_eligible
  slots_B = jnp.where(
    count_B < best,
    order_C[:num_draws],
    smallest_B[jnp.maximum(count_B - best, 0)],
  )
  return base.Draw(
    jnp.where(is_valid_B, slots_B, capacity),
    is_valid_B.astype(jnp.float32),
    is_valid_B,
    num_eligible,
  )


@constants.checked
def private_shards(
  rng_key: base.Array,
  weights: base.Array,
  num_draws: int,
  *,
  num_shards: Annotated[int, constants.interval('[1, inf)')],
  stratified: bool,
) -> base.Draw:
  """Draws equally many slots from each of several shards, with replacement.

  "Efficient RL Training for LLMs with Experience Replay" (arXiv 2604.08706):
  each of T trainers has a buffer of C / T slots of its own and draws B / T
  rows from it. Slot i belongs to shard i mod T, so that a ring gives every
  shard its share of each insert.

  Slot i of shard s is drawn with probability w_i / (T sum(w of s)), where T
  counts the shards that have an eligible slot. That is w_i / sum(w) only if
  all shards weigh the same.

  Args:
    rng_key: random key, consumed.
    weights: `[C]` float32.
    num_draws: B.
    num_shards: T, a divisor of B and C. Devices have no part in it.
    stratified: as in `blocked_inverse_cdf`, within each shard.

  Returns:
    `base.Draw` of B draws, round by round, one of each shard in random order.
    A shard without an eligible slot makes B / T of them invalid; these come
    last.

  Raises:
    ValueError: if `num_shards` does not divide B and C.
  """
  _check_weights(weights)
  capacity = weights.shape[0]
  if capacity % num_shards or num_draws % num_shards:
    raise ValueError(
      f'num_shards = {num_shards}: must divide capacity = {capacity} and '
      f'num_draws = {num_draws}'
    )
  shards_key, draws_key = jax.random.split(rng_key)
  shards_T = jax.random.permutation(shards_key, num_shards).astype(jnp.int32)
  drawn = jax.vmap(
    lambda rng_key, weights: blocked_inverse_cdf(
      rng_key, weights, num_draws // num_shards, stratified=stratified
    )
  )(
    jax.random.split(draws_key, num_shards),
    weights.reshape(-1, num_shards).T[shards_T],
  )

  num_drawn_from = jnp.sum(drawn.num_eligible > 0, dtype=jnp.float32)
  slots_TB = drawn.slots * num_shards + shards_T[:, None]
  slots_B = jnp.where(drawn.is_valid, slots_TB, capacity).T.reshape(-1)
  share = 1.0 / jnp.maximum(num_drawn_from, 1.0)
  probs_B = drawn.probs.T.reshape(-1) * share
  is_valid_B = drawn.is_valid.T.reshape(-1)
  # Stable, so that the rounds stay in order.
  order_B = jnp.argsort(~is_valid_B, stable=True)
  return base.Draw(
    slots_B[order_B],
    probs_B[order_B],
    is_valid_B[order_B],
    jnp.sum(drawn.num_eligible, dtype=jnp.int32),
  )


def scaled(weights: base.Array) -> base.Array:
  """Returns `[C]` weights, the largest in [1, 4), so that sums are finite.

  Slots that are not eligible get 0. A weight below 1e-37 of the largest may
  become 0 too.
  """
  return jnp.where(is_eligible(weights), weights, 0.0) / _scale(weights)


def first_hit(weights: base.Array, uniform: base.Array) -> base.Array:
  """Inverts the cumulative sum of weights at one point, never on a zero.

  Rounding lets the cumulative sum rise at a zero weight, or end below the
  target. So this takes the first positive weight past the target, or else the
  last positive one.

  Args:
    weights: `[N]` float32, non-negative.
    uniform: `[]` float32 in [0, 1].

  Returns:
    `[]` int32, an index of positive weight; 0 if there is none.
  """
  cdf_N = jnp.cumsum(weights)
  is_positive_N = weights > 0
  index_N = jnp.arange(weights.shape[0], dtype=jnp.int32)
  is_hit_N = is_positive_N & (cdf_N > uniform * cdf_N[-1])
  first = jnp.min(jnp.where(is_hit_N, index_N, weights.shape[0]))
  return jnp.minimum(first, jnp.max(jnp.where(is_positive_N, index_N, 0)))


def is_eligible(weights: base.Array) -> base.Array:
  """Returns `[C]` bool, True where a weight is large enough and finite."""
  return (weights >= MIN_WEIGHT) & (weights < jnp.inf)


def _scale(weights_C: base.Array) -> base.Array:
  """Returns the power of two next to the largest weight.

  A program may divide by it, multiply with its reciprocal, or fuse either into
  a sum. All are exact, so every program gets the same bits.
  """
  largest = jnp.max(jnp.where(is_eligible(weights_C), weights_C, 0.0))
  bits = jax.lax.bitcast_convert_type(
    jnp.clip(largest, MIN_WEIGHT, _MAX_SCALE), jnp.int32
  )
  exponent_bits = bits & 0x7F800000
  return jax.lax.bitcast_convert_type(exponent_bits, jnp.float32)


def _draw(
  scaled_C: base.Array,
  slots_B: base.Array,
  is_valid_B: base.Array,
  num_eligible: base.Array,
) -> base.Draw:
  slots_B = jnp.where(is_valid_B, slots_B, scaled_C.shape[0])
  weights_B = scaled_C.at[slots_B].get(mode='fill', fill_value=0.0)
  # The sum is zero if no slot is eligible.
  sum_weights = jnp.where(num_eligible > 0, jnp.sum(scaled_C), 1.0)
  # Some programs would divide and others multiply with the reciprocal.
  probs_B = weights_B * (1.0 / sum_weights)
  # Zero says that a row was not drawn.
  probs_B = jnp.where(is_valid_B, jnp.maximum(probs_B, MIN_WEIGHT), 0.0)
  return base.Draw(slots_B, probs_B, is_valid_B, num_eligible)


def _check_num_draws(num_draws: int, capacity: int) -> None:
  if num_draws > capacity:
    raise ValueError(
      f'num_draws = {num_draws}: must be at most capacity = {capacity} without '
      'replacement'
    )


def _check_weights(weights: base.Array) -> None:
  if weights.ndim != 1 or not weights.size or weights.dtype != jnp.float32:
    raise ValueError(
      f'weights = {weights.dtype}{list(weights.shape)}: must be float32[C] '
      'with C > 0'
    )
