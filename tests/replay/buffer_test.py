"""Tests for `replay_rl.replay.buffer`."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from replay_rl import base
from replay_rl.replay import buffer
from replay_rl.replay import sampling

INSERT = jax.jit(buffer.insert)
EVICT = jax.jit(buffer.evict)
SAMPLE = jax.jit(buffer.sample, static_argnums=3, static_argnames='draw')
MARK = jax.jit(buffer.mark_sampled)
UPDATE = jax.jit(buffer.update_priorities)
IID = functools.partial(sampling.blocked_inverse_cdf, stratified=False)
NAN, INF = float('nan'), float('inf')


def make_rows(ids, num_tokens=3) -> base.Rollout:
  """Rows in which every field encodes the id."""
  ids = np.asarray(ids)
  grid = ids[:, None] * 8 + np.arange(num_tokens)
  return base.Rollout(
    tokens=jnp.asarray(grid, jnp.int32),
    loss_mask=jnp.asarray(grid // 8 % 2 == 1),
    behavior_logprobs=jnp.asarray(-grid, jnp.float32),
    rewards=jnp.asarray(ids * 2, jnp.float32),
    advantages=jnp.asarray(ids + 0.5, jnp.float32),
    group_id=jnp.asarray(ids + 1, jnp.int32),
    policy_version=jnp.asarray(ids + 2, jnp.int32),
  )


def make_state(capacity: int, num_tokens=3) -> base.BufferState:
  return buffer.init(make_rows([0], num_tokens), capacity=capacity)


def filled(capacity: int, num_rows: int) -> base.BufferState:
  """A buffer with rows 0, 1, ... of priority 1 in slots 0, 1, ..."""
  state, _ = INSERT(
    make_state(capacity),
    make_rows(range(num_rows)),
    priorities=jnp.ones(num_rows),
  )
  return state


def vector(*values, dtype=jnp.float32):
  return jnp.asarray(values, dtype)


slots_of = functools.partial(vector, dtype=jnp.int32)
mask_of = functools.partial(vector, dtype=bool)


class Twin:
  """A buffer on a Python list: slow and obvious."""

  def __init__(self, capacity: int, num_inserted: int):
    self.slots: list[dict | None] = [None] * capacity
    self.num_inserted = num_inserted  # Never wraps.
    self.next_slot = 0
    self.num_repaired = 0

  def repair(self, priority: float) -> float:
    fixed = priority if 0 < priority < INF else 0.0
    fixed = min(max(fixed, 1e-30), 1e30) if fixed else 0.0
    self.num_repaired += fixed != priority
    return fixed

  def insert(self, ids, priorities, is_valid, keep_scores=None):
    capacity = len(self.slots)
    scores = np.zeros(capacity) if keep_scores is None else keep_scores

    def order(slot):
      row, score = self.slots[slot], scores[slot]
      if row is None:
        return (0, 0, 0, slot)
      return (1, -INF if np.isnan(score) else score, row['index'], slot)

    order_of_slots = sorted(range(capacity), key=order)
    written = []
    for row_id, priority, valid in zip(ids, priorities, is_valid, strict=True):
      if not valid:
        written.append(capacity)
        continue
      if keep_scores is None:
        slot = self.next_slot
        self.next_slot = (self.next_slot + 1) % capacity
      else:
        slot = order_of_slots.pop(0)
      self.slots[slot] = {
        'id': row_id,
        'index': self.num_inserted,
        'times_sampled': 0,
        'last_sampled': -1,
        'priority': self.repair(priority),
      }
      self.num_inserted += 1
      written.append(slot)
    return written

  def evict(self, keep):
    for slot, kept in enumerate(keep):
      if not kept:
        self.slots[slot] = None

  def mark_sampled(self, slots, step):
    for slot in slots:
      row = self.slots[slot] if 0 <= slot < len(self.slots) else None
      if row:
        row['times_sampled'] += 1
        row['last_sampled'] = step

  def update_priorities(self, slots, priorities):
    best = {}
    for slot, priority in zip(slots, priorities, strict=True):
      if 0 <= slot < len(self.slots):
        best.setdefault(slot, []).append(self.repair(priority))
    for slot, values in best.items():
      row = self.slots[slot]
      if row:
        row['priority'] = max(values)

  def check(self, state: base.BufferState):
    expected_valid = [row is not None for row in self.slots]
    np.testing.assert_array_equal(state.is_valid, expected_valid)
    held = [c for c, row in enumerate(self.slots) if row is not None]
    rows = [row for row in self.slots if row is not None]
    chex.assert_trees_all_equal(
      jax.tree.map(lambda leaf: leaf[np.array(held, int)], state.rollouts),
      make_rows(np.array([row['id'] for row in rows], int)),
    )
    for field, name in [
      ('times_sampled', 'times_sampled'),
      ('last_sampled', 'last_sampled'),
      ('priority', 'priorities'),
    ]:
      np.testing.assert_array_equal(
        np.asarray(getattr(state, name))[held],
        np.array([row[field] for row in rows], np.float32),
        err_msg=name,
      )
    index = [row['index'] % 2**32 for row in rows]
    np.testing.assert_array_equal(np.asarray(state.insert_index)[held], index)
    age = [self.num_inserted - 1 - row['index'] for row in rows]
    ages_C = np.asarray(buffer.insertion_age(state))
    np.testing.assert_array_equal(ages_C[held], age)
    assert int(state.num_inserted) == self.num_inserted % 2**32
    assert int(state.next_slot) == self.next_slot
    assert int(state.num_repaired_priorities) == self.num_repaired
    assert int(buffer.num_valid(state)) == len(held)


class TwinTest(parameterized.TestCase):
  """Equivalence with a list on random operations, past the counters' wraps."""

  @parameterized.product(
    num_inserted=(0, 2**31 - 60, 2**32 - 60),
    seed=(0, 1, 2),
  )
  def test_random_operations_give_the_same_buffer(self, num_inserted, seed):
    capacity = 7  # Not a multiple of the batch.
    rng = np.random.default_rng(seed)
    twin = Twin(capacity, num_inserted)
    state = make_state(capacity)._replace(num_inserted=jnp.uint32(num_inserted))
    for step in range(60):
      kind = rng.integers(6)
      batch = np.arange(4) + 4 * step
      priorities = rng.choice(
        np.array([0, 1, 2.5, 1e-35, 1e35, NAN, INF, -INF, -1], np.float32), 4
      )
      slots = rng.integers(-2, capacity + 2, 4)
      is_valid = rng.random(4) < (1.0 if kind == 0 else 0.6)
      if kind <= 2:
        scores = None
        if kind == 2:
          scores = rng.choice(
            np.array([0, 1, 1, NAN, -INF, INF], np.float32), capacity
          )
        expected = twin.insert(batch, priorities, is_valid, scores)
        state, written = INSERT(
          state,
          make_rows(batch),
          priorities=priorities,
          is_valid=is_valid,
          keep_scores=scores,
        )
        np.testing.assert_array_equal(written, expected)
      elif kind == 3:
        keep = rng.random(capacity) < 0.7
        twin.evict(keep)
        state = EVICT(state, keep)
      elif kind == 4:
        twin.mark_sampled(slots, step)
        state = MARK(state, slots.astype(np.int32), step)
      else:
        twin.update_priorities(slots, priorities)
        state = UPDATE(state, slots.astype(np.int32), priorities)
      twin.check(state)


class InitTest(parameterized.TestCase):
  def test_a_new_buffer_is_empty_and_zero(self):
    state = make_state(4)
    self.assertEqual(int(buffer.num_valid(state)), 0)
    chex.assert_trees_all_equal(
      state.rollouts, jax.tree.map(jnp.zeros_like, make_rows(range(4)))
    )
    np.testing.assert_array_equal(state.last_sampled, [-1] * 4)
    self.assertEqual(state.insert_index.dtype, jnp.uint32)

  def test_shapes_suffice_and_any_pytree_will_do(self):
    state = buffer.init(
      {'x': jax.ShapeDtypeStruct((9, 2), jnp.bfloat16)}, capacity=3
    )
    chex.assert_trees_all_equal(
      state.rollouts, {'x': jnp.zeros((3, 2), jnp.bfloat16)}
    )

  @parameterized.parameters(0, -1, 2**30 + 1)
  def test_a_capacity_out_of_range_raises(self, capacity):
    with self.assertRaisesRegex(ValueError, rf'capacity={capacity} must be in'):
      # Shapes only: a wrong bound must not allocate.
      jax.eval_shape(lambda: make_state(capacity))

  def test_leaves_without_a_common_leading_axis_raise(self):
    with self.assertRaisesRegex(ValueError, r"rollouts\['b'\] has shape \(\)"):
      buffer.init({'a': jnp.zeros(2), 'b': jnp.zeros([])}, capacity=2)
    with self.assertRaisesRegex(ValueError, r"rollouts\['a'\] has shape \(\)"):
      buffer.init({'a': jnp.zeros([]), 'b': jnp.zeros([])}, capacity=2)
    with self.assertRaisesRegex(ValueError, 'has no leaves'):
      buffer.init({}, capacity=2)


class InsertTest(parameterized.TestCase):
  def test_the_ring_wraps_over_the_oldest(self):
    state = make_state(4)
    for ids, expected in [
      ([0, 1, 2], [0, 1, 2]),
      ([3, 4, 5], [3, 0, 1]),
      ([6, 7, 8], [2, 3, 0]),
    ]:
      state, slots = INSERT(state, make_rows(ids), priorities=jnp.ones(3))
      np.testing.assert_array_equal(slots, expected)
    chex.assert_trees_all_equal(state.rollouts, make_rows([8, 5, 6, 7]))
    np.testing.assert_array_equal(buffer.insertion_age(state), [0, 3, 2, 1])
    self.assertEqual(int(state.next_slot), 1)

  def test_only_valid_rows_are_stored_in_order_and_without_gaps(self):
    state, slots = INSERT(
      make_state(4),
      make_rows([5, 6, 7, 8]),
      priorities=vector(1, 2, NAN, 4),
      is_valid=mask_of(0, 1, 0, 1),
    )
    np.testing.assert_array_equal(slots, [4, 0, 4, 1])
    chex.assert_trees_all_equal(
      jax.tree.map(lambda leaf: leaf[:2], state.rollouts), make_rows([6, 8])
    )
    np.testing.assert_array_equal(state.is_valid, [1, 1, 0, 0])
    np.testing.assert_array_equal(state.priorities, [2, 4, 0, 0])
    self.assertEqual(int(state.num_inserted), 2)
    self.assertEqual(int(state.next_slot), 2)
    # The NaN belongs to a row that was not stored.
    self.assertEqual(int(state.num_repaired_priorities), 0)

  def test_no_valid_row_changes_nothing(self):
    before = filled(4, 3)
    after, slots = INSERT(
      before, make_rows([8, 9]), priorities=jnp.ones(2), is_valid=mask_of(0, 0)
    )
    chex.assert_trees_all_equal(after, before)
    np.testing.assert_array_equal(slots, [4, 4])

  @parameterized.named_parameters(
    ('empty_slots_go_first', [1, 0, 1, 0], [-9, 7, -8, 7], [1, 3, 0]),
    ('empty_slots_go_in_slot_order', [0, 0, 0, 1], [3, 2, 1, 0], [0, 1, 2]),
    ('then_the_lowest_score', [1, 1, 1, 1], [3, 1, 2, 0], [3, 1, 2]),
    ('then_the_oldest_of_a_tie', [1, 1, 1, 1], [0, 1, 0, 0], [2, 3, 0]),
    ('zero_has_no_sign', [1, 1, 1, 1], [0.0, 1, 0.0, -0.0], [2, 3, 0]),
    ('nan_is_minus_infinity', [1, 1, 1, 1], [NAN, 1, -INF, NAN], [2, 3, 0]),
    ('plus_infinity_stays', [1, 1, 1, 1], [INF, 1, 5, 9], [1, 2, 3]),
    ('infinite_scores_are_not_empty', [1, 0, 1, 1], [-INF, 9, 1, 1], [1, 0, 2]),
  )
  def test_keep_scores_choose(self, is_valid, scores, expected):
    # Inserted in the order of slots 2, 3, 0, 1, across the wrap of the counter.
    state = make_state(4)._replace(
      is_valid=mask_of(*is_valid),
      insert_index=vector(0, 1, 2**32 - 2, 2**32 - 1, dtype=jnp.uint32),
      num_inserted=jnp.uint32(2),
      next_slot=jnp.int32(3),
    )
    after, slots = INSERT(
      state,
      make_rows([5, 6, 7]),
      priorities=jnp.ones(3),
      keep_scores=vector(*scores),
    )
    np.testing.assert_array_equal(slots, expected)
    np.testing.assert_array_equal(after.rollouts.group_id[slots], [6, 7, 8])
    np.testing.assert_array_equal(after.insert_index[slots], [2, 3, 4])
    self.assertEqual(int(after.next_slot), 3)

  def test_keep_scores_and_invalid_rows_go_together(self):
    _, slots = INSERT(
      filled(4, 4),
      make_rows([5, 6, 7]),
      priorities=jnp.ones(3),
      is_valid=mask_of(0, 1, 1),
      keep_scores=vector(3, 1, 2, 0),
    )
    np.testing.assert_array_equal(slots, [4, 3, 1])

  @parameterized.parameters([None], [jnp.zeros(2)])
  def test_an_overwrite_resets_the_statistics(self, keep_scores):
    state = filled(2, 2)
    state = MARK(state, slots_of(0, 0, 1), 7)
    state, _ = INSERT(
      state, make_rows([9]), priorities=vector(3), keep_scores=keep_scores
    )
    np.testing.assert_array_equal(state.times_sampled, [0, 1])
    np.testing.assert_array_equal(state.last_sampled, [-1, 7])
    np.testing.assert_array_equal(state.priorities, [3, 1])

  def test_as_many_rows_as_slots_fill_the_buffer_from_any_cursor(self):
    state, slots = INSERT(
      filled(4, 3), make_rows([5, 6, 7, 8]), priorities=jnp.ones(4)
    )
    np.testing.assert_array_equal(slots, [3, 0, 1, 2])
    chex.assert_trees_all_equal(state.rollouts, make_rows([6, 7, 8, 5]))

  def test_more_rows_than_slots_raise(self):
    with self.assertRaisesRegex(ValueError, '3 rows; capacity=2 allows'):
      buffer.insert(make_state(2), make_rows([1, 2, 3]), priorities=jnp.ones(3))

  @parameterized.named_parameters(
    ('dtype', {'rewards': jnp.zeros(2, jnp.int32)}, r'rollouts\.rewards .*int'),
    ('shape', {'tokens': jnp.zeros((2, 4), jnp.int32)}, r'\.tokens .*\(4,\)'),
    ('rows', {'group_id': jnp.zeros(3, jnp.int32)}, r'\.group_id has shape'),
    ('structure', {'rewards': None}, 'rollouts has the structure'),
  )
  def test_a_leaf_that_does_not_fit_raises(self, change, message):
    rows = make_rows([1, 2])._replace(**change)
    with self.assertRaisesRegex(ValueError, message):
      buffer.insert(make_state(4), rows, priorities=jnp.ones(2))

  @parameterized.parameters(
    ({'priorities': jnp.ones(3)}, r'priorities has shape \(3,\)'),
    ({'priorities': jnp.ones(2, jnp.int32)}, 'priorities has .* dtype int32'),
    ({'is_valid': jnp.ones(2)}, 'is_valid has .* dtype float32'),
    ({'keep_scores': jnp.ones(2)}, r'keep_scores has shape \(2,\)'),
  )
  def test_a_vector_that_does_not_fit_raises(self, change, message):
    vectors = {'priorities': jnp.ones(2)} | change
    with self.assertRaisesRegex(ValueError, message):
      buffer.insert(make_state(4), make_rows([1, 2]), **vectors)


class EvictTest(absltest.TestCase):
  def test_only_the_mask_changes_and_empty_slots_stay_empty(self):
    before = filled(4, 3)
    after = EVICT(before, mask_of(1, 0, 1, 1))
    np.testing.assert_array_equal(after.is_valid, [1, 0, 1, 0])
    chex.assert_trees_all_equal(
      after._replace(is_valid=before.is_valid), before
    )

  def test_a_mask_of_another_kind_raises(self):
    with self.assertRaisesRegex(ValueError, 'keep has shape'):
      buffer.evict(filled(4, 3), jnp.ones(4))


class SampleTest(parameterized.TestCase):
  def test_rows_come_whole_from_the_drawn_slots(self):
    state = EVICT(filled(8, 6), jnp.arange(8) != 2)
    drawn = SAMPLE(
      state, jax.random.key(0), jnp.ones(8), 5, draw=sampling.gumbel_top_k
    )
    self.assertEqual(sorted(drawn.slots.tolist()), [0, 1, 3, 4, 5])
    chex.assert_trees_all_equal(drawn.rollouts, make_rows(drawn.slots))
    np.testing.assert_allclose(drawn.probs, 0.2, rtol=1e-6)
    self.assertEqual(int(drawn.num_eligible), 5)

  @parameterized.product(num_rows=(0, 1, 3), draw=(IID, sampling.gumbel_top_k))
  def test_a_nearly_empty_buffer_never_gives_an_empty_slot(
    self, num_rows, draw
  ):
    # The stale weight of an empty slot is the largest.
    weights = jnp.where(jnp.arange(8) < num_rows, 1.0, 100.0)
    state = EVICT(filled(8, 5), jnp.arange(8) < num_rows)
    drawn = SAMPLE(state, jax.random.key(1), weights, 6, draw=draw)
    self.assertEqual(int(drawn.num_eligible), num_rows)
    if draw is IID:
      expected_valid = [num_rows > 0] * 6
    else:
      expected_valid = [i < num_rows for i in range(6)]
    np.testing.assert_array_equal(drawn.is_valid, expected_valid)
    is_valid = np.array(expected_valid, bool)
    self.assertTrue(np.all(np.asarray(drawn.slots)[is_valid] < num_rows))
    self.assertTrue(np.all(np.asarray(drawn.slots)[~is_valid] == 8))
    np.testing.assert_array_equal(drawn.probs > 0, is_valid)
    # Rows of invalid draws are those of the last slot, here zeros.
    self.assertTrue(np.all(np.asarray(drawn.rollouts.tokens)[~is_valid] == 0))

  @parameterized.parameters(0, 5)
  def test_a_batch_size_out_of_range_raises(self, batch_size):
    with self.assertRaisesRegex(
      ValueError, rf'batch_size={batch_size} must be in \[1, capacity=4\]'
    ):
      buffer.sample(
        make_state(4), jax.random.key(0), jnp.ones(4), batch_size, draw=IID
      )

  def test_weights_of_another_size_raise(self):
    with self.assertRaisesRegex(ValueError, r'weights has shape \(3,\)'):
      buffer.sample(make_state(4), jax.random.key(0), jnp.ones(3), 2, draw=IID)


class MarkSampledTest(absltest.TestCase):
  def test_duplicates_count_each_and_no_slot_wraps(self):
    state = filled(4, 4)
    state = MARK(state, slots_of(1, 1, 4, 0, -1), 5)
    state = MARK(state, slots_of(1), 6)
    np.testing.assert_array_equal(state.times_sampled, [1, 3, 0, 0])
    np.testing.assert_array_equal(state.last_sampled, [5, 6, -1, -1])

  def test_float_slots_raise(self):
    with self.assertRaisesRegex(ValueError, 'slots has .* dtype float32'):
      buffer.mark_sampled(filled(4, 4), vector(1, 2), jnp.int32(5))


class UpdatePrioritiesTest(parameterized.TestCase):
  @parameterized.parameters(
    (2.0, 2.0, 0),
    (0.0, 0.0, 0),
    (1e-30, 1e-30, 0),
    (1e30, 1e30, 0),
    (NAN, 0.0, 1),
    (INF, 0.0, 1),
    (-INF, 0.0, 1),
    (-1.0, 0.0, 1),
    (-0.0, 0.0, 1),
    (1e-31, 1e-30, 1),
    (1e-42, 1e-30, 1),  # Denormal: flushed to zero by XLA on CPU.
    (-1e-42, 0.0, 1),
    (3e38, 1e30, 1),
  )
  def test_each_value_is_stored_or_repaired_and_counted(
    self, value, stored, num_repaired
  ):
    priorities = np.array([5, value], np.float32)
    updated = UPDATE(filled(4, 4), slots_of(0, 2), priorities)
    np.testing.assert_array_equal(
      updated.priorities, np.array([5, 1, stored, 1], np.float32)
    )
    self.assertFalse(np.signbit(np.asarray(updated.priorities)).any())
    self.assertEqual(int(updated.num_repaired_priorities), num_repaired)
    inserted, _ = INSERT(
      make_state(2), make_rows([1, 2]), priorities=priorities
    )
    np.testing.assert_array_equal(
      inserted.priorities, np.array([5, stored], np.float32)
    )
    self.assertEqual(int(inserted.num_repaired_priorities), num_repaired)

  def test_of_duplicates_the_largest_new_value_is_stored(self):
    state = filled(4, 4)  # All of priority 1.
    for order in ([0, 1, 2, 3], [3, 2, 1, 0]):
      after = UPDATE(
        state,
        slots_of(2, 2, 2, 0)[np.array(order)],
        vector(0.25, 0.5, NAN, 0.125)[np.array(order)],
      )
      np.testing.assert_array_equal(after.priorities, [0.125, 1, 0.5, 1])

  def test_slots_outside_the_buffer_are_skipped_and_not_counted(self):
    after = UPDATE(filled(4, 4), slots_of(4, -1, 9), vector(NAN, 5, INF))
    np.testing.assert_array_equal(after.priorities, [1, 1, 1, 1])
    self.assertEqual(int(after.num_repaired_priorities), 0)

  def test_a_nan_leaves_no_trace_once_it_is_overwritten(self):
    # A sum tree that adds differences keeps the NaN at its root for ever.
    state = filled(8, 8)
    state = UPDATE(state, slots_of(3, 4), vector(NAN, INF))
    state = UPDATE(state, slots_of(3, 4), vector(1, 1))
    drawn = SAMPLE(state, jax.random.key(0), state.priorities, 8, draw=IID)
    np.testing.assert_allclose(drawn.probs, 1 / 8, rtol=1e-6)

  def test_feedback_on_skewed_priorities_never_revives_an_empty_slot(self):
    rng = np.random.default_rng(0)
    state = filled(200, 150)

    @jax.jit
    def step(state, rng_key, priorities):
      drawn = SAMPLE(state, rng_key, state.priorities, 64, draw=IID)
      # Empty slots get the largest priority of all: it must not matter.
      slots = jnp.concatenate([drawn.slots, slots_of(180)])
      state = UPDATE(state, slots, jnp.append(priorities, 1e30))
      return state, jnp.max(drawn.slots)

    for i in range(300):
      priorities = rng.lognormal(0, 3, 64).astype(np.float32)
      state, largest_slot = step(state, jax.random.key(i), priorities)
      self.assertLess(int(largest_slot), 150)

  def test_a_buffer_of_the_largest_priorities_can_be_sampled(self):
    state = filled(2000, 2000)
    state = state._replace(priorities=jnp.full(2000, buffer.MAX_PRIORITY))
    drawn = SAMPLE(state, jax.random.key(0), state.priorities, 4, draw=IID)
    np.testing.assert_allclose(drawn.probs, 1 / 2000, rtol=1e-5)

  def test_another_number_of_priorities_raises(self):
    with self.assertRaisesRegex(ValueError, r'priorities has shape \(1,\)'):
      buffer.update_priorities(filled(4, 4), slots_of(1, 2), vector(1))


class InsertionAgeTest(absltest.TestCase):
  def test_ages_are_differences_that_wrap_and_saturate(self):
    state = make_state(4)._replace(
      insert_index=vector(4, 3, 2**32 - 1, 2**31, dtype=jnp.uint32),
      num_inserted=jnp.uint32(5),
    )
    # 5 - 1 - 2^31 modulo 2^32 is 2^31 + 4, more than an int32 holds.
    np.testing.assert_array_equal(
      buffer.insertion_age(state), [0, 1, 5, 2**31 - 1]
    )


def iteration(state, rows, rng_key, step):
  """All that one iteration does to the buffer, insert first."""
  state, _ = buffer.insert(state, rows, priorities=jnp.abs(rows.advantages))
  drawn = buffer.sample(state, rng_key, state.priorities, 64, draw=IID)
  state = buffer.mark_sampled(state, drawn.slots, step)
  state = buffer.update_priorities(
    state, drawn.slots, jnp.abs(drawn.rollouts.advantages) + 1.0
  )
  return state, drawn


class TransformationTest(parameterized.TestCase):
  def test_vmap_over_seeds_equals_separate_runs(self):
    rng = np.random.default_rng(0)
    separate = []
    for seed in range(3):
      state = make_state(96)
      # Cursors that differ, so that one seed wraps where another does not.
      state = state._replace(next_slot=jnp.int32(40 * seed))
      rows = make_rows(rng.permutation(1000)[:64])
      separate.append((state, rows, jax.random.key(seed), jnp.int32(seed)))
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *separate)
    together = jax.jit(jax.vmap(iteration))(*stacked)
    alone = jax.jit(iteration)
    for seed, arguments in enumerate(separate):
      chex.assert_trees_all_equal(
        jax.tree.map(lambda leaf, s=seed: leaf[s], together),
        alone(*arguments),
      )

  def test_an_iteration_compiles_once(self):
    step = jax.jit(chex.assert_max_traces(iteration, n=1), donate_argnums=0)
    state = make_state(96)
    for i in range(5):
      ids = np.arange(64) + 64 * i
      state, _ = step(state, make_rows(ids), jax.random.key(i), jnp.int32(i))
    self.assertEqual(int(state.num_inserted), 5 * 64)
    self.assertEqual(int(jnp.sum(state.times_sampled)) > 0, True)


class MemoryTest(parameterized.TestCase):
  """No operation copies the storage. `alias_size` would not notice."""

  CAPACITY = 4096
  NUM_TOKENS = 320

  def setUp(self):
    super().setUp()
    self.state = make_state(self.CAPACITY, self.NUM_TOKENS)
    self.rows = make_rows(range(64), self.NUM_TOKENS)
    self.rng_key = jax.random.key(0)
    self.batch_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(self.rows))
    self.slots = jnp.arange(64, dtype=jnp.int32)

  def temp_bytes(self, function, *arguments) -> int:
    compiled = jax.jit(function, donate_argnums=0).lower(*arguments).compile()
    analysis = compiled.memory_analysis()
    assert analysis is not None
    return analysis.temp_size_in_bytes

  def insert(self, state, rows, **kwargs):
    return INSERT(state, rows, priorities=jnp.ones(64), **kwargs)

  def test_each_operation_needs_less_than_two_batches(self):
    keep = jnp.ones(self.CAPACITY, bool)
    scores = jnp.ones(self.CAPACITY)
    for function, arguments in [
      (self.insert, (self.rows,)),
      (lambda s, r, v: self.insert(s, r, is_valid=v), (self.rows, keep[:64])),
      (lambda s, r, k: self.insert(s, r, keep_scores=k), (self.rows, scores)),
      (buffer.evict, (keep,)),
      (buffer.mark_sampled, (self.slots, 3)),
      (buffer.update_priorities, (self.slots, scores[:64])),
      (iteration, (self.rows, self.rng_key, 3)),
    ]:
      temp_bytes = self.temp_bytes(function, self.state, *arguments)
      self.assertLess(temp_bytes, 2 * self.batch_bytes)

  def test_the_iteration_stays_in_place_under_vmap(self):
    two_seeds = jax.tree.map(
      lambda leaf: jnp.stack([leaf] * 2), (self.state, self.rows, self.rng_key)
    )
    temp_bytes = self.temp_bytes(
      jax.vmap(lambda s, r, k: iteration(s, r, k, 3)), *two_seeds
    )
    self.assertLess(temp_bytes, 2 * 2 * self.batch_bytes)

  def test_the_check_sees_a_sample_before_the_insert(self):
    def sample_first(state, rows, rng_key):
      drawn = buffer.sample(state, rng_key, state.priorities, 64, draw=IID)
      state, _ = self.insert(state, rows)
      return state, drawn

    temp_bytes = self.temp_bytes(
      sample_first, self.state, self.rows, self.rng_key
    )
    self.assertGreater(temp_bytes, 10 * self.batch_bytes)

  def test_the_check_sees_a_branch_under_vmap(self):
    def insert_by_branch(state, rows):
      return jax.lax.cond(
        state.next_slot % 64 == 0,
        lambda state: self.insert(state, rows)[0],
        lambda state: self.insert(
          state, rows, keep_scores=jnp.ones(self.CAPACITY)
        )[0],
        state,
      )

    two_seeds = jax.tree.map(
      lambda leaf: jnp.stack([leaf] * 2), (self.state, self.rows)
    )
    temp_bytes = self.temp_bytes(jax.vmap(insert_by_branch), *two_seeds)
    self.assertGreater(temp_bytes, 10 * self.batch_bytes)

  def test_donated_storage_stays_where_it_is(self):
    step = jax.jit(iteration, donate_argnums=0)
    state = self.state
    pointer = state.rollouts.tokens.unsafe_buffer_pointer()
    for i in range(3):
      state, _ = step(state, self.rows, jax.random.key(i), i)
      self.assertEqual(state.rollouts.tokens.unsafe_buffer_pointer(), pointer)


if __name__ == '__main__':
  absltest.main()
