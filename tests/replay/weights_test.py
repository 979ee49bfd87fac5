"""Tests for `replay_rl.replay.weights`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl.replay import buffer
from replay_rl.replay import sampling
from replay_rl.replay import weights
from tests.replay import buffers

STEP = jnp.int32(10)


@functools.partial(jax.jit, static_argnums=2)
def sample_all(state, rng_key, rule):
  """As many draws without replacement as there are slots."""
  capacity = state.is_valid.shape[0]
  return buffer.sample(
    state, rng_key, rule(state, STEP), capacity, draw=sampling.gumbel_top_k
  )


class WeightTest(parameterized.TestCase):
  def assert_weights(self, rule, state, expected, rtol=1e-6):
    weights_C = jax.jit(rule)(state, STEP)
    self.assertEqual(weights_C.dtype, jnp.float32)
    np.testing.assert_allclose(weights_C, expected, rtol=rtol)

  def test_age_is_learner_steps_since_the_policy(self):
    state = buffers.filled(3, 3, policy_version=[10, 7, 0])
    np.testing.assert_array_equal(weights.age(state, STEP), [0, 3, 10])

  def test_uniform_is_one(self):
    self.assert_weights(weights.uniform, buffers.filled(3, 3), [1, 1, 1])

  def test_newest_counts_insertions_and_not_slots(self):
    # Rows 2, 3, 4 lie in slots 2, 3, 0, and row 1 in slot 1.
    state, _ = buffers.INSERT(
      buffers.filled(4, 4), buffers.make_rows([4]), priorities=jnp.ones(1)
    )
    for count, expected in [
      (1, [1, 0, 0, 0]),
      (3, [1, 0, 1, 1]),
      (4, [1, 1, 1, 1]),
      (9, [1, 1, 1, 1]),
    ]:
      rule = functools.partial(weights.newest, count=count)
      self.assert_weights(rule, state, expected)

  def test_a_ring_with_newest_is_a_smaller_ring(self):
    size, rng = 5, np.random.default_rng(0)
    large, small = buffers.make_state(12), buffers.make_state(size)
    rule = functools.partial(weights.advantage_magnitude, exponent=1)
    newest = functools.partial(weights.newest, count=size)

    @functools.partial(jax.jit, static_argnums=2)
    def probabilities(state, rng_key, rule):
      drawn = buffer.sample(
        state, rng_key, rule(state, STEP), size, draw=sampling.gumbel_top_k
      )
      # There are as many draws as the small ring has slots: all are drawn.
      order_B = jnp.argsort(drawn.rollouts.group_id + 1000 * ~drawn.is_valid)
      group_id_B = jnp.where(drawn.is_valid, drawn.rollouts.group_id, 0)
      return group_id_B[order_B], drawn.probs[order_B], drawn.num_eligible

    cut = weights.product(newest, rule)
    for step in range(12):
      rows = buffers.make_rows(4 * step + np.arange(4))
      is_valid = rng.random(4) < 0.6
      large, small = (
        buffers.INSERT(
          state, rows, priorities=jnp.ones(4), is_valid=jnp.asarray(is_valid)
        )[0]
        for state in (large, small)
      )
      rng_key = jax.random.key(step)
      ids, probs, num_eligible = probabilities(large, rng_key, cut)
      expected = probabilities(small, rng_key, rule)
      np.testing.assert_array_equal(ids, expected[0])
      np.testing.assert_allclose(probs, expected[1], rtol=1e-6)
      self.assertEqual(int(num_eligible), int(expected[2]))
    self.assertEqual(int(num_eligible), size)

  def test_recency_halves_with_every_half_life(self):
    rule = functools.partial(weights.recency, half_life=4)
    state = buffers.filled(4, 4, policy_version=[10, 6, 2, 8])
    self.assert_weights(rule, state, [1, 0.5, 0.25, 2**-0.5])

  @parameterized.parameters(
    (0, [1, 1, 1]), (1, [1, 0.5, 0.125]), (2, [1, 0.25, 1 / 64])
  )
  def test_inverse_age_is_a_power_of_one_plus_the_age(self, exponent, expected):
    rule = functools.partial(weights.inverse_age, exponent=exponent)
    state = buffers.filled(3, 3, policy_version=[10, 9, 3])
    self.assert_weights(rule, state, expected)

  def test_the_largest_age_and_exponent_leave_a_weight_that_can_be_drawn(self):
    rule = functools.partial(weights.inverse_age, exponent=4)
    state = buffers.filled(1, 1, policy_version=[10 - 2**31 + 1])
    weight = jax.jit(rule)(state, STEP)
    np.testing.assert_allclose(weight, [2.0**-124], rtol=1e-5)

  def test_exp_reward_is_a_softmax_of_rewards(self):
    rule = functools.partial(weights.exp_reward, temperature=0.5)
    state = buffers.filled(3, 3, rewards=[1, 0, -1])
    self.assert_weights(rule, state, [1, np.exp(-2), np.exp(-4)])
    # The slot of the largest reward is empty, and the next one counts.
    state = buffers.with_empty(state, 0)
    self.assert_weights(rule, state, [1, 1, np.exp(-2)])

  def test_exp_reward_neither_overflows_nor_loses_a_rollout(self):
    rule = functools.partial(weights.exp_reward, temperature=0.001)
    state = buffers.filled(3, 3, rewards=[1e6, 1e6 - 0.0625, -1e6])
    expected = [1, np.exp(-62.5), sampling.MIN_WEIGHT]
    self.assert_weights(rule, state, expected, rtol=1e-5)
    self.assert_weights(rule, buffers.make_state(3), [1, 1, 1])

  def test_min_reward_is_inclusive(self):
    rule = functools.partial(weights.min_reward, limit=0.5)
    state = buffers.filled(4, 4, rewards=[1, 0.5, 0.25, -1])
    self.assert_weights(rule, state, [1, 1, 0, 0])

  def test_confident_is_a_softmax_of_mean_logprobs_of_sampled_tokens(self):
    state = buffers.filled(
      4,
      4,
      behavior_logprobs=[[0, -1, -2], [0, 0, -0.5], [-1, -2, -6], [0, 0, 0]],
      loss_mask=[[0, 1, 1], [0, 0, 1], [1, 1, 1], [0, 0, 0]],
    )
    rule = functools.partial(weights.confident, temperature=0.5)
    # The means are -1.5, -0.5 and -3; the last row has no token.
    expected = np.exp(2 * np.array([-1.5, -0.5, -3.0, 0]))
    self.assert_weights(rule, state, expected)
    state = buffers.with_empty(state, 3)
    expected = np.exp([-2.0, 0, -5, 0])
    self.assert_weights(rule, state, expected)
    rule = functools.partial(weights.confident, temperature=0.001)
    expected = [sampling.MIN_WEIGHT, 1, sampling.MIN_WEIGHT, 1]
    self.assert_weights(rule, state, expected)

  def test_max_age_is_inclusive(self):
    rule = functools.partial(weights.max_age, limit=3)
    state = buffers.filled(4, 4, policy_version=[10, 8, 7, 6])
    self.assert_weights(rule, state, [1, 1, 1, 0])

  def test_max_age_may_be_infinite_or_zero(self):
    state = buffers.filled(2, 2, policy_version=[10, -(10**6)])
    for limit, expected in [(float('inf'), [1, 1]), (0, [1, 0])]:
      rule = functools.partial(weights.max_age, limit=limit)
      self.assert_weights(rule, state, expected)

  def test_max_uses_ends_at_the_limit(self):
    state = buffers.filled(3, 3)._replace(times_sampled=jnp.array([0, 1, 2]))
    rule = functools.partial(weights.max_uses, limit=2)
    self.assert_weights(rule, state, [1, 1, 0])

  @parameterized.parameters(
    (0, [1, 1, 1]), (0.5, [1e-3, 1.5, 2]), (1, [1e-6, 2.25, 4])
  )
  def test_advantage_magnitude_is_symmetric(self, exponent, expected):
    state = buffers.filled(3, 3, advantages=[0, -2.25, 4])
    rule = functools.partial(weights.advantage_magnitude, exponent=exponent)
    self.assert_weights(rule, state, expected, rtol=2e-6)

  @parameterized.parameters(
    (0, [1, 0, 1, 1]), (0.5, [0.5, 0, 1, 0.25]), (1, [0.25, 0, 1, 0.0625])
  )
  def test_proportional_is_a_power_and_zero_stays_zero(
    self, exponent, expected
  ):
    state = buffers.filled(4, 4, priorities=[4, 0, 16, 1])
    rule = functools.partial(weights.proportional, exponent=exponent)
    self.assert_weights(rule, state, expected)

  def test_proportional_neither_overflows_nor_loses_a_priority(self):
    state = buffers.filled(3, 3, priorities=[1e30, 1e-30, 1e29])
    rule = functools.partial(weights.proportional, exponent=2)
    self.assert_weights(rule, state, [1, 1e-30, 1e-2], rtol=1e-4)

  def test_proportional_ignores_what_an_empty_slot_still_holds(self):
    state = buffers.filled(3, 3, priorities=[1e30, 1, 4])
    state = buffers.with_empty(state, 0)
    rule = functools.partial(weights.proportional, exponent=1)
    self.assert_weights(rule, state, [0, 0.25, 1])

  def test_proportional_of_an_empty_buffer_is_zero(self):
    rule = functools.partial(weights.proportional, exponent=0.5)
    self.assert_weights(rule, buffers.filled(2, 2, priorities=[0, 0]), [0, 0])

  def test_never_used_slots_all_come_before_used_ones(self):
    times_sampled = np.random.default_rng(0).integers(0, 3, 300)
    state = buffers.filled(300, 300)._replace(
      times_sampled=jnp.asarray(times_sampled)
    )
    num_unused = np.sum(times_sampled == 0)
    orders = []
    for seed in range(20):
      slots = sample_all(
        state, jax.random.key(seed), weights.never_used_first
      ).slots
      self.assertEqual(sorted(slots.tolist()), list(range(300)))
      is_unused = times_sampled[np.asarray(slots)] == 0
      np.testing.assert_array_equal(is_unused, np.arange(300) < num_unused)
      orders.append(np.asarray(slots))
    # Both kinds are drawn in random order, so each slot has its mean place.
    places = np.argsort(orders, axis=1).mean(axis=0)
    np.testing.assert_allclose(
      places[times_sampled == 0], (num_unused - 1) / 2, atol=40
    )
    np.testing.assert_allclose(
      places[times_sampled > 0], (num_unused + 299) / 2, atol=80
    )

  def test_unused_slots_are_in_the_order_of_insertion_and_used_ones_zero(self):
    # Row 4 lies in slot 0, and rows 1, 2, 3 in slots 1, 2, 3.
    state, _ = buffers.INSERT(
      buffers.filled(4, 4), buffers.make_rows([4]), priorities=jnp.ones(1)
    )
    self.assert_weights(weights.newest_unused, state, [4, 1, 2, 3])
    self.assert_weights(weights.oldest_unused, state, [1, 4, 3, 2])
    self.assert_weights(weights.newest_first, state, [4, 1, 2, 3])
    self.assert_weights(weights.oldest_first, state, [1, 4, 3, 2])
    # One slot was sampled twice, and one once.
    state = buffer.mark_sampled(state, jnp.int32([2, 2, 3]), STEP)
    self.assert_weights(weights.newest_unused, state, [4, 1, 0, 0])
    self.assert_weights(weights.oldest_unused, state, [1, 4, 0, 0])
    self.assert_weights(weights.newest_first, state, [4, 1, 2, 3])
    self.assert_weights(weights.oldest_first, state, [1, 4, 3, 2])

  def test_empty_slots_are_behind_all_others_in_an_order(self):
    state = buffers.with_empty(buffers.filled(6, 4), 1)
    for rule, expected in [
      (weights.newest_first, [4, 5, 6]),
      (weights.oldest_first, [6, 5, 4]),
    ]:
      weights_C = np.asarray(jax.jit(rule)(state, STEP))
      np.testing.assert_array_equal(weights_C[[0, 2, 3]], expected)

  @parameterized.parameters(
    *('newest_unused', 'oldest_unused', 'newest_first', 'oldest_first')
  )
  def test_more_slots_than_float32_counts_raise(self, name):
    state = jax.eval_shape(lambda: buffers.make_state(2**24 + 1))
    with self.assertRaisesRegex(
      ValueError,
      f'^replay.capacity = 16777217: must be at most 16777216 for {name}$',
    ):
      jax.eval_shape(getattr(weights, name), state, STEP)

  def test_product_multiplies_any_number_of_rules(self):
    state = buffers.filled(
      3, 3, policy_version=[10, 6, 2], advantages=[1, 4, 9]
    )
    rule = weights.product(
      functools.partial(weights.recency, half_life=4),
      functools.partial(weights.max_age, limit=4),
      functools.partial(weights.advantage_magnitude, exponent=0.5),
    )
    self.assert_weights(rule, state, [1, 1, 0], rtol=2e-6)
    self.assert_weights(weights.product(weights.uniform), state, [1, 1, 1])

  @parameterized.parameters(2, 5)
  def test_a_product_that_overflows_still_puts_unused_slots_first(self, times):
    rule = weights.product(*[weights.never_used_first] * times)
    state = buffers.filled(4, 4)._replace(
      times_sampled=jnp.array([1, 0, 2, 0], jnp.int32)
    )
    state = buffers.with_empty(state, 3)
    for seed in range(20):
      drawn = sample_all(state, jax.random.key(seed), rule)
      np.testing.assert_array_equal(drawn.is_valid, [1, 1, 1, 0])
      self.assertEqual(int(drawn.slots[0]), 1)
      self.assertEqual(sorted(drawn.slots[1:3].tolist()), [0, 2])

  def test_a_product_beyond_float32_keeps_its_ratios(self):
    def rule_of(*values):
      return lambda state, step: jnp.array(values, jnp.float32)

    state = buffers.with_empty(buffers.filled(5, 5), 3)
    inf = float('inf')
    for first, second, expected in [
      # Slot 3 is empty and slot 4 is not eligible: neither may count.
      ([1e30, 2e30, 1e-8, 1e38, inf], [1e30, 1, 1, 1e38, 1], [1, 2e-30]),
      ([1e-30, 2e-30, 1e-37, 1, -1], [1e-30, 1e-30, 1e-37, 1, -1], [0.5, 1]),
    ]:
      rule = weights.product(rule_of(*first), rule_of(*second))
      product = np.asarray(jax.jit(rule)(state, STEP))
      largest = product.max()
      np.testing.assert_allclose(product[:2] / largest, expected, rtol=1e-6)
      self.assertTrue(np.all(product[:3] >= sampling.MIN_WEIGHT))
      np.testing.assert_array_equal(product[3:], [0, 0])

  def test_a_product_within_float32_is_the_plain_product_bit_for_bit(self):
    rng = np.random.default_rng(0)
    first, second = rng.lognormal(0, 20, (2, 64)).astype(np.float32)
    rule = weights.product(lambda *_: first, lambda *_: second)
    product = jax.jit(rule)(buffers.filled(64, 64), STEP)
    np.testing.assert_array_equal(product, first * second)

  def test_a_factor_that_lets_nothing_be_drawn_does_so_in_the_product(self):
    state = buffers.filled(3, 3)
    zeros = functools.partial(weights.max_age, limit=0)
    self.assert_weights(weights.product(zeros, zeros), state, [0, 0, 0])

  def test_product_of_nothing_raises(self):
    with self.assertRaisesRegex(
      ValueError, r'weight_rules = \(\): must be at least one rule'
    ):
      weights.product()

  @parameterized.parameters(
    ('inverse_age', 'exponent', -1, r'in \[0, 4\]'),
    ('inverse_age', 'exponent', 5, r'in \[0, 4\]'),
    ('exp_reward', 'temperature', 0, r'in \[0.001, 1000\]'),
    ('confident', 'temperature', 0, r'in \[0.001, 1000\]'),
    ('min_reward', 'limit', float('inf'), r'in \[-1e\+06, 1e\+06\]'),
    ('newest', 'count', 0, r'in \[1, inf\)'),
    ('recency', 'half_life', 0, r'in \(0, inf\)'),
    ('recency', 'half_life', float('nan'), r'in \(0, inf\)'),
    ('max_age', 'limit', -1, r'in \[0, inf\]'),
    ('max_uses', 'limit', 0, r'in \[1, inf\)'),
    ('max_uses', 'limit', 1.5, 'of type int'),
    ('advantage_magnitude', 'exponent', -0.5, r'in \[0, 6\]'),
    ('advantage_magnitude', 'exponent', 7, r'in \[0, 6\]'),
    ('proportional', 'exponent', -1, r'in \[0, inf\)'),
    ('proportional', 'exponent', float('inf'), r'in \[0, inf\)'),
  )
  def test_a_bad_constant_raises(self, name, constant, value, allowed):
    with self.assertRaisesRegex(
      ValueError, f'^{constant} = {value}: must be {allowed}$'
    ):
      getattr(weights, name)(buffers.filled(3, 3), STEP, **{constant: value})

  @parameterized.parameters(
    ('age', 'policy_version', {}),
    ('recency', 'policy_version', {'half_life': 1.0}),
    ('max_age', 'policy_version', {'limit': 1}),
    ('inverse_age', 'policy_version', {'exponent': 1.0}),
    ('exp_reward', 'rewards', {'temperature': 1.0}),
    ('min_reward', 'rewards', {'limit': 1.0}),
    ('confident', 'behavior_logprobs', {'temperature': 1.0}),
    ('advantage_magnitude', 'advantages', {'exponent': 1.0}),
  )
  def test_a_field_that_is_not_stored_is_named_with_its_rule(
    self, name, field, constants
  ):
    state = buffer.init({'tokens': jnp.zeros((1, 2))}, capacity=3)
    with self.assertRaisesRegex(
      ValueError, f'^rollouts.{field} = None: must be stored for {name}$'
    ):
      getattr(weights, name)(state, STEP, **constants)

  def test_constants_may_be_traced_for_a_sweep(self):
    state = buffers.filled(
      2, 2, policy_version=[10, 6], advantages=[4, 1], priorities=[4, 1]
    )

    def all_rules(constant):
      return (
        weights.newest(state, STEP, count=constant)
        * weights.recency(state, STEP, half_life=constant)
        * weights.max_age(state, STEP, limit=constant)
        * weights.max_uses(state, STEP, limit=constant)
        * weights.advantage_magnitude(state, STEP, exponent=constant)
        * weights.proportional(state, STEP, exponent=constant)
      )

    np.testing.assert_allclose(
      jax.jit(jax.vmap(all_rules))(jnp.array([1.0, 4.0])),
      [[0, 0], [256, 0.5 / 256]],
      rtol=1e-5,
    )

  @parameterized.parameters(
    ('inverse_age', 'exponent'),
    ('exp_reward', 'temperature'),
    ('min_reward', 'limit'),
    ('confident', 'temperature'),
  )
  def test_a_traced_constant_gives_what_the_number_gives(self, name, constant):
    state = buffers.filled(2, 2, policy_version=[10, 6], rewards=[1, 4])
    rule = getattr(weights, name)

    def all_weights(value):
      return rule(state, STEP, **{constant: value})

    np.testing.assert_allclose(
      jax.jit(jax.vmap(all_weights))(jnp.array([0.5, 2.0])),
      [all_weights(0.5), all_weights(2.0)],
      rtol=1e-6,
    )
