"""Random operations on a buffer, beside a slow and obvious twin."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl import base
from replay_rl.replay import buffer
from tests.replay import buffers

MARK = jax.jit(buffer.mark_sampled)
UPDATE = jax.jit(buffer.update_priorities)
AGE = jax.jit(buffer.insertion_age)
NAN, INF = float('nan'), float('inf')


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
    state = jax.device_get(state)
    expected_valid = [row is not None for row in self.slots]
    np.testing.assert_array_equal(state.is_valid, expected_valid)
    held = [c for c, row in enumerate(self.slots) if row is not None]
    rows = [row for row in self.slots if row is not None]
    chex.assert_trees_all_equal(
      jax.tree.map(lambda leaf: leaf[np.array(held, int)], state.rollouts),
      buffers.make_rows(np.array([row['id'] for row in rows], int)),
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
    ages_C = np.asarray(AGE(state))
    np.testing.assert_array_equal(ages_C[held], age)
    assert int(state.num_inserted) == self.num_inserted % 2**32
    assert int(state.next_slot) == self.next_slot
    assert int(state.num_repaired_priorities) == self.num_repaired
    assert int(buffer.num_valid(state)) == len(held)


class TwinTest(parameterized.TestCase):
  """Equivalence with a list on random operations, past the counters' wraps."""

  @parameterized.parameters((0, 0), (2**31 - 60, 1), (2**32 - 60, 2))
  def test_random_operations_give_the_same_buffer(self, num_inserted, seed):
    capacity = 7  # Not a multiple of the batch.
    rng = np.random.default_rng(seed)
    twin = Twin(capacity, num_inserted)
    state = buffers.make_state(capacity)._replace(
      num_inserted=jnp.uint32(num_inserted)
    )
    for step in range(60):
      kind = rng.integers(5)
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
        state, written = buffers.INSERT(
          state,
          buffers.make_rows(batch),
          priorities=priorities,
          is_valid=is_valid,
          keep_scores=scores,
        )
        np.testing.assert_array_equal(written, expected)
      elif kind == 3:
        twin.mark_sampled(slots, step)
        state = MARK(state, slots.astype(np.int32), step)
      else:
        twin.update_priorities(slots, priorities)
        state = UPDATE(state, slots.astype(np.int32), priorities)
      twin.check(state)
