"""How slots are drawn from weights.

No sum tree: ages change all weights at every step, and one pass over them is
cheap beside an update. Weights that are NaN, infinite or negative count as 0,
and a slot of weight 0 is never drawn. The draws come in an order of which every
prefix is fair: its slots have the same probabilities as those of all draws.

Letters of this module: N blocks of K slots each.
"""

import jax
import jax.numpy as jnp

from replay_rl import base

# Rows summed together. Fixed, so that a draw does not depend on how the slots
# are divided among devices; 128 is the lane width of a TPU.
BLOCK_SIZE = 128
# The largest divisor of which the reciprocal is not denormal: compilers divide
# by multiplying with it, and it would be flushed to zero.
_MAX_SCALE = 2.0**126


def blocked_inverse_cdf(
  rng_key: base.Array, weights: base.Array, num_draws: int, *, stratified: bool
) -> base.Draw:
  """Draws with replacement, slot i with probability w_i / sum(w).

  First a block of BLOCK_SIZE slots by its summed weight, then a slot inside it
  with a fresh uniform. A uniform float32 has 2^23 values: with one level only,
  slots narrower than that are drawn unevenly, some never.

  Args:
    rng_key: random key, consumed.
    weights: `[C]` float32.
    num_draws: B.
    stratified: if True, one draw from each of B equal parts of the mass, in
      random order: same probabilities, counts of less variance.

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

  num_eligible = jnp.sum(_is_eligible(weights), dtype=jnp.int32)
  is_valid_B = jnp.broadcast_to(num_eligible > 0, (num_draws,))
  return _draw(scaled_C, slots_B, is_valid_B, num_eligible)


def gumbel_top_k(
  rng_key: base.Array, weights: base.Array, num_draws: int
) -> base.Draw:
  """Draws without replacement, each from the weights that are left.

  The largest of log(w_i) + Gumbel noise, in falling order: the Gumbel-top-k
  trick, see "Stochastic Beams and Where to Find Them" (arXiv 1903.06059).

  Args:
    rng_key: random key, consumed.
    weights: `[C]` float32.
    num_draws: B, at most C.

  Returns:
    `base.Draw` of B draws, valid as long as there are eligible slots. `probs`
    are those of the first draw, w_i / sum(w); the probability of being among B
    draws is another and is not B times as large.

  Raises:
    ValueError: if `num_draws` exceeds C.
  """
  _check_weights(weights)
  capacity = weights.shape[0]
  if num_draws > capacity:
    raise ValueError(
      f'num_draws={num_draws} without replacement exceeds capacity={capacity}.'
    )
  is_eligible_C = _is_eligible(weights)
  # The noise is added to a value near 0, where float32 resolves it best.
  logits_C = jnp.log(weights) - jnp.log(_scale(weights))
  # Noise of mode 'low' has too few values near its top, so that ties decide.
  noise_C = jax.random.gumbel(rng_key, (capacity,), jnp.float32, mode='high')
  keys_C = jnp.where(is_eligible_C, logits_C + noise_C, -jnp.inf)
  keys_B, slots_B = jax.lax.top_k(keys_C, num_draws)
  num_eligible = jnp.sum(is_eligible_C, dtype=jnp.int32)
  return _draw(scaled(weights), slots_B, keys_B > -jnp.inf, num_eligible)


def scaled(weights: base.Array) -> base.Array:
  """Returns `[C]` weights with the largest near 1, so that sums are finite."""
  return jnp.where(_is_eligible(weights), weights, 0.0) / _scale(weights)


def first_hit(weights: base.Array, uniform: base.Array) -> base.Array:
  """Inverts the cumulative sum of weights at one point, never on a zero.

  Rounding lets the cumulative sum rise at a zero weight, or end below the
  target; so the first positive weight past the target is taken, else the last
  positive one.

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


def _is_eligible(weights_C: base.Array) -> base.Array:
  return (weights_C > 0) & (weights_C < jnp.inf)


def _scale(weights_C: base.Array) -> base.Array:
  largest = jnp.max(jnp.where(_is_eligible(weights_C), weights_C, 0.0))
  return jnp.where(largest > 0, jnp.minimum(largest, _MAX_SCALE), 1.0)


def _draw(
  scaled_C: base.Array,
  slots_B: base.Array,
  is_valid_B: base.Array,
  num_eligible: base.Array,
) -> base.Draw:
  slots_B = jnp.where(is_valid_B, slots_B, scaled_C.shape[0])
  weights_B = scaled_C.at[slots_B].get(mode='fill', fill_value=0.0)
  # Nothing is drawn where the sum is zero.
  sum_weights = jnp.where(num_eligible > 0, jnp.sum(scaled_C), 1.0)
  return base.Draw(slots_B, weights_B / sum_weights, is_valid_B, num_eligible)


def _check_weights(weights: base.Array) -> None:
  if weights.ndim != 1 or not weights.size or weights.dtype != jnp.float32:
    raise ValueError(
      f'weights has shape {weights.shape} and dtype {weights.dtype}; '
      'it must be [C] with C > 0 and float32.'
    )
