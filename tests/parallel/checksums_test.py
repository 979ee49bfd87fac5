"""Tests of checksums of arrays."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl.parallel import checksums
from replay_rl.parallel import mesh as mesh_lib


def _finalizer(word):
  """The finalizer of MurmurHash3, as its paper's reference has it."""
  word ^= word >> 16
  word = word * 0x85EBCA6B % 2**32
  word ^= word >> 13
  word = word * 0xC2B2AE35 % 2**32
  return word ^ word >> 16


class ChecksumTest(parameterized.TestCase):
  def test_is_the_sum_of_hashes_of_bits_and_places(self):
    array = np.array([[1.5, -2.0], [0.0, 3e-5], [7.0, 1e9]], np.float32)
    expected = sum(
      _finalizer(int(bits) ^ place * 0x9E3779B9 % 2**32)
      for place, bits in enumerate(array.view(np.uint32).ravel())
    )
    self.assertEqual(
      checksums.of_tree({'a': array, 'b': [array[0, 0]]}),
      {
        "['a']": expected % 2**32,
        "['b'][0]": _finalizer(int(array[0, 0].view(np.uint32))),
      },
    )

  @parameterized.parameters(
    jnp.float32, jnp.int32, jnp.uint32, jnp.bfloat16, jnp.int8, jnp.bool_
  )
  def test_a_flip_of_any_bit_changes_it(self, dtype):
    array = np.asarray(jnp.arange(12).reshape(3, 4) % 5).astype(dtype)
    num_bits = 1 if dtype == jnp.bool_ else 8 * array.itemsize
    flipped = []
    for place in range(array.size):
      for bit in range(num_bits):
        raw = bytearray(array.tobytes())
        raw[place * array.itemsize + bit // 8] ^= 1 << bit % 8
        flipped.append(
          np.frombuffer(bytes(raw), array.dtype).reshape(array.shape)
        )
    of_all = jax.jit(jax.vmap(checksums.of_array))
    actual = of_all(jnp.asarray(np.stack([array, *flipped]))).tolist()
    self.assertNotIn(actual[0], actual[1:])
    # Nor do two of them give the same, for so few.
    self.assertLen(set(actual), len(actual))

  def test_sees_what_moved_or_changed_twice(self):
    array = jnp.arange(1.0, 9).reshape(2, 4)
    actual = {
      checksums.of_tree([changed])['[0]']
      for changed in (array, -array, array[::-1], array[:, ::-1], 2 * array)
    }
    self.assertLen(actual, 5)

  @parameterized.parameters('data', 'fsdp', 'tensor')
  def test_is_the_same_on_any_mesh(self, axis):
    tree = {
      'a': jax.random.normal(jax.random.key(0), (8, 3)),
      'b': jnp.arange(5) > 2,
    }
    expected = checksums.of_tree(tree)
    mesh = mesh_lib.make({'data': 1, 'fsdp': 1, 'tensor': 1} | {axis: 8})
    split = jax.device_put(
      tree,
      {
        'a': jax.NamedSharding(mesh, jax.P(axis)),
        'b': jax.NamedSharding(mesh, jax.P()),
      },
    )
    self.assertEqual(checksums.of_tree(split), expected)

  def test_is_the_same_in_the_memory_of_the_host(self):
    mesh = mesh_lib.make({'data': 1, 'fsdp': 8, 'tensor': 1})
    split = jax.NamedSharding(mesh, jax.P('fsdp'))
    array = jax.random.normal(jax.random.key(0), (8, 3))
    there = jax.device_put(array, split.with_memory_kind('pinned_host'))
    self.assertEqual(checksums.of_tree([there]), checksums.of_tree([array]))

  def test_only_a_number_crosses_devices(self):
    mesh = mesh_lib.make({'data': 1, 'fsdp': 8, 'tensor': 1})
    array = jax.ShapeDtypeStruct(
      (64, 32), jnp.float32, sharding=jax.NamedSharding(mesh, jax.P('fsdp'))
    )
    program = jax.jit(
      checksums.of_array,
      out_shardings=jax.NamedSharding(mesh, jax.P()),
    )
    compiled = program.lower(array).compile()
    text = compiled.as_text()
    self.assertIn('all-reduce', text)
    self.assertNotIn('all-gather', text)
    self.assertNotIn('u32[64,32]', text)
