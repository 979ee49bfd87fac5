"""Tests of packing rows into sequences."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl.lm import packing
from replay_rl.lm import scoring
from tests.lm import small_models

# Rows of 4, 0, 6, 2 and 3 columns in sequences of 7: the longest row is first,
# and the row of 4 begins a second sequence, which the row of 3 fills.
_COLUMNS = (4, 0, 6, 2, 3)
_SEQUENCE = (1, None, 0, 2, 1)
_OFFSET = (0, None, 0, 0, 4)


def _places(columns, capacity, is_jitted=True):
  first_fit = packing.first_fit
  if is_jitted:
    first_fit = jax.jit(first_fit, static_argnums=1)
  return jax.device_get(first_fit(jnp.asarray(columns, jnp.int32), capacity))


def _slow_first_fit(columns, capacity):
  """Returns (sequence, offset) of each row, and the sequences in use."""
  used, placed = [], {}
  for row in sorted(range(len(columns)), key=lambda row: -columns[row]):
    if not columns[row]:
      continue
    used.append(0)
    sequence = next(
      i for i, taken in enumerate(used) if taken + columns[row] <= capacity
    )
    if sequence < len(used) - 1:
      used.pop()
    placed[row] = (sequence, used[sequence])
    used[sequence] += columns[row]
  return placed, len(used)


class FirstFitTest(parameterized.TestCase):
  @parameterized.parameters(True, False)
  def test_rows_by_hand(self, is_jitted):
    places = _places(_COLUMNS, 7, is_jitted)
    self.assertEqual(int(places.num_sequences), 3)
    for row, (sequence, offset) in enumerate(
      zip(_SEQUENCE, _OFFSET, strict=True)
    ):
      if sequence is not None:
        self.assertEqual(int(places.sequence[row]), sequence)
        self.assertEqual(int(places.offset[row]), offset)

  def test_random_rows_are_where_a_slow_twin_puts_them(self):
    rng = np.random.default_rng(0)
    for _ in range(100):
      capacity = 40
      # Some rows fill a sequence, and some take no room.
      columns = np.minimum(rng.geometric(0.06, 24) - 1, capacity)
      places = _places(columns, capacity)
      placed, num_sequences = _slow_first_fit(columns.tolist(), capacity)
      self.assertEqual(int(places.num_sequences), num_sequences)
      free = np.ones((num_sequences, capacity), bool)
      for row, (sequence, offset) in placed.items():
        self.assertEqual(
          (places.sequence[row], places.offset[row]), (sequence, offset)
        )
        cells = free[sequence, offset : offset + columns[row]]
        self.assertLen(cells, columns[row])  # It ends inside of the sequence.
        self.assertTrue(cells.all())  # No other row is there.
        cells[:] = False
      self.assertEqual(np.sum(~free), columns.sum())

  def test_no_row_needs_no_sequence(self):
    self.assertEqual(int(_places([0, 0], 5).num_sequences), 0)

  def test_a_row_needs_what_is_before_its_last_token_of_the_mask(self):
    mask = np.array([[0, 0, 1, 1, 0], [0, 1, 0, 0, 1], [0] * 5], bool)
    self.assertEqual(packing.num_columns(mask).tolist(), [3, 4, 0])

  def test_a_mask_of_one_row_without_an_axis_is_refused(self):
    with self.assertRaisesRegex(AssertionError, 'rank'):
      packing.num_columns(jnp.ones(3, bool))


class MicrobatchTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    # Row b has the tokens 10 b, 10 b + 1, ...
    self.tokens = (10 * np.arange(5)[:, None] + np.arange(7)).astype(np.int32)
    self.places = _places(_COLUMNS, 7)

  def _take(self, first, num_sequences):
    take = jax.jit(
      functools.partial(packing.take, num_sequences=num_sequences, capacity=7)
    )
    return take(self.places, self.tokens, first)

  def test_tokens_targets_and_positions_by_hand(self):
    taken = self._take(1, 2)
    rows = [[0, 0, 0, 0, 4, 4, 4], [3, 3, 0, 0, 0, 0, 0]]
    np.testing.assert_array_equal(taken.row, rows)
    np.testing.assert_array_equal(
      taken.tokens, [[0, 1, 2, 3, 40, 41, 42], [30, 31, 0, 0, 0, 0, 0]]
    )
    np.testing.assert_array_equal(
      taken.segments.targets, [[1, 2, 3, 4, 41, 42, 43], [31, 32] + [0] * 5]
    )
    np.testing.assert_array_equal(
      taken.segments.positions, [[0, 1, 2, 3, 0, 1, 2], [0, 1] + [0] * 5]
    )
    np.testing.assert_array_equal(
      taken.segments.ids, [[1, 1, 1, 1, 5, 5, 5], [1, 1] + [0] * 5]
    )
    np.testing.assert_array_equal(taken.num_columns, [4, 0, 0, 2, 3])

  def test_sequences_beyond_the_last_one_are_padding(self):
    taken = self._take(3, 2)
    np.testing.assert_array_equal(taken.tokens, np.zeros((2, 7)))
    np.testing.assert_array_equal(taken.segments.ids, np.zeros((2, 7)))
    np.testing.assert_array_equal(taken.num_columns, np.zeros(5))

  def test_values_return_to_their_tokens(self):
    num_seen = np.zeros((5, 7), np.int32)
    for first in (0, 2):
      taken = self._take(first, 2)
      back = packing.to_rows(taken, taken.segments.targets, 7)
      columns = np.asarray(taken.num_columns)[:, None]
      inside = (np.arange(7) > 0) & (np.arange(7) <= columns)
      np.testing.assert_array_equal(back, np.where(inside, self.tokens, 0))
      num_seen += inside
    expected = np.arange(7)[None] <= np.array(_COLUMNS)[:, None]
    np.testing.assert_array_equal(num_seen[:, 1:], expected[:, 1:])

  def test_to_columns_is_the_transpose_of_to_rows(self):
    taken = self._take(1, 2)
    rng = np.random.default_rng(1)
    values_BT, values_NK = rng.normal(size=(5, 7)), rng.normal(size=(2, 7))
    there = jnp.sum(
      packing.to_rows(taken, jnp.asarray(values_NK), 7) * values_BT
    )
    back = jnp.sum(
      packing.to_columns(taken, jnp.asarray(values_BT)) * values_NK
    )
    np.testing.assert_allclose(there, back, rtol=1e-6)


class PackedScoringTest(parameterized.TestCase):
  @parameterized.parameters(None, 3)
  def test_packed_tokens_score_as_rows_of_their_own(self, chunk_size):
    graphdef, params = small_models.init(small_models.QWEN25)
    score = jax.jit(
      functools.partial(
        scoring.token_logprobs,
        *(graphdef,),
        temperature=0.7,
        chunk_size=chunk_size,
        remat=True,
      )
    )
    rng = np.random.default_rng(2)
    tokens = rng.integers(23, size=(5, 7)).astype(np.int32)
    taken = packing.take(
      _places(_COLUMNS, 7), tokens, 0, num_sequences=4, capacity=7
    )
    packed = score(params, taken.tokens, taken.segments)
    # Only differences of positions count, so that an offset of a segment would
    # not show. Twice the distances must.
    stretched = taken.segments._replace(positions=2 * taken.segments.positions)
    other = score(params, taken.tokens, stretched)
    self.assertGreater(float(jnp.max(jnp.abs(other[0] - packed[0]))), 1e-3)
    whole = score(params, tokens)
    inside = np.arange(7)[None] <= np.array(_COLUMNS)[:, None]
    for actual, expected in zip(packed, whole, strict=True):
      np.testing.assert_allclose(
        packing.to_rows(taken, actual, 7),
        np.where(inside, expected, 0.0),
        atol=2e-6,
      )
      # Padding has neither a log-probability nor an entropy.
      chex.assert_trees_all_equal(
        jnp.where(taken.segments.ids > 0, 0.0, actual), jnp.zeros((4, 7))
      )
