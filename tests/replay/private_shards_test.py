"""Tests of draws from private shards."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl.replay import sampling
from tests.replay import sampling_test

NUM_SHARDS = 4
IID, STRATIFIED = (
  functools.partial(
    sampling.private_shards, num_shards=NUM_SHARDS, stratified=stratified
  )
  for stratified in (False, True)
)
draw_jit = sampling_test.draw_jit


def formula(weights) -> np.ndarray:
  """w_i / (T sum of its shard), T of the shards that have weight."""
  weights = np.asarray(weights, np.float64)
  sums = np.zeros(NUM_SHARDS)
  for slot, weight in enumerate(weights):
    sums[slot % NUM_SHARDS] += weight
  probs = [
    weight / sums[slot % NUM_SHARDS] if weight else 0.0
    for slot, weight in enumerate(weights)
  ]
  return np.array(probs) / np.count_nonzero(sums)


def skewed_weights(capacity=400) -> np.ndarray:
  """Some slots are masked, and one shard weighs eight times as much."""
  rng = np.random.default_rng(0)
  weights = rng.exponential(size=capacity).astype(np.float32)
  weights = np.maximum(weights, 0.05)
  weights[rng.random(capacity) < 0.3] = 0
  weights[1::NUM_SHARDS] *= 8
  return weights


class PrivateShardsTest(parameterized.TestCase):
  @parameterized.parameters(IID, STRATIFIED)
  def test_each_round_has_a_slot_of_each_shard(self, draw):
    first = set()
    for seed in range(20):
      drawn = draw_jit(jax.random.key(seed), jnp.ones(400), 32, draw)
      self.assertTrue(np.all(drawn.is_valid))
      shards = np.asarray(drawn.slots).reshape(8, NUM_SHARDS) % NUM_SHARDS
      np.testing.assert_array_equal(np.sort(shards), [[0, 1, 2, 3]] * 8)
      first.add(int(shards[0, 0]))
      # Shards of equal weights draw independently: 100 slots each.
      places = np.asarray(drawn.slots).reshape(8, NUM_SHARDS) // NUM_SHARDS
      self.assertGreater(np.mean(places[:, 0] != places[:, 1]), 0.5)
    self.assertEqual(first, {0, 1, 2, 3})

  def test_a_shard_is_drawn_from_by_its_weights_alone(self):
    # Shard 0 has slots 0, 4, 8 and shard 3 has slots 3, 7, 11.
    weights = np.zeros(12, np.float32)
    weights[[0, 4, 3]] = [1.0, 3.0, 1e20]
    drawn = draw_jit(jax.random.key(0), weights, 40, IID)
    slots, probs = np.asarray(drawn.slots), np.asarray(drawn.probs)
    # Two shards have nothing: their 20 draws come last.
    np.testing.assert_array_equal(drawn.is_valid, [True] * 20 + [False] * 20)
    np.testing.assert_array_equal(slots[20:], [12] * 20)
    np.testing.assert_array_equal(probs[20:], [0.0] * 20)
    self.assertEqual(set(slots[:20].tolist()), {0, 3, 4})
    self.assertEqual(np.sum(slots == 3), 10)
    expected = {0: 0.125, 4: 0.375, 3: 0.5, 12: 0.0}
    np.testing.assert_allclose(
      probs, [expected[slot] for slot in slots], rtol=1e-6
    )
    self.assertEqual(int(drawn.num_eligible), 3)

  @parameterized.parameters(0.0, 1e-40)
  def test_without_an_eligible_slot_nothing_is_valid(self, weight):
    weights = np.full(16, weight, np.float32)
    weights[0] = 0.0
    drawn = draw_jit(jax.random.key(0), weights, 8, IID)
    chex.assert_trees_all_equal(
      drawn,
      sampling.base.Draw(
        slots=jnp.full(8, 16, jnp.int32),
        probs=jnp.zeros(8),
        is_valid=jnp.zeros(8, bool),
        num_eligible=jnp.int32(0),
      ),
      strict=True,
    )

  @parameterized.parameters((IID, False), (STRATIFIED, True))
  def test_frequencies_follow_the_formula(self, draw, is_one_empty):
    weights = skewed_weights()
    if is_one_empty:
      weights[2::NUM_SHARDS] = 0
    counts = np.asarray(sampling_test.counts_of(0, weights, 30, 4096, draw))
    # A quarter of all draws are of the empty shard.
    self.assertEqual(counts[-1], 30 * 1024 if is_one_empty else 0)
    probs = formula(weights)
    self.assertLess(sampling_test.chi2_z(counts[:-1], probs), 4.0)
    # Negative controls: slots 5 % off, and the draw from all slots together.
    off = probs * np.where(np.arange(400) // NUM_SHARDS % 2, 1.05, 0.95)
    self.assertGreater(sampling_test.chi2_z(counts[:-1], off), 6.0)
    self.assertGreater(sampling_test.chi2_z(counts[:-1], weights), 100.0)

  @parameterized.parameters((IID, True), (STRATIFIED, False))
  def test_the_reported_probs_are_the_formula(self, draw, is_one_empty):
    weights = skewed_weights()
    if is_one_empty:
      weights[2::NUM_SHARDS] = 0
    drawn = draw_jit(jax.random.key(0), jnp.asarray(weights), 256, draw)
    expected = np.append(formula(weights), 0.0)[np.asarray(drawn.slots)]
    np.testing.assert_allclose(drawn.probs, expected, rtol=1e-5)
    self.assertEqual(int(drawn.num_eligible), np.count_nonzero(weights))

  @parameterized.parameters(IID, STRATIFIED)
  def test_the_first_draws_are_a_fair_sample(self, draw):
    weights = skewed_weights(40)
    weights[2::NUM_SHARDS] = 0

    def first_of_16(rng_key):
      return draw(rng_key, jnp.asarray(weights), 16).slots[:6]

    rng_keys = jax.random.split(jax.random.key(0), 4096)
    slots = np.asarray(jax.jit(jax.vmap(first_of_16))(rng_keys))
    for length in (1, 6):
      counts = np.bincount(slots[:, :length].reshape(-1), minlength=41)
      self.assertEqual(counts[-1], 0)  # What is invalid comes last.
      z = sampling_test.chi2_z(counts[:-1], formula(weights))
      self.assertLess(z, 4.0)

  def test_stratified_draws_of_a_shard_are_one_of_each_stratum(self):
    # Each shard has two blocks and two draws: one draw of each block.
    size = sampling.BLOCK_SIZE
    weights = jnp.ones(2 * size * NUM_SHARDS)
    for seed in range(10):
      drawn = draw_jit(jax.random.key(seed), weights, 8, STRATIFIED)
      slots = np.asarray(drawn.slots)
      for shard in range(NUM_SHARDS):
        blocks = slots[slots % NUM_SHARDS == shard] // NUM_SHARDS // size
        self.assertEqual(sorted(blocks.tolist()), [0, 1])

  def test_one_shard_has_the_probs_of_the_whole_buffer(self):
    weights = jnp.asarray(skewed_weights())
    draw = functools.partial(
      sampling.private_shards, num_shards=1, stratified=False
    )
    drawn = draw_jit(jax.random.key(0), weights, 5, draw)
    expected = np.asarray(weights)[np.asarray(drawn.slots)] / np.sum(weights)
    np.testing.assert_allclose(drawn.probs, expected, rtol=1e-5)

  @parameterized.parameters(
    (3, 16, 6, 'divide capacity = 16 and num_draws = 6'),
    (3, 9, 8, 'divide capacity = 9 and num_draws = 8'),
    (0, 16, 8, r'in \[1, inf\)'),
    (True, 16, 8, 'of type int'),
  )
  def test_shards_that_do_not_divide_raise(
    self, num_shards, capacity, draws, allowed
  ):
    with self.assertRaisesRegex(
      ValueError, f'^num_shards = {num_shards}: must (be )?{allowed}$'
    ):
      sampling.private_shards(
        jax.random.key(0),
        jnp.ones(capacity),
        draws,
        num_shards=num_shards,
        stratified=False,
      )
