"""Tests for `replay_rl.replay.rules`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from replay_rl import base
from replay_rl.replay import buffer
from replay_rl.replay import rules
from replay_rl.replay import sampling

INSERT = jax.jit(buffer.insert)


def make_rows(num_rows: int, **fields) -> base.Rollout:
  rows = base.Rollout(
    tokens=jnp.arange(num_rows, dtype=jnp.int32)[:, None],
    loss_mask=jnp.ones((num_rows, 1), bool),
    behavior_logprobs=jnp.zeros((num_rows, 1)),
    rewards=jnp.zeros(num_rows),
    advantages=jnp.zeros(num_rows),
    group_id=jnp.zeros(num_rows, jnp.int32),
    policy_version=jnp.zeros(num_rows, jnp.int32),
  )
  return rows._replace(
    **{
      name: jnp.asarray(values, getattr(rows, name).dtype)
      for name, values in fields.items()
    }
  )


def make_state(num_rows: int, priorities=None, **fields) -> base.BufferState:
  """A full buffer of the rows, in order."""
  if priorities is None:
    priorities = jnp.ones(num_rows)
  rows = make_rows(num_rows, **fields)
  state = buffer.init(rows, capacity=num_rows)
  priorities = jnp.asarray(priorities, jnp.float32)
  return INSERT(state, rows, priorities=priorities)[0]


STEP = jnp.int32(10)


class WeightTest(parameterized.TestCase):
  def assert_weights(self, rule, state, expected, rtol=1e-6):
    for variant in (rule, jax.jit(rule)):
      weights = variant(state, STEP)
      self.assertEqual(weights.dtype, jnp.float32)
      np.testing.assert_allclose(weights, expected, rtol=rtol)

  def test_age_is_learner_steps_since_the_policy(self):
    state = make_state(3, policy_version=[10, 7, 0])
    np.testing.assert_array_equal(rules.age(state, STEP), [0, 3, 10])

  def test_uniform_is_one(self):
    self.assert_weights(rules.uniform, make_state(3), [1, 1, 1])

  def test_recency_halves_with_every_half_life(self):
    rule = functools.partial(rules.recency, half_life=4)
    state = make_state(4, policy_version=[10, 6, 2, 8])
    self.assert_weights(rule, state, [1, 0.5, 0.25, 2**-0.5])

  def test_max_age_is_inclusive(self):
    rule = functools.partial(rules.max_age, limit=3)
    state = make_state(4, policy_version=[10, 8, 7, 6])
    self.assert_weights(rule, state, [1, 1, 1, 0])

  def test_max_age_may_be_infinite_or_zero(self):
    state = make_state(2, policy_version=[10, -(10**6)])
    for limit, expected in [(float('inf'), [1, 1]), (0, [1, 0])]:
      rule = functools.partial(rules.max_age, limit=limit)
      self.assert_weights(rule, state, expected)

  def test_max_uses_ends_at_the_limit(self):
    state = make_state(3)._replace(times_sampled=jnp.array([0, 1, 2]))
    rule = functools.partial(rules.max_uses, limit=2)
    self.assert_weights(rule, state, [1, 1, 0])

  @parameterized.parameters(
    (0, [1, 1, 1]), (0.5, [1e-3, 1.5, 2]), (1, [1e-6, 2.25, 4])
  )
  def test_advantage_magnitude_is_symmetric(self, exponent, expected):
    state = make_state(3, advantages=[0, -2.25, 4])
    rule = functools.partial(rules.advantage_magnitude, exponent=exponent)
    self.assert_weights(rule, state, expected, rtol=2e-6)

  @parameterized.parameters(
    (0, [1, 0, 1, 1]), (0.5, [0.5, 0, 1, 0.25]), (1, [0.25, 0, 1, 0.0625])
  )
  def test_proportional_is_a_power_and_zero_stays_zero(
    self, exponent, expected
  ):
    state = make_state(4, priorities=[4, 0, 16, 1])
    rule = functools.partial(rules.proportional, exponent=exponent)
    self.assert_weights(rule, state, expected)

  def test_proportional_neither_overflows_nor_loses_a_priority(self):
    state = make_state(3, priorities=[1e30, 1e-30, 1e29])
    rule = functools.partial(rules.proportional, exponent=2)
    self.assert_weights(rule, state, [1, 1e-30, 1e-2], rtol=1e-4)

  def test_proportional_ignores_what_an_empty_slot_still_holds(self):
    state = make_state(3, priorities=[1e30, 1, 4])
    state = buffer.evict(state, jnp.array([False, True, True]))
    rule = functools.partial(rules.proportional, exponent=1)
    self.assert_weights(rule, state, [0, 0.25, 1])

  def test_proportional_of_an_empty_buffer_is_zero(self):
    rule = functools.partial(rules.proportional, exponent=0.5)
    self.assert_weights(rule, make_state(2, priorities=[0, 0]), [0, 0])

  def test_never_used_slots_all_come_before_used_ones(self):
    times_sampled = np.random.default_rng(0).integers(0, 3, 300)
    state = make_state(300)._replace(times_sampled=jnp.asarray(times_sampled))
    num_unused = np.sum(times_sampled == 0)
    orders = []
    for seed in range(20):
      slots = buffer.sample(
        state,
        jax.random.key(seed),
        rules.never_used_first(state, STEP),
        300,
        draw=sampling.gumbel_top_k,
      ).slots
      self.assertEqual(sorted(slots.tolist()), list(range(300)))
      is_unused = times_sampled[np.asarray(slots)] == 0
      np.testing.assert_array_equal(is_unused, np.arange(300) < num_unused)
      orders.append(np.asarray(slots))
    # Uniform within both: the mean place of each slot is that of its kind.
    places = np.argsort(orders, axis=1).mean(axis=0)
    np.testing.assert_allclose(
      places[times_sampled == 0], (num_unused - 1) / 2, atol=40
    )
    np.testing.assert_allclose(
      places[times_sampled > 0], (num_unused + 299) / 2, atol=80
    )

  def test_product_multiplies_any_number_of_rules(self):
    state = make_state(3, policy_version=[10, 6, 2], advantages=[1, 4, 9])
    rule = rules.product(
      functools.partial(rules.recency, half_life=4),
      functools.partial(rules.max_age, limit=4),
      functools.partial(rules.advantage_magnitude, exponent=0.5),
    )
    self.assert_weights(rule, state, [1, 1, 0], rtol=2e-6)
    self.assert_weights(rules.product(rules.uniform), state, [1, 1, 1])

  def test_product_of_nothing_raises(self):
    with self.assertRaisesRegex(ValueError, 'at least one rule'):
      rules.product()

  @parameterized.parameters(
    (rules.recency, {'half_life': 0}, 'half_life=0 must be above 0'),
    (rules.recency, {'half_life': float('nan')}, 'half_life=nan must be'),
    (rules.max_age, {'limit': -1}, 'limit=-1 must be at least 0'),
    (rules.max_uses, {'limit': 0}, 'limit=0 must be at least 1'),
    (rules.advantage_magnitude, {'exponent': -0.5}, 'exponent=-0.5 must be'),
    (rules.proportional, {'exponent': -1}, 'exponent=-1 must be finite'),
    (rules.proportional, {'exponent': float('inf')}, 'exponent=inf must be'),
    (
      rules.positive_bias,
      {'fraction': 1.1},
      r'fraction=1.1 must be in \[0, 1\]',
    ),
    (
      rules.positive_bias,
      {'fraction': -0.1},
      r'fraction=-0.1 must be in \[0, 1\]',
    ),
  )
  def test_a_bad_constant_raises(self, rule, constants, message):
    with self.assertRaisesRegex(ValueError, message):
      rule(make_state(3), STEP, **constants)

  def test_constants_may_be_traced_for_a_sweep(self):
    state = make_state(
      2, policy_version=[10, 6], advantages=[4, 1], priorities=[4, 1]
    )

    def all_rules(constant):
      return (
        rules.recency(state, STEP, half_life=constant)
        * rules.max_age(state, STEP, limit=constant)
        * rules.max_uses(state, STEP, limit=constant)
        * rules.advantage_magnitude(state, STEP, exponent=constant)
        * rules.proportional(state, STEP, exponent=constant)
      )

    np.testing.assert_allclose(
      jax.vmap(all_rules)(jnp.array([1.0, 4.0])),
      [[4, 0], [256, 0.5 / 256]],
      rtol=1e-5,
    )


def insert_all(correct, capacity, sizes, keep_rule, is_stored=None):
  """Inserts rows 0, 1, ... in batches; returns the rows that are kept.

  Rows that are not `is_stored` come in, too, but a filter drops them.
  """
  if is_stored is None:
    is_stored = np.ones(len(correct), bool)
  state = buffer.init(make_rows(1), capacity=capacity)
  insert = jax.jit(
    lambda state, rows, is_valid: buffer.insert(
      state,
      rows,
      priorities=jnp.ones(rows.rewards.shape),
      is_valid=is_valid,
      keep_scores=keep_rule(state, STEP),
    )[0]
  )
  first = 0
  for size in sizes:
    ids = np.arange(first, first + size)
    rows = make_rows(size, tokens=ids[:, None], rewards=correct[ids])
    state = insert(state, rows, jnp.asarray(is_stored[ids]))
    first += size
  ids = np.asarray(state.rollouts.tokens)[np.asarray(state.is_valid), 0]
  return sorted(ids.tolist())


def positive_bias_rule(fraction):
  return functools.partial(rules.positive_bias, fraction=fraction)


def positive_bias_set(correct, capacity, num_positive, num_last, ids):
  """The definition: what is kept of rows `ids`, of which the last came last."""
  newest_first = list(reversed(ids))
  # The incoming rows are kept even where they are more than C - P.
  num_recent = max(capacity - num_positive, num_last)
  recent, older = newest_first[:num_recent], newest_first[num_recent:]
  preferred = [i for i in older if correct[i]][:num_positive]
  others = [i for i in older if i not in preferred and not correct[i]]
  return sorted((recent + preferred + others)[:capacity])


class KeepScoreTest(parameterized.TestCase):
  def test_fifo_is_minus_the_number_of_later_insertions(self):
    state = make_state(3)
    np.testing.assert_array_equal(rules.fifo(state, STEP), [-2, -1, 0])
    self.assertEqual(rules.fifo(state, STEP).dtype, jnp.float32)

  def test_fifo_keeps_what_the_ring_keeps(self):
    kept = insert_all(np.zeros(10), 4, [3, 3, 2, 2], rules.fifo)
    self.assertEqual(kept, [6, 7, 8, 9])

  @parameterized.parameters(([1] * 10,), ([2] * 5,), ([4, 4, 2],))
  def test_positive_bias_keeps_the_rows_of_the_papers_example(self, sizes):
    # arXiv 2604.08706: N = 8, delta = 0.5, oldest t-9 to newest t, G correct.
    #   t-9 R, t-8 G, t-7 G, t-6 R, t-5 G, t-4 G, t-3 R, t-2 G, t-1 R, t R
    # keeps {t-8, t-7, t-5, t-4, t-3, t-2, t-1, t}.
    correct = np.array([0, 1, 1, 0, 1, 1, 0, 1, 0, 0])
    kept = insert_all(correct, 8, sizes, positive_bias_rule(0.5))
    self.assertEqual(kept, [1, 2, 4, 5, 6, 7, 8, 9])

  def test_positive_bias_scores_by_hand(self):
    # P = floor(0.3 * 7 + 0.5) = 2. From the newest, slot 6: ranks 0 to 6,
    # correct are ranks 1, 3, 4 and 6. The first two of them are safe, and the
    # others are as old as those of ranks 1 and 3.
    state = make_state(7, rewards=[1, 0, 1, 1, -1, 1, 0])
    scores = rules.positive_bias(state, STEP, fraction=0.3)
    np.testing.assert_array_equal(scores, [-3, -5, -1, 1, -2, 1, 0])
    self.assertEqual(scores.dtype, jnp.float32)

  def test_positive_bias_counts_neither_empty_slots_nor_what_they_hold(self):
    state = make_state(7, rewards=[1, 0, 1, 1, -1, 1, 0])
    state = buffer.evict(state, jnp.arange(7) != 5)
    scores = rules.positive_bias(state, STEP, fraction=0.3)
    # Ranks from slot 6: 0, none, 1, 2, 3, 4, 5; correct are 2, 3 and 5.
    np.testing.assert_array_equal(scores[:5], [-2, -4, 1, 1, -1])
    self.assertEqual(float(scores[6]), 0)

  @parameterized.product(
    fraction=(0.0, 0.3, 0.5, 1.0), size=(1, 3), seed=(0, 1)
  )
  def test_positive_bias_is_its_definition_on_any_history(
    self, fraction, size, seed
  ):
    correct = np.random.default_rng(seed).random(30) < 0.3
    num_positive = int(np.floor(fraction * 8 + 0.5))
    expected = positive_bias_set(correct, 8, num_positive, size, range(30))
    kept = insert_all(
      correct, 8, [size] * (30 // size), positive_bias_rule(fraction)
    )
    self.assertEqual(kept, expected)

  @parameterized.product(fraction=(0.1, 0.3, 0.5), seed=(0, 1, 2))
  def test_positive_bias_is_its_definition_where_a_filter_drops_rows(
    self, fraction, seed
  ):
    # Batches of 4, of which any number from 0 to 4 is stored; C - P is 4 or
    # more, so that no batch pushes out what the next one would keep.
    rng = np.random.default_rng(seed)
    correct, is_stored = rng.random(60) < 0.4, rng.random(60) < 0.5
    num_positive = int(np.floor(fraction * 8 + 0.5))
    kept = insert_all(
      correct, 8, [4] * 15, positive_bias_rule(fraction), is_stored
    )
    # Nothing that the definition needs is ever lost on the way.
    expected = positive_bias_set(
      correct, 8, num_positive, is_stored[-4:].sum(), np.flatnonzero(is_stored)
    )
    self.assertEqual(kept, expected)

  def test_a_delta_of_zero_keeps_what_fifo_keeps(self):
    correct = np.random.default_rng(0).random(30) < 0.5
    kept = insert_all(correct, 8, [3] * 10, positive_bias_rule(0.0))
    self.assertEqual(kept, list(range(22, 30)))

  def test_delta_may_be_traced_for_a_sweep(self):
    state = make_state(7, rewards=[1, 0, 1, 1, -1, 1, 0])
    together = jax.vmap(
      lambda delta: rules.positive_bias(state, STEP, fraction=delta)
    )(jnp.array([0.0, 0.3]))
    np.testing.assert_array_equal(
      together, [[-6, -5, -4, -3, -2, -1, 0], [-3, -5, -1, 1, -2, 1, 0]]
    )


if __name__ == '__main__':
  absltest.main()
