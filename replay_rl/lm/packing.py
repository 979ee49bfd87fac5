"""Packs rows of different lengths into sequences of one length.

The model reads all tokens of a row but the last, and scores each from the token
before it. A row of l tokens therefore takes l - 1 columns of a sequence. All of
them are neighbours, in one sequence. Letters beyond those of `base`: N
sequences, K columns of a sequence.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from replay_rl import base


class Places(NamedTuple):
  """Where rows stand.

  sequence: `[B]` int32, the sequence of each row.
  offset: `[B]` int32, the first column of the row in its sequence.
  num_columns: `[B]` int32, columns of the row; 0 for a row that takes no room.
  num_sequences: `[]` int32, sequences that have a row: 0, 1, ... are in use.
  """

  sequence: base.Array
  offset: base.Array
  num_columns: base.Array
  num_sequences: base.Array


class Segments(NamedTuple):
  """What the model must know of packed rows, `[N, K]` int32 each.

  targets: the token after each token, which the model scores.
  ids: different for the rows of a sequence, at least 1; 0 for padding.
  positions: place of each token in its row, from 0; 0 for padding.
  """

  targets: base.Array
  ids: base.Array
  positions: base.Array


class Microbatch(NamedTuple):
  """N sequences, and the way back to the rows.

  tokens: `[N, K]` int32, what the model reads; 0 for padding.
  segments: see `Segments`.
  row: `[N, K]` int32, the row of each column; 0 for padding.
  start: `[B]` int32, the first column of each row in the sequences, joined.
  num_columns: `[B]` int32, columns of each row; 0 for a row that is elsewhere.
  """

  tokens: base.Array
  segments: Segments
  row: base.Array
  start: base.Array
  num_columns: base.Array


def num_columns(loss_mask: base.Array) -> base.Array:
  """Returns the columns of each row, `[B]` int32, that an update must read.

  Args:
    loss_mask: `[B, T]` bool. No token after the last one of the mask counts.
  """
  chex.assert_rank(loss_mask, 2)
  columns_T = jnp.arange(loss_mask.shape[1], dtype=jnp.int32)
  return jnp.max(jnp.where(loss_mask, columns_T[None], 0), axis=1)


def first_fit(num_columns: base.Array, capacity: int) -> Places:
  """Places the rows, the longest first, each into the first that has room.

  Johnson, 'Near-optimal bin packing algorithms', PhD thesis, MIT, 1973: first
  fit decreasing, at most 11 / 9 of the fewest sequences, and 1 more.

  Args:
    num_columns: `[B]` int32, columns of each row, at most `capacity`.
    capacity: K, columns of a sequence.
  """
  chex.assert_rank(num_columns, 1)
  num_rows = num_columns.shape[0]
  order_B = jnp.argsort(-num_columns, stable=True)

  def place(used_B, columns):
    sequence = jnp.argmax(used_B + columns <= capacity).astype(jnp.int32)
    placed = (sequence, used_B[sequence])
    return used_B.at[sequence].add(columns), placed

  used_B, placed = jax.lax.scan(
    place, jnp.zeros(num_rows, jnp.int32), num_columns[order_B]
  )
  sequence_B, offset_B = (
    jnp.zeros_like(leaf).at[order_B].set(leaf) for leaf in placed
  )
  return Places(
    sequence=sequence_B,
    offset=offset_B,
    num_columns=num_columns,
    num_sequences=jnp.sum(used_B > 0, dtype=jnp.int32),
  )


def take(
  places: Places,
  tokens: base.Array,
  first: base.Array | int,
  *,
  num_sequences: int,
  capacity: int,
) -> Microbatch:
  """Returns the sequences first, first + 1, ... of packed rows.

  Args:
    places: from `first_fit`.
    tokens: `[B, T]` int32, right-padded.
    first: `[]` int32, the first sequence.
    num_sequences: N; those beyond the last one are padding.
    capacity: K, as for `first_fit`.
  """
  chex.assert_rank(tokens, 2)
  num_rows = tokens.shape[0]
  end = num_sequences * capacity
  place_B = places.sequence - first
  is_inside_B = (place_B >= 0) & (place_B < num_sequences)
  num_columns_B = jnp.where(is_inside_B, places.num_columns, 0)
  start_B = jnp.where(
    num_columns_B > 0, place_B * capacity + places.offset, end
  )
  # The columns of a row follow its start, so the latest start is theirs.
  marks = jnp.zeros(end, jnp.int32).at[start_B].set(start_B, mode='drop')
  columns = jnp.arange(end, dtype=jnp.int32)
  starts = jax.lax.cummax(marks)
  rows = (
    jnp.zeros(end, jnp.int32)
    .at[start_B]
    .set(jnp.arange(num_rows, dtype=jnp.int32), mode='drop')
  )[starts]
  positions = columns - starts
  is_token = positions < num_columns_B[rows]
  rows, positions = (jnp.where(is_token, x, 0) for x in (rows, positions))
  shape = (num_sequences, capacity)

  def read(after):
    read = tokens[rows, positions + after]
    return jnp.where(is_token, read, 0).reshape(shape)

  return Microbatch(
    tokens=read(0),
    segments=Segments(
      targets=read(1),
      ids=jnp.where(is_token, starts % capacity + 1, 0).reshape(shape),
      positions=positions.reshape(shape),
    ),
    row=rows.reshape(shape),
    start=start_B,
    num_columns=num_columns_B,
  )


def to_rows(
  microbatch: Microbatch, values: base.Array, num_tokens: int
) -> base.Array:
  """Returns values of targets, `[N, K]`, where they stand in the rows.

  Args:
    microbatch: the sequences.
    values: `[N, K]`, of the target of each column.
    num_tokens: T.

  Returns:
    `[B, T]`; zero at t = 0, behind a row and on rows that are elsewhere.
  """
  chex.assert_equal_shape([values, microbatch.tokens])
  columns_1T = jnp.arange(num_tokens - 1, dtype=jnp.int32)[None]
  index_BT = microbatch.start[:, None] + columns_1T
  values_BT = jnp.where(
    columns_1T < microbatch.num_columns[:, None],
    values.reshape(-1).at[index_BT].get(mode='clip'),
    0,
  )
  return jnp.pad(values_BT, ((0, 0), (1, 0)))


def to_columns(microbatch: Microbatch, values: base.Array) -> base.Array:
  """Returns values of tokens, `[B, T]`, at the columns that score them.

  This is the transpose of `to_rows`, as a gather in place of a scatter.

  Returns:
    `[N, K]`; zero for padding.
  """
  segments = microbatch.segments
  return jnp.where(
    segments.ids > 0, values[microbatch.row, segments.positions + 1], 0
  )
