"""The buffer inside larger programs: no operation copies the storage."""

import functools

import jax
import jax.numpy as jnp
from absl.testing import parameterized

from replay_rl.replay import buffer
from replay_rl.replay import sampling
from tests.replay import buffers

IID = functools.partial(sampling.blocked_inverse_cdf, stratified=False)


def iteration(state, rows, rng_key, step):
  """All that one iteration does to the buffer, insert first."""
  state, _ = buffer.insert(state, rows, priorities=jnp.abs(rows.advantages))
  drawn = buffer.sample(state, rng_key, state.priorities, 64, draw=IID)
  state = buffer.mark_sampled(state, drawn.slots, step)
  state = buffer.update_priorities(
    state, drawn.slots, jnp.abs(drawn.rollouts.advantages) + 1.0
  )
  return state, drawn


class MemoryTest(parameterized.TestCase):
  """No operation copies the storage. `alias_size` would not notice."""

  CAPACITY = 4096
  NUM_TOKENS = 320

  def setUp(self):
    super().setUp()
    self.state = buffers.make_state(self.CAPACITY, self.NUM_TOKENS)
    self.rows = buffers.make_rows(range(64), self.NUM_TOKENS)
    self.rng_key = jax.random.key(0)
    self.batch_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(self.rows))
    self.slots = jnp.arange(64, dtype=jnp.int32)

  def temp_bytes(self, function, *arguments) -> int:
    compiled = jax.jit(function, donate_argnums=0).lower(*arguments).compile()
    analysis = compiled.memory_analysis()
    assert analysis is not None
    return analysis.temp_size_in_bytes

  def insert(self, state, rows, **kwargs):
    return buffers.INSERT(state, rows, priorities=jnp.ones(64), **kwargs)

  def test_each_operation_needs_less_than_two_batches(self):
    is_valid = jnp.ones(64, bool)
    scores = jnp.ones(self.CAPACITY)
    for function, arguments in [
      (self.insert, (self.rows,)),
      (lambda s, r, v: self.insert(s, r, is_valid=v), (self.rows, is_valid)),
      (lambda s, r, k: self.insert(s, r, keep_scores=k), (self.rows, scores)),
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
