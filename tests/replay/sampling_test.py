"""Tests for `replay_rl.replay.sampling`."""

import functools
from unittest import mock

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl.replay import sampling

NAN, INF = float('nan'), float('inf')
IID = functools.partial(sampling.blocked_inverse_cdf, stratified=False)
STRATIFIED = functools.partial(sampling.blocked_inverse_cdf, stratified=True)
DRAWS = (IID, STRATIFIED, sampling.gumbel_top_k)
draw_jit = jax.jit(
  lambda rng_key, weights, num_draws, draw: draw(rng_key, weights, num_draws),
  static_argnums=(2, 3),
)


def floats(*values):
  return jnp.asarray(values, jnp.float32)


@functools.partial(
  jax.jit,
  static_argnums=(2, 3, 4),
  # Unlike other tests, these take longer to run than to compile.
  compiler_options={
    'xla_backend_optimization_level': 3,
    'xla_llvm_disable_expensive_passes': False,
  },
)
def counts_of(seed, weights, num_batches, num_draws, draw):
  """How often each slot is drawn in many batches; the last entry is C."""

  def add_batch(counts, rng_key):
    slots = draw(rng_key, weights, num_draws).slots
    return counts.at[slots].add(1), None

  counts = jnp.zeros(weights.shape[0] + 1, jnp.int32)
  rng_keys = jax.random.split(jax.random.key(seed), num_batches)
  return jax.lax.scan(add_batch, counts, rng_keys)[0]


def chi2_z(counts, weights) -> float:
  """Pearson's statistic against the formula, in standard deviations."""
  weights = np.asarray(weights, np.float64)
  expected = np.sum(counts) * weights / np.sum(weights)
  is_eligible = expected > 0
  chi2 = np.sum((counts - expected)[is_eligible] ** 2 / expected[is_eligible])
  dof = np.sum(is_eligible) - 1
  return (chi2 - dof) / np.sqrt(2 * dof)


def naive_inverse_cdf(rng_key, weights, num_draws):
  """The obvious draw, which has the faults that ours must not have."""
  cdf = jnp.cumsum(weights)
  uniform = jax.random.uniform(rng_key, (num_draws,))
  slots = jnp.searchsorted(cdf, uniform * cdf[-1], side='right')
  return sampling.base.Draw(slots, uniform, uniform, uniform)


class FirstHitTest(parameterized.TestCase):
  @parameterized.parameters(
    # Cumulative sum of the weights: 0, 1, 1, 4, 4.
    (0.0, 1),
    (0.24, 1),
    (0.25, 3),
    (0.99, 3),
    (1.0, 3),  # Past the end: the last positive weight.
  )
  def test_zero_weights_are_passed_over(self, uniform, expected):
    weights = floats(0, 1, 0, 3, 0)
    hit = jax.jit(sampling.first_hit)(weights, jnp.float32(uniform))
    self.assertEqual(int(hit), expected)

  def test_a_zero_weight_where_the_sum_rises_by_rounding_is_passed_over(self):
    rng = np.random.default_rng(0)
    weights = rng.exponential(size=65536).astype(np.float32)
    weights[rng.random(65536) < 0.5] = 0
    cdf = np.asarray(jax.jit(jnp.cumsum)(weights))
    before = np.maximum.accumulate(cdf)[:-1]
    is_risen = (weights[1:] == 0) & (cdf[1:] > before)
    uniforms = (before / cdf[-1])[is_risen]
    naive = [np.argmax(cdf > u * cdf[-1]) for u in uniforms]
    self.assertGreater(np.sum(weights[naive] == 0), 20)  # Negative control.
    hits = jax.jit(jax.vmap(sampling.first_hit, (None, 0)))(weights, uniforms)
    self.assertTrue(np.all(weights[np.asarray(hits)] > 0))

  def test_no_weight_gives_index_zero(self):
    hit = sampling.first_hit(jnp.zeros(5), jnp.float32(0.5))
    self.assertEqual(int(hit), 0)


class ScaledTest(parameterized.TestCase):
  def test_the_scale_is_a_power_of_two_and_bad_weights_become_zero(self):
    weights = floats(1e30, 5e29, 0, NAN, INF, -INF, -1, 3)
    expected = [1e30, 5e29, 0, 0, 0, 0, 0, 3]
    np.testing.assert_array_equal(
      sampling.scaled(weights), np.float32(expected) / np.float32(2.0**99)
    )

  @parameterized.parameters(
    (1.0, 1.0),
    (0.99, 1.98),
    (2.0**-126, 1.0),
    (2.0**127, 2.0),
    (3e38, 3e38 / 2.0**126),
  )
  def test_the_largest_becomes_at_least_one_and_below_four(self, largest, to):
    self.assertEqual(
      sampling.scaled(floats(largest, 0))[0], np.float32(to), largest
    )

  def test_no_eligible_weight_gives_zeros(self):
    np.testing.assert_array_equal(
      sampling.scaled(floats(0, NAN, INF, -1)), [0, 0, 0, 0]
    )


class DrawTest(parameterized.TestCase):
  """What every draw has in common."""

  @parameterized.parameters(*DRAWS)
  def test_probs_are_the_normalized_weights(self, draw):
    weights = jnp.zeros(300).at[:8].set(floats(0, 1, NAN, 2, 5, -7, INF, 0))
    drawn = draw_jit(jax.random.key(3), weights, 3, draw)
    expected = np.array([0, 0.125, 0, 0.25, 0.625, 0, 0, 0])
    slots = np.asarray(drawn.slots)
    self.assertTrue(set(slots.tolist()) <= {1, 3, 4})
    np.testing.assert_allclose(drawn.probs, expected[slots], rtol=1e-6)
    np.testing.assert_array_equal(drawn.is_valid, [True] * 3)
    self.assertEqual(int(drawn.num_eligible), 3)
    chex.assert_trees_all_equal(
      [leaf.dtype for leaf in drawn],
      [jnp.dtype(t) for t in (jnp.int32, jnp.float32, bool, jnp.int32)],
    )

  @parameterized.product(draw=DRAWS, bad=(0.0, NAN, INF, -INF, -1.0, 1e-40))
  def test_without_an_eligible_slot_nothing_is_valid(self, draw, bad):
    # numpy makes the denormals, because XLA would flush them to zero.
    weights = np.full(300, bad, np.float32)
    weights[0] = 0.0  # Such as an empty slot has.
    drawn = draw_jit(jax.random.key(0), weights, 3, draw)
    np.testing.assert_array_equal(drawn.slots, [300, 300, 300])
    np.testing.assert_array_equal(drawn.is_valid, [False] * 3)
    np.testing.assert_array_equal(drawn.probs, [0, 0, 0])
    self.assertEqual(int(drawn.num_eligible), 0)

  @parameterized.product(draw=DRAWS, slot=(0, 127, 128, 299), bad=(NAN, 1e-40))
  def test_a_single_eligible_slot_is_found_anywhere(self, draw, slot, bad):
    weights = np.full(300, bad, np.float32)
    weights[slot] = sampling.MIN_WEIGHT
    drawn = draw_jit(jax.random.key(0), weights, 3, draw)
    self.assertEqual(int(drawn.slots[0]), slot)
    self.assertEqual(float(drawn.probs[0]), 1.0)
    self.assertEqual(int(drawn.num_eligible), 1)

  @parameterized.parameters(*DRAWS)
  def test_huge_weights_do_not_overflow_their_sum(self, draw):
    weights = jnp.full(300, 3e38).at[:2].set(1e38)
    drawn = draw_jit(jax.random.key(0), weights, 64, draw)
    self.assertTrue(np.all(drawn.is_valid))
    in_first = np.asarray(drawn.slots) < 2
    self.assertGreater(np.ptp(drawn.slots), 100)
    expected = np.where(in_first, 1 / 896, 3 / 896)
    np.testing.assert_allclose(drawn.probs, expected, rtol=1e-5)

  @parameterized.parameters(*DRAWS)
  def test_weights_of_any_scale_give_the_same_draw(self, draw):
    weights = jnp.asarray(
      np.random.default_rng(0).integers(1, 8, 300), jnp.float32
    )
    drawn = [
      draw_jit(jax.random.key(0), weights * 2.0**shift, 64, draw).slots
      for shift in (0, 90, -90)
    ]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    np.testing.assert_array_equal(drawn[0], drawn[2])

  @parameterized.parameters(*DRAWS)
  def test_vmap_over_keys_equals_separate_draws(self, draw):
    rng_keys = jax.random.split(jax.random.key(0), 3)
    weights = jnp.arange(300.0)
    together = jax.jit(jax.vmap(lambda k: draw(k, weights, 64)))(rng_keys)
    for i in range(3):
      chex.assert_trees_all_close(
        jax.tree.map(lambda leaf, i=i: leaf[i], together),
        draw_jit(rng_keys[i], weights, 64, draw),
        rtol=1e-6,
      )

  @parameterized.parameters(
    (jnp.ones((2, 3)), r'float32\[2, 3\]'),
    (jnp.ones(0), r'float32\[0\]'),
    (jnp.ones(3, jnp.int32), r'int32\[3\]'),
  )
  def test_weights_of_another_kind_raise(self, weights, message):
    for draw in DRAWS:
      with self.assertRaisesRegex(ValueError, f'weights = {message}: must be'):
        draw(jax.random.key(0), weights, 1)

  @parameterized.parameters('no', 1, None)
  def test_stratified_must_be_a_bool(self, value):
    for draw in (
      sampling.blocked_inverse_cdf,
      functools.partial(sampling.private_shards, num_shards=1),
    ):
      with self.assertRaisesRegex(
        ValueError, f'^stratified = {value!r}: must be of type bool$'
      ):
        draw(jax.random.key(0), jnp.ones(4), 2, stratified=value)


class BlockedInverseCdfTest(parameterized.TestCase):
  def test_a_masked_slot_is_never_drawn_in_half_a_million(self):
    rng = np.random.default_rng(0)
    capacity = 65536
    is_masked = rng.random(capacity) < 0.5
    weights = rng.exponential(size=capacity).astype(np.float32)
    weights[is_masked] = 0
    for draw, is_fault_seen in [(IID, False), (naive_inverse_cdf, True)]:
      counts = np.asarray(counts_of(0, weights, 32, 16384, draw))
      self.assertEqual(counts.sum(), 2**19)
      self.assertEqual(
        counts[:capacity][is_masked].sum() + counts[capacity] > 0, is_fault_seen
      )

  @parameterized.parameters(IID, STRATIFIED)
  def test_frequencies_follow_the_weights(self, draw):
    # Half of the slots are masked, and the last block is not full.
    rng = np.random.default_rng(1)
    weights = rng.exponential(size=4000).astype(np.float32)
    weights[rng.random(4000) < 0.5] = 0
    weights = np.maximum(weights, 0.05 * (weights > 0))
    counts = np.asarray(counts_of(0, weights, 60, 8192, draw))[:-1]
    self.assertEqual(counts.sum(), 60 * 8192)
    self.assertEqual(counts[weights == 0].sum(), 0)
    self.assertLess(chi2_z(counts, weights), 4.0)
    # Negative control: the same test sees weights that are this much off.
    off = weights * np.where(np.arange(4000) % 2, 1.05, 0.95)
    self.assertGreater(chi2_z(counts, off), 6.0)

  def test_slots_narrower_than_the_grid_of_uniforms_are_drawn_evenly(self):
    # Each slot is 1.5 steps of 2^-23 wide: one level would hit the slots once,
    # twice, once, twice. The first slot has the rest of the mass.
    capacity = 2**19
    weights = np.full(capacity, 1.5 * 2.0**-23, np.float32)
    weights[0] = 1 - 1.5 * 2.0**-23 * (capacity - 1)
    share = {}
    for draw in (IID, naive_inverse_cdf):
      counts = np.asarray(counts_of(0, weights, 28, 8192, draw))
      odd, even = counts[1:-1:2].sum(), counts[2:-1:2].sum()
      self.assertGreater(odd + even, 20_000)
      share[draw] = odd / (odd + even)
    self.assertAlmostEqual(share[IID], 0.5, delta=0.015)
    self.assertGreater(abs(share[naive_inverse_cdf] - 0.5), 0.1)

  def test_a_uniform_that_rounds_to_one_draws_the_last_eligible_slot(self):
    largest = np.nextafter(np.float32(1), np.float32(0))
    self.assertEqual((np.float32(63) + largest) / np.float32(64), 1.0)
    weights = jnp.ones(1024).at[200:].set(0.0)
    with mock.patch.object(
      jax.random, 'uniform', lambda _, shape, dtype: jnp.full(shape, largest)
    ):
      drawn = jax.jit(lambda k, w: STRATIFIED(k, w, 64))(
        jax.random.key(0), weights
      )
    self.assertEqual(int(jnp.max(drawn.slots)), 199)

  def test_each_stratum_is_drawn_once_and_in_random_order(self):
    # Four blocks of equal mass and four draws: one draw of each block.
    weights = jnp.ones(4 * sampling.BLOCK_SIZE)
    orders = set()
    for seed in range(20):
      drawn = draw_jit(jax.random.key(seed), weights, 4, STRATIFIED)
      blocks = (np.asarray(drawn.slots) // sampling.BLOCK_SIZE).tolist()
      self.assertEqual(sorted(blocks), [0, 1, 2, 3])
      orders.add(tuple(blocks))
    self.assertGreater(len(orders), 5)

  def test_the_first_stratified_draws_are_a_fair_sample(self):
    weights = jnp.arange(1.0, 1001.0)

    @jax.jit
    @jax.vmap
    def first_16_of_64(rng_key):
      return STRATIFIED(rng_key, weights, 64).slots[:16]

    slots = first_16_of_64(jax.random.split(jax.random.key(0), 1024))
    counts = np.bincount(np.asarray(slots).ravel(), minlength=1000)
    self.assertLess(abs(chi2_z(counts, weights)), 4.0)

  def test_more_draws_than_slots_are_allowed(self):
    drawn = draw_jit(jax.random.key(0), jnp.ones(8), 9, IID)
    self.assertTrue(np.all(drawn.is_valid))

  def test_an_empty_block_changes_no_draw(self):
    size = sampling.BLOCK_SIZE
    weights = jnp.zeros(4 * size).at[size : 2 * size].set(jnp.arange(1.0, 129))
    alone = draw_jit(jax.random.key(0), weights, 64, IID)
    padded = draw_jit(jax.random.key(0), jnp.pad(weights, (0, size)), 64, IID)
    np.testing.assert_array_equal(alone.slots, padded.slots)


class GumbelTopKTest(parameterized.TestCase):
  def test_no_slot_repeats_and_fewer_eligible_than_draws_show(self):
    weights = jnp.zeros(300).at[jnp.array([7, 150, 299])].set(1.0)
    drawn = draw_jit(jax.random.key(0), weights, 5, sampling.gumbel_top_k)
    self.assertEqual(sorted(drawn.slots.tolist()), [7, 150, 299, 300, 300])
    np.testing.assert_array_equal(drawn.is_valid, [1, 1, 1, 0, 0])
    np.testing.assert_allclose(drawn.probs, [1 / 3] * 3 + [0, 0], rtol=1e-6)

  def test_the_first_and_the_second_draw_follow_the_formula(self):
    weights = np.array([1, 2, 0, 3, 4], np.float32)
    slots = jax.jit(
      jax.vmap(
        lambda k: sampling.gumbel_top_k(k, jnp.asarray(weights), 2).slots
      )
    )(jax.random.split(jax.random.key(0), 100_000))
    probs = weights / weights.sum()
    second = np.zeros(5)
    # P(second = j) = sum over i of p_i p_j / (1 - p_i).
    for i in range(5):
      for j in range(5):
        if i != j:
          second[j] += probs[i] * probs[j] / (1 - probs[i])
    for column, expected in enumerate([probs, second]):
      counts = np.bincount(np.asarray(slots)[:, column], minlength=5)
      self.assertLess(chi2_z(counts, expected), 4.0)
      self.assertGreater(chi2_z(counts, expected + [0.02, 0, 0, 0, 0]), 4.0)

  def test_weights_forty_decades_apart_are_all_drawn_in_order(self):
    weights = floats(1e30, 1e-10, 1e-37, 1e10)
    for seed in range(20):
      drawn = draw_jit(jax.random.key(seed), weights, 4, sampling.gumbel_top_k)
      np.testing.assert_array_equal(drawn.slots, [0, 3, 1, 2])
      np.testing.assert_array_equal(drawn.is_valid, [True] * 4)
      # A probability of zero would say that the row was not drawn.
      expected = [1, 1e-20, 1e-38, 1e-38]
      np.testing.assert_allclose(drawn.probs, expected, rtol=0.2)

  def test_noise_near_its_top_is_fine_enough_not_to_prefer_low_slots(self):
    # Equal keys fall to the lower slot. With the noise of mode 'low' 6 % of
    # neighbours are tied, so that 51.1 % of all ascend. The standard deviation
    # of the share is 0.14 %. Adding the noise to log(1e30) = 69 does the same.
    weights = jnp.full(2**20, 1e30)
    ascending = []
    for seed in range(8):
      drawn = draw_jit(
        jax.random.key(seed), weights, 16384, sampling.gumbel_top_k
      )
      slots = np.asarray(drawn.slots)
      ascending.append(slots[1:] > slots[:-1])
    self.assertAlmostEqual(np.mean(ascending), 0.5, delta=0.0055)

  def test_more_draws_than_slots_raise(self):
    with self.assertRaisesRegex(
      ValueError, 'num_draws = 3: must be at most capacity = 2 without'
    ):
      sampling.gumbel_top_k(jax.random.key(0), jnp.ones(2), 3)
