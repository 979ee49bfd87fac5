"""Tests for `replay_rl.replay.keep`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl.replay import buffer
from replay_rl.replay import keep
from tests.replay import buffers

STEP = jnp.int32(10)


@functools.partial(jax.jit, static_argnames='keep_rule')
def insert(state, rows, is_valid, keep_rule, constants):
  return buffer.insert(
    state,
    rows,
    priorities=jnp.ones(rows.rewards.shape),
    is_valid=is_valid,
    keep_scores=keep_rule(state, STEP, **constants),
  )[0]


def insert_all(
  correct, capacity, sizes, keep_rule, is_stored=None, **constants
):
  """Inserts rows 0, 1, ... in batches; returns the rows that are kept.

  Rows that are not `is_stored` come in, too, but a filter drops them.
  """
  if is_stored is None:
    is_stored = np.ones(len(correct), bool)
  state = buffers.make_state(capacity)
  first = 0
  for size in sizes:
    ids = np.arange(first, first + size)
    rows = buffers.make_rows(ids, rewards=correct[ids])
    state = insert(state, rows, is_stored[ids], keep_rule, constants)
    first += size
  return sorted(
    buffers.ids_of(state.rollouts)[np.asarray(state.is_valid)].tolist()
  )


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
    state = buffers.filled(3, 3)
    np.testing.assert_array_equal(keep.fifo(state, STEP), [-2, -1, 0])
    self.assertEqual(keep.fifo(state, STEP).dtype, jnp.float32)

  def test_fifo_keeps_what_the_ring_keeps(self):
    kept = insert_all(np.zeros(10), 4, [3, 3, 2, 2], keep.fifo)
    self.assertEqual(kept, [6, 7, 8, 9])

  @parameterized.parameters(([1] * 10,), ([2] * 5,), ([4, 4, 2],))
  def test_positive_bias_keeps_the_rows_of_the_papers_example(self, sizes):
    # arXiv 2604.08706: N = 8, delta = 0.5, oldest t-9 to newest t, G correct.
    #   t-9 R, t-8 G, t-7 G, t-6 R, t-5 G, t-4 G, t-3 R, t-2 G, t-1 R, t R
    # keeps {t-8, t-7, t-5, t-4, t-3, t-2, t-1, t}.
    correct = np.array([0, 1, 1, 0, 1, 1, 0, 1, 0, 0])
    kept = insert_all(correct, 8, sizes, keep.positive_bias, fraction=0.5)
    self.assertEqual(kept, [1, 2, 4, 5, 6, 7, 8, 9])

  def test_positive_bias_scores_by_hand(self):
    # P = floor(0.3 * 7 + 0.5) = 2. From the newest, slot 6: ranks 0 to 6,
    # correct are ranks 1, 3, 4 and 6. The first two of them are safe, and the
    # others are as old as those of ranks 1 and 3.
    state = buffers.filled(7, 7, rewards=[1, 0, 1, 1, -1, 1, 0])
    scores = keep.positive_bias(state, STEP, fraction=0.3)
    np.testing.assert_array_equal(scores, [-3, -5, -1, 1, -2, 1, 0])
    self.assertEqual(scores.dtype, jnp.float32)

  def test_positive_bias_counts_neither_empty_slots_nor_what_they_hold(self):
    state = buffers.filled(7, 7, rewards=[1, 0, 1, 1, -1, 1, 0])
    state = buffers.with_empty(state, 5)
    scores = keep.positive_bias(state, STEP, fraction=0.3)
    # Ranks from slot 6: 0, none, 1, 2, 3, 4, 5; correct are 2, 3 and 5.
    np.testing.assert_array_equal(scores[:5], [-2, -4, 1, 1, -1])
    self.assertEqual(float(scores[6]), 0)

  @parameterized.product(fraction=(0.0, 0.3, 0.5, 1.0), size=(1, 3))
  def test_positive_bias_is_its_definition_on_any_history(self, fraction, size):
    correct = np.random.default_rng(size).random(30) < 0.3
    num_positive = int(np.floor(fraction * 8 + 0.5))
    expected = positive_bias_set(correct, 8, num_positive, size, range(30))
    sizes = [size] * (30 // size)
    kept = insert_all(correct, 8, sizes, keep.positive_bias, fraction=fraction)
    self.assertEqual(kept, expected)

  @parameterized.parameters((0.1, 0), (0.3, 1), (0.3, 2), (0.5, 3))
  def test_positive_bias_is_its_definition_where_a_filter_drops_rows(
    self, fraction, seed
  ):
    # Batches of 4, of which any number from 0 to 4 is stored; C - P is 4 or
    # more, so that no batch pushes out what the next one would keep.
    rng = np.random.default_rng(seed)
    correct, is_stored = rng.random(60) < 0.4, rng.random(60) < 0.5
    num_positive = int(np.floor(fraction * 8 + 0.5))
    kept = insert_all(
      correct, 8, [4] * 15, keep.positive_bias, is_stored, fraction=fraction
    )
    # Nothing that the definition needs is ever lost on the way.
    expected = positive_bias_set(
      correct, 8, num_positive, is_stored[-4:].sum(), np.flatnonzero(is_stored)
    )
    self.assertEqual(kept, expected)

  @parameterized.parameters(1.1, -0.1)
  def test_a_fraction_out_of_range_raises(self, fraction):
    with self.assertRaisesRegex(
      ValueError, rf'^fraction = {fraction}: must be in \[0, 1\]$'
    ):
      keep.positive_bias(buffers.filled(3, 3), STEP, fraction=fraction)

  def test_rollouts_without_rewards_raise(self):
    state = buffer.init({'tokens': jnp.zeros((1, 2))}, capacity=3)
    with self.assertRaisesRegex(
      ValueError, '^rollouts.rewards = None: must be stored for positive_bias$'
    ):
      keep.positive_bias(state, STEP, fraction=0.5)

  def test_delta_may_be_traced_for_a_sweep(self):
    state = buffers.filled(7, 7, rewards=[1, 0, 1, 1, -1, 1, 0])
    together = jax.jit(
      jax.vmap(lambda delta: keep.positive_bias(state, STEP, fraction=delta))
    )(jnp.array([0.0, 0.3]))
    np.testing.assert_array_equal(
      together, [[-6, -5, -4, -3, -2, -1, 0], [-3, -5, -1, 1, -2, 1, 0]]
    )
