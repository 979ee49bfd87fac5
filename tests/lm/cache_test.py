"""Tests of the rows of a cache."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl.lm import cache as cache_lib
from tests.lm import small_models


def _cache(num_rows, num_columns, first):
  """Returns a cache of one layer whose keys are first, first + 1, ..."""
  cache = cache_lib.init(
    small_models.QWEN3, batch_size=num_rows, num_columns=num_columns
  )
  numbers = first + jnp.arange(num_rows * num_columns, dtype=jnp.float32)
  keys = numbers.reshape(1, num_rows, 1, num_columns, 1)
  layers = jax.tree.map(lambda leaf: leaf + keys, cache.layers)
  return cache._replace(layers=layers, num_tokens=jnp.arange(num_rows) + 1)


def _keys(cache):
  """Returns the key of each row and column, `[B, S]`."""
  for leaf in jax.tree.leaves(cache.layers):
    # The same for keys and values, and all heads and channels.
    np.testing.assert_array_equal(leaf, leaf[:, :, :1, :, :1] + 0 * leaf)
  return cache.layers[0].keys[0, :, 0, :, 0].tolist()


class CacheTest(parameterized.TestCase):
  @parameterized.parameters(False, True)
  def test_rows_are_repeated_side_by_side(self, is_jitted):
    cache = _cache(2, 2, 1)
    cache = cache._replace(is_valid=jnp.array([[True, False], [False, True]]))
    repeat = cache_lib.repeat
    if is_jitted:
      repeat = jax.jit(repeat, static_argnums=1)
    actual = repeat(cache, 2)
    self.assertEqual(_keys(actual), [[1, 2], [1, 2], [3, 4], [3, 4]])
    self.assertEqual(
      actual.is_valid.tolist(), 2 * [[True, False]] + 2 * [[False, True]]
    )
    self.assertEqual(actual.num_tokens.tolist(), [1, 1, 2, 2])

  @parameterized.parameters(False, True)
  def test_rows_are_loaded_from_their_own_part(self, is_jitted):
    cache = _cache(4, 3, 100)._replace(is_valid=jnp.ones((4, 3), bool))
    store = _cache(4, 2, 1)
    store = store._replace(is_valid=jnp.arange(8).reshape(4, 2) != 5)
    load = jax.jit(cache_lib.load) if is_jitted else cache_lib.load
    # Rows 0 and 1 have the store's 0 and 1 to choose from, 2 and 3 the rest.
    actual = load(
      cache,
      store,
      jnp.array([[1, 0], [0, 1]]),
      jnp.array([True, False, True, True]),
    )
    self.assertEqual(
      _keys(actual), [[3, 4, 102], [103, 104, 105], [5, 6, 108], [7, 8, 111]]
    )
    self.assertEqual(
      actual.is_valid.tolist(),
      [
        [True, True, False],
        [True, True, True],
        [True, False, False],
        [True, True, False],
      ],
    )
    self.assertEqual(actual.num_tokens.tolist(), [2, 2, 3, 4])

  def test_rows_are_taken_along_any_axis(self):
    array = jnp.arange(12).reshape(2, 6)
    indices = jnp.array([[2], [0], [1]])
    # Parts of two columns; an index beyond the part stays in it.
    self.assertEqual(
      cache_lib.take(array, indices, axis=1).tolist(), [[1, 2, 5], [7, 8, 11]]
    )
    self.assertEqual(
      cache_lib.take(array.T, indices).tolist(), [[1, 7], [2, 8], [5, 11]]
    )
