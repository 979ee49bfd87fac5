"""Tests for `replay_rl.replay.compose`."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from replay_rl import base
from replay_rl.replay import buffer
from replay_rl.replay import compose
from replay_rl.replay import sampling
from replay_rl.replay import weights
from tests.replay import buffers

IID = functools.partial(sampling.blocked_inverse_cdf, stratified=False)
STRATIFIED = functools.partial(sampling.blocked_inverse_cdf, stratified=True)
DRAWS = (IID, STRATIFIED, sampling.gumbel_top_k)
ADVANTAGE = functools.partial(weights.advantage_magnitude, exponent=0.5)
STEP = jnp.int32(10)


def make_fresh(rows, slots, is_valid) -> base.Batch:
  """The fresh rows as an iteration passes them on."""
  return base.Batch(
    rollouts=rows,
    slots=slots,
    is_valid=is_valid,
    is_fresh=is_valid,
    probs=jnp.zeros(slots.shape),
    num_eligible=jnp.sum(is_valid, dtype=jnp.int32),
  )


def insert(state, ids, is_valid):
  """Inserts rows as an iteration does; returns the buffer and the rows."""
  rows, is_valid = buffers.make_rows(ids), np.asarray(is_valid, bool)
  state, slots = buffers.INSERT(
    state, rows, priorities=np.ones(len(ids), np.float32), is_valid=is_valid
  )
  return state, make_fresh(rows, slots, is_valid)


def make_state(capacity, num_old, is_valid):
  """Rows 0 to `num_old - 1` are old, rows 100, 101, ... are fresh."""
  state = buffers.make_state(capacity)
  # Few shapes, because each is compiled.
  num_rows = min(8, capacity) if num_old <= 8 else num_old
  ids = np.arange(num_rows)
  state, _ = insert(state, ids, ids < num_old)
  return insert(state, 100 + np.arange(len(is_valid)), is_valid)


@functools.lru_cache
def anchored(
  draw, replay_fraction, weight_rule=weights.uniform, warmup_steps=0
):
  return jax.jit(
    functools.partial(
      compose.fresh_anchored,
      weight_rule=weight_rule,
      draw=draw,
      replay_fraction=replay_fraction,
      warmup_steps=warmup_steps,
    )
  )


class FreshOnlyTest(absltest.TestCase):
  def test_the_fresh_rows_come_alone_and_masked(self):
    state, fresh = make_state(8, 3, [1, 0, 1])
    batch = compose.fresh_only(state, fresh, jax.random.key(0), STEP)
    chex.assert_trees_all_equal(
      batch.rollouts, buffers.make_rows([100, 101, 102])
    )
    np.testing.assert_array_equal(batch.slots, [3, 8, 4])
    np.testing.assert_array_equal(batch.is_valid, [1, 0, 1])
    np.testing.assert_array_equal(batch.is_fresh, [1, 0, 1])
    np.testing.assert_array_equal(batch.probs, [0, 0, 0])
    self.assertEqual(int(batch.num_eligible), 2)

  def test_a_row_masked_after_its_insert_has_no_slot(self):
    state, fresh = make_state(8, 3, [1, 1])
    fresh = fresh._replace(is_valid=jnp.array([True, False]))
    batch = compose.fresh_only(state, fresh, jax.random.key(0), STEP)
    np.testing.assert_array_equal(batch.slots, [3, 8])
    np.testing.assert_array_equal(batch.is_fresh, [1, 0])
    self.assertEqual(int(batch.num_eligible), 1)


class FreshAnchoredTest(parameterized.TestCase):
  @parameterized.parameters(*DRAWS)
  def test_older_rows_follow_the_fresh_ones(self, draw):
    # Half of 4 fresh rows is 2, of the 3 valid ones 1.5, rounded up to 2.
    state, fresh = make_state(16, 8, [1, 0, 1, 1])
    seen = set()
    for seed in range(40):
      batch = anchored(draw, 0.5)(state, fresh, jax.random.key(seed), STEP)
      ids = buffers.ids_of(batch.rollouts)
      chex.assert_trees_all_equal(batch.rollouts, buffers.make_rows(ids))
      np.testing.assert_array_equal(ids[:4], [100, 101, 102, 103])
      np.testing.assert_array_equal(batch.is_valid, [1, 0, 1, 1, 1, 1])
      np.testing.assert_array_equal(batch.is_fresh, [1, 0, 1, 1, 0, 0])
      np.testing.assert_array_equal(batch.slots[:4], [8, 16, 9, 10])
      np.testing.assert_array_equal(batch.slots[4:], ids[4:])
      expected = [0] * 4 + [1 / 8] * 2
      np.testing.assert_allclose(batch.probs, expected, rtol=1e-6)
      self.assertEqual(int(batch.num_eligible), 8)
      seen |= set(ids[4:].tolist())
    self.assertEqual(seen, set(range(8)))

  @parameterized.parameters(
    # The number for each n is r n, rounded half up; Python would round 0.5 and
    # 2.5 down.
    (0.5, [0, 1, 1, 2, 2, 3]),
    (0.35, [0, 0, 1, 1, 1, 2]),
    (2.0, [0, 2, 4, 6, 8, 10]),
  )
  def test_the_number_of_older_rows_is_rounded_half_up(
    self, replay_fraction, expected
  ):
    for num_valid, num_replayed in enumerate(expected):
      state, fresh = make_state(32, 16, np.arange(5) < num_valid)
      batch = anchored(sampling.gumbel_top_k, replay_fraction)(
        state, fresh, jax.random.key(0), STEP
      )
      self.assertEqual(batch.slots.shape, (5 + expected[-1],))
      expected_valid = np.arange(expected[-1]) < num_replayed
      np.testing.assert_array_equal(batch.is_valid[5:], expected_valid)
      np.testing.assert_array_equal(batch.slots[5:] < 32, expected_valid)
      np.testing.assert_array_equal(batch.probs[5:] > 0, expected_valid)

  @parameterized.product(draw=DRAWS, num_old=(0, 1, 3))
  def test_only_older_rows_are_replayed_however_few(self, draw, num_old):
    state, fresh = make_state(16, num_old, [1] * 4)
    batch = anchored(draw, 1.0)(state, fresh, jax.random.key(0), STEP)
    repeats = draw is not sampling.gumbel_top_k
    num_valid = 4 * (num_old > 0) if repeats else num_old
    np.testing.assert_array_equal(batch.is_valid[4:], np.arange(4) < num_valid)
    slots = np.asarray(batch.slots[4:])
    self.assertTrue(np.all(slots[:num_valid] < num_old))
    self.assertTrue(np.all(slots[num_valid:] == 16))
    self.assertEqual(int(batch.num_eligible), num_old)

  def test_a_row_masked_after_its_insert_is_not_replayed(self):
    state, fresh = make_state(8, 1, [1, 1, 1])
    fresh = fresh._replace(is_valid=jnp.array([True, True, False]))
    batch = anchored(IID, 2.0)(state, fresh, jax.random.key(0), STEP)
    np.testing.assert_array_equal(batch.slots, [1, 2, 8, 0, 0, 0, 0, 8, 8])

  def test_warmup_ends_at_its_step(self):
    state, fresh = make_state(16, 8, [1, 1])
    arguments = (state, fresh, jax.random.key(0), STEP)
    traced = jax.jit(
      lambda warmup_steps: anchored(IID, 1.0).__wrapped__(
        *arguments, warmup_steps=warmup_steps
      )
    )
    for warmup_steps, expected in [(9, [1, 1]), (10, [1, 1]), (11, [0, 0])]:
      batch = traced(warmup_steps)
      np.testing.assert_array_equal(batch.is_valid, [1, 1, *expected])
      np.testing.assert_array_equal(batch.slots[2:] < 16, expected)
    constant = anchored(IID, 1.0, warmup_steps=11)(*arguments)
    chex.assert_trees_all_equal(constant, batch)

  @parameterized.parameters(0.0, 0.2)
  def test_no_older_rows_leaves_the_fresh_ones(self, replay_fraction):
    state, fresh = make_state(8, 3, [1, 1])
    arguments = (state, fresh, jax.random.key(0), STEP)
    chex.assert_trees_all_equal(
      anchored(IID, replay_fraction)(*arguments),
      compose.fresh_only(*arguments),
    )

  def test_insert_first_at_capacity_c_is_draw_first_at_c_minus_f(self):
    # The list of the latest C - F rows stands for the order of the paper.
    capacity, num_fresh, num_steps = 12, 4, 6
    state = buffers.make_state(capacity)
    history = []
    for step in range(num_steps):
      stored = history[-(capacity - num_fresh) :]
      ids = list(range(step * num_fresh, (step + 1) * num_fresh))
      state, fresh = insert(state, ids, [1] * num_fresh)
      batch = anchored(sampling.gumbel_top_k, 2.0)(
        state, fresh, jax.random.key(step), jnp.int32(step)
      )
      replayed = buffers.ids_of(batch.rollouts)[num_fresh:]
      is_valid = np.asarray(batch.is_valid)[num_fresh:]
      # There are as many draws as stored rows, so all of them are drawn.
      self.assertEqual(sorted(replayed[is_valid].tolist()), stored)
      history += ids

  @parameterized.parameters(STRATIFIED, sampling.gumbel_top_k)
  def test_a_cut_draw_still_follows_the_weights(self, draw):
    # Only the first of four draws is valid, since one of four fresh rows is.
    state, fresh = make_state(520, 512, [0, 0, 1, 0])
    num_keys = 5_000
    roots = np.sqrt(np.arange(512) + 0.5 + weights.ADVANTAGE_EPSILON)
    expected = roots / np.sum(roots)

    @jax.jit
    def first_slots(rng_keys):
      return jax.vmap(
        lambda rng_key: anchored(draw, 1.0, ADVANTAGE)(
          state, fresh, rng_key, STEP
        )
      )(rng_keys)

    batch = first_slots(jax.random.split(jax.random.key(0), num_keys))
    np.testing.assert_array_equal(
      np.asarray(batch.is_valid[:, 4:]),
      [[True, False, False, False]] * num_keys,
    )
    counts = np.bincount(np.asarray(batch.slots[:, 4]), minlength=512)
    counts, expected = counts.reshape(32, 16), expected.reshape(32, 16)
    expected = num_keys * expected.sum(axis=1)
    chi2 = np.sum((counts.sum(axis=1) - expected) ** 2 / expected)
    self.assertLess(chi2, 31 + 4 * np.sqrt(2 * 31))

  @parameterized.parameters(-0.5, float('nan'), float('inf'))
  def test_a_fraction_out_of_range_raises(self, replay_fraction):
    state, fresh = make_state(8, 3, [1, 1])
    with self.assertRaisesRegex(
      ValueError,
      rf'^replay_fraction = {replay_fraction}: must be in \[0, inf\)$',
    ):
      anchored(IID, replay_fraction)(state, fresh, jax.random.key(0), STEP)

  def test_more_older_rows_than_slots_raise(self):
    state, fresh = make_state(8, 3, [1, 1])
    with self.assertRaisesRegex(
      ValueError, 'replay_fraction = 4.5: must .* capacity = 8 .* gives 9 for 2'
    ):
      anchored(IID, 4.5)(state, fresh, jax.random.key(0), STEP)


def iteration(state, rows, rng_key, step, *, compose_fn):
  """The buffer's part of an iteration."""
  state, slots = buffer.insert(state, rows, priorities=jnp.abs(rows.advantages))
  fresh = make_fresh(rows, slots, jnp.ones(slots.shape, bool))
  batch = compose_fn(state, fresh, rng_key, step)
  state = buffer.mark_sampled(state, batch.slots, step)
  state = buffer.update_priorities(
    state, batch.slots, jnp.abs(batch.rollouts.advantages)
  )
  return state, batch


COMPOSERS = {
  'pure_buffer': functools.partial(
    compose.pure_buffer,
    weight_rule=ADVANTAGE,
    draw=IID,
    batch_size=64,
    rows_in_use=None,
  ),
  'fresh_anchored': functools.partial(
    compose.fresh_anchored,
    weight_rule=weights.product(
      ADVANTAGE, functools.partial(weights.max_age, limit=10)
    ),
    draw=sampling.gumbel_top_k,
    replay_fraction=0.5,
    warmup_steps=0,
  ),
}


class IterationTest(parameterized.TestCase):
  CAPACITY = 4096

  def temporary_batches(self, function, num_seeds=None) -> float:
    """The memory that a function needs with its buffer donated, in batches.

    The size of what is aliased would not show a copy.
    """
    rows = buffers.make_rows(range(64), num_tokens=320)
    arguments = jax.eval_shape(
      lambda: (
        buffer.init(rows, capacity=self.CAPACITY),
        rows,
        jax.random.key(0),
        STEP,
      )
    )
    if num_seeds is not None:
      arguments = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((num_seeds, *leaf.shape), leaf.dtype),
        arguments,
      )
    compiled = jax.jit(function, donate_argnums=0).lower(*arguments).compile()
    analysis = compiled.memory_analysis()
    assert analysis is not None
    batch_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(rows))
    return analysis.temp_size_in_bytes / batch_bytes

  @parameterized.parameters(*COMPOSERS)
  def test_a_donated_iteration_does_not_copy_the_storage(self, name):
    run = functools.partial(iteration, compose_fn=COMPOSERS[name])
    self.assertLess(self.temporary_batches(run), 2)
    self.assertLess(self.temporary_batches(jax.vmap(run), num_seeds=2), 4)

  def test_the_check_sees_a_batch_drawn_before_the_insert(self):
    def draw_first(state, rows, rng_key, step):
      del step
      drawn = buffer.sample(state, rng_key, state.priorities, 64, draw=IID)
      state, _ = buffer.insert(state, rows, priorities=rows.advantages)
      return state, drawn

    self.assertGreater(self.temporary_batches(draw_first), 10)

  def test_the_check_sees_a_branch_under_vmap(self):
    def insert_by_branch(state, rows, rng_key, step):
      del rng_key

      def insert(state, keep_scores=None):
        return buffer.insert(
          state, rows, priorities=rows.advantages, keep_scores=keep_scores
        )[0]

      return jax.lax.cond(
        step % 2 == 0,
        insert,
        lambda state: insert(state, jnp.ones(self.CAPACITY)),
        state,
      )

    self.assertGreater(
      self.temporary_batches(jax.vmap(insert_by_branch), num_seeds=2), 10
    )

  @parameterized.parameters(*COMPOSERS)
  def test_vmap_over_seeds_equals_separate_runs_and_compiles_once(self, name):
    def one_seed(state, rows, rng_key, step):
      return iteration(state, rows, rng_key, step, compose_fn=COMPOSERS[name])

    chex.clear_trace_counter()
    run = jax.jit(chex.assert_max_traces(one_seed, n=1))
    separate = []
    for seed in range(3):
      state, _ = make_state(96, 8, [1])
      # The cursors differ, so that one seed wraps where another does not.
      state = state._replace(next_slot=jnp.int32(9 + 40 * seed))
      rows = buffers.make_rows(200 + np.arange(64))
      separate.append((state, rows, jax.random.key(seed), jnp.int32(seed)))
    alone = [run(*arguments) for arguments in separate]
    stack = jax.jit(
      lambda trees: jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)
    )
    together = jax.jit(jax.vmap(one_seed))(*stack(separate))
    together, alone = jax.device_get((together, alone))
    for seed in range(3):
      chex.assert_trees_all_equal(
        jax.tree.map(lambda leaf, s=seed: leaf[s], together), alone[seed]
      )
