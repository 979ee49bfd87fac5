"""Tests for `replay_rl.replay.buffer`, one function at a time."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from replay_rl.replay import buffer
from replay_rl.replay import sampling
from tests.replay import buffers

SAMPLE = jax.jit(buffer.sample, static_argnums=3, static_argnames='draw')
UPDATE = jax.jit(buffer.update_priorities)
IID = functools.partial(sampling.blocked_inverse_cdf, stratified=False)
NAN, INF = float('nan'), float('inf')


def vector(*values, dtype=jnp.float32):
  return jnp.asarray(values, dtype)


slots_of = functools.partial(vector, dtype=jnp.int32)
mask_of = functools.partial(vector, dtype=bool)


class InitTest(parameterized.TestCase):
  def test_a_new_buffer_is_empty_and_zero(self):
    state = buffers.make_state(4)
    self.assertEqual(int(buffer.num_valid(state)), 0)
    chex.assert_trees_all_equal(
      state.rollouts, jax.tree.map(jnp.zeros_like, buffers.make_rows(range(4)))
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
    with self.assertRaisesRegex(ValueError, rf'capacity = {capacity}: must be'):
      # Shapes only: a wrong bound must not allocate.
      jax.eval_shape(lambda: buffers.make_state(capacity))

  def test_leaves_without_a_common_leading_axis_raise(self):
    with self.assertRaisesRegex(ValueError, r"rollouts\['b'\] = float32\[\]"):
      buffer.init({'a': jnp.zeros(2), 'b': jnp.zeros([])}, capacity=2)
    with self.assertRaisesRegex(ValueError, r"rollouts\['a'\] = float32\[\]"):
      buffer.init({'a': jnp.zeros([]), 'b': jnp.zeros([])}, capacity=2)
    with self.assertRaisesRegex(ValueError, 'rollouts = {}: must have at'):
      buffer.init({}, capacity=2)


class InsertTest(parameterized.TestCase):
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
    state = buffers.make_state(4)._replace(
      is_valid=mask_of(*is_valid),
      insert_index=vector(0, 1, 2**32 - 2, 2**32 - 1, dtype=jnp.uint32),
      num_inserted=jnp.uint32(2),
      next_slot=jnp.int32(3),
    )
    after, slots = buffers.INSERT(
      state,
      buffers.make_rows([5, 6, 7]),
      priorities=jnp.ones(3),
      keep_scores=vector(*scores),
    )
    np.testing.assert_array_equal(slots, expected)
    np.testing.assert_array_equal(after.rollouts.group_id[slots], [6, 7, 8])
    np.testing.assert_array_equal(after.insert_index[slots], [2, 3, 4])
    self.assertEqual(int(after.next_slot), 3)

  def test_as_many_rows_as_slots_fill_the_buffer_from_any_cursor(self):
    state, slots = buffers.INSERT(
      buffers.filled(4, 3),
      buffers.make_rows([5, 6, 7, 8]),
      priorities=jnp.ones(4),
    )
    np.testing.assert_array_equal(slots, [3, 0, 1, 2])
    chex.assert_trees_all_equal(state.rollouts, buffers.make_rows([6, 7, 8, 5]))

  def test_more_rows_than_slots_raise(self):
    with self.assertRaisesRegex(
      ValueError, '= 3 rows: must be at most capacity'
    ):
      buffer.insert(
        buffers.make_state(2),
        buffers.make_rows([1, 2, 3]),
        priorities=jnp.ones(3),
      )

  @parameterized.named_parameters(
    (
      'dtype',
      {'rewards': jnp.zeros(2, jnp.int32)},
      r'rollouts\.rewards = int32\[2\]: must have the dtype float32',
    ),
    (
      'shape',
      {'tokens': jnp.zeros((2, 4), jnp.int32)},
      r'\.tokens = int32\[2, 4\]: must .* rows of shape \[3\]',
    ),
    (
      'rows',
      {'group_id': jnp.zeros(3, jnp.int32)},
      r'\.group_id = int32\[3\]: must share',
    ),
    ('structure', {'rewards': None}, 'must have the structure'),
  )
  def test_a_leaf_that_does_not_fit_raises(self, change, message):
    rows = buffers.make_rows([1, 2])._replace(**change)
    with self.assertRaisesRegex(ValueError, message):
      buffer.insert(buffers.make_state(4), rows, priorities=jnp.ones(2))

  @parameterized.parameters(
    ({'priorities': jnp.ones(3)}, r'priorities = float32\[3\]: must be'),
    ({'priorities': jnp.ones(2, jnp.int32)}, r'must be float32\[2\]'),
    ({'is_valid': jnp.ones(2)}, 'is_valid = .* must be bool'),
    ({'keep_scores': jnp.ones(2)}, r'keep_scores = float32\[2\]: must'),
  )
  def test_a_vector_that_does_not_fit_raises(self, change, message):
    vectors = {'priorities': jnp.ones(2)} | change
    with self.assertRaisesRegex(ValueError, message):
      buffer.insert(buffers.make_state(4), buffers.make_rows([1, 2]), **vectors)


class SampleTest(parameterized.TestCase):
  def test_rows_come_whole_from_the_drawn_slots(self):
    state = buffers.with_empty(buffers.filled(8, 6), 2)
    drawn = SAMPLE(
      state, jax.random.key(0), jnp.ones(8), 5, draw=sampling.gumbel_top_k
    )
    self.assertEqual(sorted(drawn.slots.tolist()), [0, 1, 3, 4, 5])
    chex.assert_trees_all_equal(drawn.rollouts, buffers.make_rows(drawn.slots))
    np.testing.assert_allclose(drawn.probs, 0.2, rtol=1e-6)
    self.assertEqual(int(drawn.num_eligible), 5)
    np.testing.assert_array_equal(drawn.is_fresh, [False] * 5)

  @parameterized.product(num_rows=(0, 1, 3), draw=(IID, sampling.gumbel_top_k))
  def test_a_nearly_empty_buffer_never_gives_an_empty_slot(
    self, num_rows, draw
  ):
    # The stale weight of an empty slot is the largest.
    weights = jnp.where(jnp.arange(8) < num_rows, 1.0, 100.0)
    state = buffers.with_empty(buffers.filled(8, 5), *range(num_rows, 8))
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
      ValueError, rf'batch_size = {batch_size}: must be in \[1, 4\]'
    ):
      buffer.sample(
        buffers.make_state(4),
        jax.random.key(0),
        jnp.ones(4),
        batch_size,
        draw=IID,
      )

  def test_weights_of_another_size_raise(self):
    with self.assertRaisesRegex(ValueError, r'weights = float32\[3\]: must be'):
      buffer.sample(
        buffers.make_state(4), jax.random.key(0), jnp.ones(3), 2, draw=IID
      )


class MarkSampledTest(absltest.TestCase):
  def test_float_slots_raise(self):
    with self.assertRaisesRegex(ValueError, r'slots = .* must be int32\[2\]'):
      buffer.mark_sampled(buffers.filled(4, 4), vector(1, 2), jnp.int32(5))


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
    updated = UPDATE(buffers.filled(4, 4), slots_of(0, 2), priorities)
    np.testing.assert_array_equal(
      updated.priorities, np.array([5, 1, stored, 1], np.float32)
    )
    self.assertFalse(np.signbit(np.asarray(updated.priorities)).any())
    self.assertEqual(int(updated.num_repaired_priorities), num_repaired)
    inserted, _ = buffers.INSERT(
      buffers.make_state(2), buffers.make_rows([1, 2]), priorities=priorities
    )
    np.testing.assert_array_equal(
      inserted.priorities, np.array([5, stored], np.float32)
    )
    self.assertEqual(int(inserted.num_repaired_priorities), num_repaired)

  def test_a_nan_leaves_no_trace_once_it_is_overwritten(self):
    # A sum tree that adds differences keeps the NaN at its root for ever.
    state = buffers.filled(8, 8)
    state = UPDATE(state, slots_of(3, 4), vector(NAN, INF))
    state = UPDATE(state, slots_of(3, 4), vector(1, 1))
    drawn = SAMPLE(state, jax.random.key(0), state.priorities, 8, draw=IID)
    np.testing.assert_allclose(drawn.probs, 1 / 8, rtol=1e-6)

  def test_feedback_on_skewed_priorities_never_revives_an_empty_slot(self):
    rng = np.random.default_rng(0)
    state = buffers.filled(200, 150)

    @jax.jit
    def step(state, rng_key, priorities):
      drawn = SAMPLE(state, rng_key, state.priorities, 64, draw=IID)
      # Empty slots get the largest priority of all: it must not matter.
      slots = jnp.concatenate([drawn.slots, slots_of(180)])
      state = UPDATE(state, slots, jnp.append(priorities, 1e30))
      return state, jnp.max(drawn.slots)

    for i in range(100):
      priorities = rng.lognormal(0, 3, 64).astype(np.float32)
      state, largest_slot = step(state, jax.random.key(i), priorities)
      self.assertLess(int(largest_slot), 150)

  def test_a_buffer_of_the_largest_priorities_can_be_sampled(self):
    state = buffers.filled(2000, 2000)
    state = state._replace(priorities=jnp.full(2000, buffer.MAX_PRIORITY))
    drawn = SAMPLE(state, jax.random.key(0), state.priorities, 4, draw=IID)
    np.testing.assert_allclose(drawn.probs, 1 / 2000, rtol=1e-5)

  def test_another_number_of_priorities_raises(self):
    with self.assertRaisesRegex(ValueError, r'priorities = float32\[1\]: must'):
      buffer.update_priorities(buffers.filled(4, 4), slots_of(1, 2), vector(1))


class FieldTest(absltest.TestCase):
  def test_a_field_that_is_stored_is_returned(self):
    state = buffers.filled(4, 4)
    self.assertIs(buffer.field(state, 'rewards', 'x'), state.rollouts.rewards)

  def test_a_field_that_is_none_raises(self):
    with self.assertRaisesRegex(
      ValueError, '^rollouts.token_versions = None: must be stored for my_rule$'
    ):
      buffer.field(buffers.filled(4, 4), 'token_versions', 'my_rule')


class InsertionAgeTest(absltest.TestCase):
  def test_ages_are_differences_that_wrap_and_saturate(self):
    state = buffers.make_state(4)._replace(
      insert_index=vector(4, 3, 2**32 - 1, 2**31, dtype=jnp.uint32),
      num_inserted=jnp.uint32(5),
    )
    # 5 - 1 - 2^31 modulo 2^32 is 2^31 + 4, more than an int32 holds.
    np.testing.assert_array_equal(
      buffer.insertion_age(state), [0, 1, 5, 2**31 - 1]
    )
