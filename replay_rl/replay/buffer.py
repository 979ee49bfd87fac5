"""A replay buffer of rollouts: what is stored, and how it is written and read.

Pure functions on `base.BufferState`; the pytree of rollouts may be any. The
caller decides what to keep and what to sample, see `keep`, `weights` and
`sampling`. Donate the state to every function that returns one, and inside one
jit insert before sampling: a read of rows that are overwritten later in the
same program makes XLA copy the whole buffer. On a mesh the rows are split along
the slots, see `storage`.

A rollout gets its priority at the insert and keeps it until the next
`update_priorities` of its slot. No function here reads priorities; the weight
rule `weights.proportional` does.
"""

import jax
import jax.numpy as jnp

from replay_rl import base
from replay_rl.replay import prompt_table
from replay_rl.replay import storage

MIN_PRIORITY = 1e-30  # Smaller floats are flushed to zero by some backends.
MAX_PRIORITY = 1e30
MAX_CAPACITY = 2**30  # Twice a slot must fit an int32.


def init(
  rollouts: base.PyTree, *, capacity: int, num_prompts: int | None = None
) -> base.BufferState:
  """Returns an empty buffer, filled with zeros.

  Args:
    rollouts: arrays or `jax.ShapeDtypeStruct`s with a leading axis of any size;
      they set the shape and dtype of a row.
    capacity: C, the number of slots.
    num_prompts: N, the entries of the table of prompts; None for no table.

  Raises:
    ValueError: if a size is out of range or a leaf has no leading axis.
  """
  if not 1 <= capacity <= MAX_CAPACITY:
    raise ValueError(f'capacity = {capacity}: must be in [1, {MAX_CAPACITY}]')
  _num_rows(rollouts)
  return base.BufferState(
    rollouts=jax.tree.map(
      lambda leaf: jnp.zeros((capacity, *leaf.shape[1:]), leaf.dtype), rollouts
    ),
    is_valid=jnp.zeros(capacity, bool),
    insert_index=jnp.zeros(capacity, jnp.uint32),
    times_sampled=jnp.zeros(capacity, jnp.int32),
    last_sampled=jnp.full(capacity, -1, jnp.int32),
    priorities=jnp.zeros(capacity, jnp.float32),
    next_slot=jnp.zeros([], jnp.int32),
    num_inserted=jnp.zeros([], jnp.uint32),
    num_repaired_priorities=jnp.zeros([], jnp.uint32),
    num_batches=jnp.zeros([], jnp.uint32),
    prompts=None if num_prompts is None else prompt_table.init(num_prompts),
  )


def insert(
  state: base.BufferState,
  rollouts: base.PyTree,
  *,
  priorities: base.Array,
  is_valid: base.Array | None = None,
  keep_scores: base.Array | None = None,
) -> tuple[base.BufferState, base.Array]:
  """Stores rollouts, in order, over the empty or least wanted slots.

  Args:
    state: the buffer. Donate it: the write is then in place, O(B).
    rollouts: `[B, ...]`, same leaves as the storage, B at most C.
    priorities: `[B]` float32, stored with the rows; repaired as by
      `update_priorities`.
    is_valid: `[B]` bool, rows to store; None stores all.
    keep_scores: `[C]` float. None writes a ring: the slots from `next_slot` on,
      so the oldest go first. With scores, the insert fills empty slots first,
      in slot order, and then overwrites the lowest scores. Of equal scores the
      oldest goes first, and NaN counts as -inf. Scores cost a sort,
      O(C log C), and leave `next_slot` as it is.

  Returns:
    The buffer, and the slot of each row, `[B]` int32; C where it is not stored.

  Raises:
    ValueError: if there are more rows than slots, or a leaf does not match.
  """
  capacity = _capacity(state)
  batch_size = _check_rows(state.rollouts, rollouts)
  if batch_size > capacity:
    raise ValueError(
      f'rollouts = {batch_size} rows: must be at most capacity = {capacity}'
    )
  if is_valid is None:
    is_valid = jnp.ones(batch_size, bool)
  _check_vector('priorities', priorities, batch_size, jnp.float32)
  _check_vector('is_valid', is_valid, batch_size, jnp.bool_)
  is_valid_B = storage.whole(is_valid)

  # One scatter for every case. On CPU it is faster than a dynamic slice update;
  # a lax.cond between the two copies the whole buffer under vmap.
  rank_B = jnp.cumsum(is_valid_B, dtype=jnp.int32) - 1
  if keep_scores is None:
    slots_B = (state.next_slot + rank_B) % capacity
  else:
    slots_B = _overwrite_order(state, keep_scores)[rank_B]
  slots_B = jnp.where(is_valid_B, slots_B, capacity)  # A rank may be -1.
  priorities_B, is_repaired_B = _repair(storage.whole(priorities))
  num_stored = jnp.sum(is_valid_B, dtype=jnp.int32)

  def put(old_C, new_B):
    return old_C.at[slots_B].set(new_B, mode='drop')

  next_slot = state.next_slot
  if keep_scores is None:
    next_slot = (next_slot + num_stored) % capacity
  state = base.BufferState(
    rollouts=storage.write_rows(state.rollouts, slots_B, rollouts),
    is_valid=put(state.is_valid, True),
    insert_index=put(
      state.insert_index, state.num_inserted + rank_B.astype(jnp.uint32)
    ),
    times_sampled=put(state.times_sampled, 0),
    last_sampled=put(state.last_sampled, -1),
    priorities=put(state.priorities, priorities_B),
    next_slot=next_slot,
    num_inserted=state.num_inserted + num_stored.astype(jnp.uint32),
    num_repaired_priorities=state.num_repaired_priorities
    + jnp.sum(is_repaired_B & is_valid_B, dtype=jnp.uint32),
    num_batches=state.num_batches + jnp.uint32(1),
    prompts=state.prompts,
  )
  return state, slots_B


def sample(
  state: base.BufferState,
  rng_key: base.Array,
  weights: base.Array,
  batch_size: int,
  *,
  draw: base.DrawFn,
) -> base.Batch:
  """Draws stored rollouts by weight and counts no use, see `mark_sampled`.

  Args:
    state, rng_key, weights, batch_size, draw: see `draw_slots`.

  Returns:
    `base.Batch` of B rows, see `read`.

  Raises:
    ValueError: if `batch_size` is not in [1, C].
  """
  return read(state, draw_slots(state, rng_key, weights, batch_size, draw=draw))


def draw_slots(
  state: base.BufferState,
  rng_key: base.Array,
  weights: base.Array,
  batch_size: int,
  *,
  draw: base.DrawFn,
) -> base.Draw:
  """Draws slots that hold a rollout by weight.

  Args:
    state: the buffer.
    rng_key: random key, consumed.
    weights: `[C]` float32, not necessarily normalized. Empty slots count as 0.
    batch_size: B, at most C.
    draw: chooses slots from weights, see `sampling`.

  Raises:
    ValueError: if `batch_size` is not in [1, C].
  """
  capacity = _capacity(state)
  _check_vector('weights', weights, capacity, jnp.float32)
  if not 1 <= batch_size <= capacity:
    raise ValueError(
      f'batch_size = {batch_size}: must be in [1, {capacity}], the capacity'
    )
  # Without the barrier the compiler would fuse the draw with the rule, and each
  # program would round it differently.
  weights_C = jax.lax.optimization_barrier(
    storage.whole(jnp.where(state.is_valid, weights, 0.0))
  )
  return storage.whole(draw(rng_key, weights_C, batch_size))


def read(state: base.BufferState, drawn: base.Draw) -> base.Batch:
  """Returns the stored rollouts of drawn slots, none marked as fresh.

  Where not `is_valid`, the row is that of the last slot: it fills the static
  shape and must be masked.
  """
  return base.Batch(
    rollouts=storage.read_rows(state.rollouts, drawn.slots),
    slots=drawn.slots,
    is_valid=drawn.is_valid,
    is_fresh=jnp.zeros_like(drawn.is_valid),
    probs=drawn.probs,
    num_eligible=drawn.num_eligible,
  )


def mark_sampled(
  state: base.BufferState, slots: base.Array, step: base.Array
) -> base.BufferState:
  """Counts one use of each slot.

  Args:
    state: the buffer.
    slots: `[B]` int32. A slot that occurs twice counts twice; C is skipped.
    step: `[]` int32, the learner step of this use.
  """
  slots_B = _drop_negative(state, slots)
  return state._replace(
    times_sampled=state.times_sampled.at[slots_B].add(1, mode='drop'),
    last_sampled=state.last_sampled.at[slots_B].set(step, mode='drop'),
  )


def update_priorities(
  state: base.BufferState, slots: base.Array, priorities: base.Array
) -> base.BufferState:
  """Overwrites the priorities of some slots.

  NaN, infinite and negative (-0 included) values become 0; positive ones are
  clipped to [MIN_PRIORITY, MAX_PRIORITY]. `num_repaired_priorities` counts
  every value that this changes. The priorities of other slots stay.

  Args:
    state: the buffer.
    slots: `[B]` int32. C is skipped.
    priorities: `[B]` float32. If a slot occurs more than once, the largest of
      its values is stored.
  """
  slots_B = _drop_negative(state, slots)
  _check_vector('priorities', priorities, slots.shape[0], jnp.float32)
  priorities_B, is_repaired_B = _repair(storage.whole(priorities))
  is_repaired_B &= slots_B < _capacity(state)
  cleared_C = state.priorities.at[slots_B].set(0.0, mode='drop')
  return state._replace(
    priorities=cleared_C.at[slots_B].max(priorities_B, mode='drop'),
    num_repaired_priorities=state.num_repaired_priorities
    + jnp.sum(is_repaired_B, dtype=jnp.uint32),
  )


def num_valid(state: base.BufferState) -> base.Array:
  """Returns `[]` int32, the number of slots that hold a rollout."""
  return jnp.sum(state.is_valid, dtype=jnp.int32)


def insertion_age(state: base.BufferState) -> base.Array:
  """Returns `[C]` int32, how many rollouts were inserted after this one.

  The newest has age 0. Ages saturate at 2^31 - 1, and are right as long as no
  row outlives 2^32 insertions. Those of empty slots mean nothing.
  """
  age_C = state.num_inserted - jnp.uint32(1) - state.insert_index
  return jnp.minimum(age_C, jnp.uint32(2**31 - 1)).astype(jnp.int32)


def batch_age(
  state: base.BufferState, num_fresh: int, reader: str
) -> base.Array:
  """Returns `[C]` uint32, how many generations were inserted after this one.

  The ages come from `rollout_id`, so generations of which no row was stored
  count too. They are right as long as no row outlives 2^32 generated rollouts.
  Those of empty slots mean nothing.

  Args:
    state: the buffer of a run, with one insert per generation.
    num_fresh: F, the rollouts of a generation, stored or not.
    reader: what needs the ages, for the message.

  Raises:
    ValueError: if the rollouts have no `rollout_id`.
  """
  num_generated = state.num_batches * jnp.uint32(num_fresh)
  newest = num_generated - jnp.uint32(1)
  return (newest - field(state, 'rollout_id', reader)) // jnp.uint32(num_fresh)


def field(state: base.BufferState, name: str, reader: str) -> base.Array:
  """Returns a field of the stored rollouts, `[C, ...]`.

  Args:
    state: the buffer.
    name: of the field.
    reader: what needs the field, for the message.

  Raises:
    ValueError: if the rollouts have no such field.
  """
  values = getattr(state.rollouts, name, None)
  if values is None:
    raise ValueError(f'rollouts.{name} = None: must be stored for {reader}')
  return values


def _overwrite_order(
  state: base.BufferState, keep_scores: base.Array
) -> base.Array:
  """Returns `[C]` int32, all slots, the first to be overwritten first."""
  if keep_scores.shape != state.is_valid.shape:
    raise ValueError(
      f'keep_scores = {_kind(keep_scores)}: must have '
      f'shape {list(state.is_valid.shape)}'
    )
  scores_C = jnp.where(jnp.isnan(keep_scores), -jnp.inf, keep_scores)
  # The difference is 2^32 minus the age, so it rises from old to new whatever
  # the counters have wrapped to.
  order_C = state.insert_index - state.num_inserted
  keys = (
    jnp.where(state.is_valid, order_C, 0),
    jnp.where(state.is_valid, scores_C, 0.0),
    state.is_valid,
  )
  return jnp.lexsort(keys).astype(jnp.int32)  # The last key decides first.


def _repair(priorities_B: base.Array) -> tuple[base.Array, base.Array]:
  """Returns the stored form of priorities, and where it differs."""
  # The bits are compared, because some backends take a denormal for zero.
  bits_B = jax.lax.bitcast_convert_type(priorities_B, jnp.int32)
  is_usable_B = (bits_B > 0) & (priorities_B < jnp.inf)
  repaired_B = jnp.where(
    is_usable_B, jnp.clip(priorities_B, MIN_PRIORITY, MAX_PRIORITY), 0.0
  )
  return repaired_B, bits_B != jax.lax.bitcast_convert_type(
    repaired_B, jnp.int32
  )


def _drop_negative(state: base.BufferState, slots_B: base.Array) -> base.Array:
  # A negative index counts from the end, even with mode='drop'.
  _check_vector('slots', slots_B, slots_B.shape[0], jnp.int32)
  slots_B = storage.whole(slots_B)
  return jnp.where(slots_B < 0, _capacity(state), slots_B)


def _capacity(state: base.BufferState) -> int:
  return state.is_valid.shape[0]


def _num_rows(rollouts: base.PyTree) -> int:
  leaves = jax.tree_util.tree_leaves_with_path(rollouts)
  if not leaves:
    raise ValueError(f'rollouts = {rollouts}: must have at least one leaf')
  for path, leaf in leaves:
    if leaf.shape[:1] != leaves[0][1].shape[:1] or not leaf.shape:
      raise ValueError(
        f'rollouts{jax.tree_util.keystr(path)} = {_kind(leaf)}: must share its '
        'leading axis with all leaves'
      )
  return leaves[0][1].shape[0]


def _check_rows(stored: base.PyTree, rollouts: base.PyTree) -> int:
  """Returns B; raises if a leaf of `rollouts` does not fit its storage."""
  if jax.tree.structure(stored) != jax.tree.structure(rollouts):
    raise ValueError(
      f'rollouts = {jax.tree.structure(rollouts)}: must have the structure '
      f'{jax.tree.structure(stored)}'
    )
  batch_size = _num_rows(rollouts)
  new_leaves = jax.tree.leaves(rollouts)
  old_leaves = jax.tree_util.tree_leaves_with_path(stored)
  for (path, old), new in zip(old_leaves, new_leaves, strict=True):
    if (new.shape[1:], new.dtype) != (old.shape[1:], old.dtype):
      raise ValueError(
        f'rollouts{jax.tree_util.keystr(path)} = {_kind(new)}: must have the '
        f'dtype {old.dtype} and rows of shape {list(old.shape[1:])}'
      )
  return batch_size


def _check_vector(
  name: str, values: base.Array, size: int, dtype: jax.typing.DTypeLike
) -> None:
  if values.shape != (size,) or values.dtype != dtype:
    raise ValueError(
      f'{name} = {_kind(values)}: must be {jnp.dtype(dtype)}[{size}]'
    )


def _kind(values: base.Array | jax.ShapeDtypeStruct) -> str:
  return f'{values.dtype}{list(values.shape)}'
