"""Tests for `replay_rl.replay.collected`."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from replay_rl.replay import buffer
from replay_rl.replay import collected
from replay_rl.replay import compose
from replay_rl.replay import sampling
from replay_rl.replay import weights
from replay_rl.run import stopping
from tests.replay import buffers
from tests.replay import compose_test

STEP = jnp.int32(3)
FIFO = {
  'weight_rule': weights.oldest_unused,
  'draw': sampling.largest,
  'batch_size': 4,
}
WAIT = jax.jit(
  functools.partial(collected.collected, num_fresh=4, max_batches=2, **FIFO)
)
DRAW = jax.jit(functools.partial(compose.pure_buffer, rows_in_use=None, **FIFO))


def _generations(num_kept):
  """Yields a buffer and its fresh rows after each generation of 4 rollouts."""
  state = buffers.make_state(12)
  for generation, count in enumerate(num_kept):
    rows = buffers.make_rows(
      4 * generation + np.arange(4),
      rollout_id=4 * generation + np.arange(4),
    )
    is_valid = np.arange(4) < count
    state, slots = buffers.INSERT(
      state, rows, priorities=jnp.ones(4), is_valid=is_valid
    )
    fresh = compose_test.make_fresh(rows, slots, jnp.asarray(is_valid))
    batch = WAIT(state, fresh, jax.random.key(0), STEP)
    yield state, fresh, batch
    state = buffer.mark_sampled(state, batch.slots, STEP)


class CollectedTest(parameterized.TestCase):
  @parameterized.parameters(
    # Rows that each generation keeps, and that each update learns from.
    ([4, 4], [4, 4]),
    ([2, 2, 3, 1], [0, 4, 0, 4]),
    ([1, 2, 3, 3], [0, 0, 4, 4]),  # The surplus waits, the oldest first.
    # The oldest waiting row is two generations old.
    ([1, 0, 0, 0], [0, 0, 1, 0]),
    ([0, 1, 1, 0, 1, 1, 1], [0, 0, 0, 2, 0, 0, 3]),
    ([0, 0, 0, 0], [0, 0, 0, 0]),
  )
  def test_rows_wait_until_there_are_enough_or_for_too_long(
    self, num_kept, num_rows
  ):
    actual, seen = [], []
    for state, fresh, batch in _generations(num_kept):
      actual.append(int(batch.is_valid.sum()))
      is_valid = np.asarray(batch.is_valid)
      seen += buffers.ids_of(batch.rollouts)[is_valid].tolist()
      if actual[-1]:
        drawn = DRAW(state, fresh, jax.random.key(0), STEP)
        chex.assert_trees_all_equal(batch, drawn)
      else:
        np.testing.assert_array_equal(batch.slots, [12] * 4)
        np.testing.assert_array_equal(batch.probs, [0] * 4)
        self.assertFalse(batch.is_fresh.any())
    self.assertEqual(actual, num_rows)
    stored = [
      4 * generation + row
      for generation, count in enumerate(num_kept)
      for row in range(count)
    ]
    self.assertEqual(seen, stored[: len(seen)])

  def test_an_update_that_waits_as_long_as_it_may_does_not_end_the_run(self):
    self.assertEqual(collected.MAX_BATCHES, stopping.MAX_EMPTY_GENERATIONS - 1)
    state, fresh, _ = next(_generations([4]))
    for max_batches in (0, 10):
      with self.assertRaisesWithLiteralMatch(
        ValueError, f'max_batches = {max_batches}: must be in [1, 9]'
      ):
        collected.collected(
          *(state, fresh, jax.random.key(0), STEP),
          num_fresh=4,
          max_batches=max_batches,
          **FIFO,
        )


if __name__ == '__main__':
  absltest.main()
