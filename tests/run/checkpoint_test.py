"""Tests of checkpoints and of checksums of arrays."""

import pathlib
import warnings
from unittest import mock

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from replay_rl.parallel import mesh as mesh_lib
from replay_rl.run import checkpoint
from replay_rl.run import state
from tests.run import tiny_run


def _finalizer(word):
  """The finalizer of MurmurHash3, as its paper's reference has it."""
  word ^= word >> 16
  word = word * 0x85EBCA6B % 2**32
  word ^= word >> 13
  word = word * 0xC2B2AE35 % 2**32
  return word ^ word >> 16


class CheckpointTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    # Every optional part of the run is there.
    parts = tiny_run.experiment(
      sampler__weight_lag=2,
      optimizer__gate='gradient_gate(threshold=1.0, window=2)',
    ).parts
    params = parts.init_params_fn(jax.random.key(0))
    cls.run_state = jax.vmap(
      lambda seed, hyper: state.init(parts, params, seed, hyper)
    )(jnp.arange(2, dtype=jnp.uint32), state.of_seeds(parts.hyper, 2))

  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.create_tempdir().full_path) / 'checkpoints'

  def _saved(self, steps, keep=3):
    manager = checkpoint.open_folder(self.folder, keep=keep)
    for step in steps:
      checkpoint.save(manager, self._at(step))
    manager.wait_until_finished()
    return manager

  def _at(self, step):
    counter = jnp.full((2,), step, jnp.int32)
    stored = self.run_state.buffer._replace(
      num_inserted=counter.astype(jnp.uint32)
    )
    clock = self.run_state.clock._replace(iteration=counter)
    return self.run_state._replace(clock=clock, buffer=stored)

  def test_restores_every_array_bit_for_bit_with_its_type(self):
    manager = self._saved([2, 4])
    restored = checkpoint.restore_latest(manager, self.run_state)
    chex.assert_trees_all_equal_shapes_and_dtypes(restored, self.run_state)
    chex.assert_trees_all_equal(restored, self._at(4))

  def test_restores_what_lives_on_the_host_to_there(self):
    def move(leaf):
      place = leaf.sharding.with_memory_kind('pinned_host')
      return jax.device_put(leaf, place)

    rollouts = jax.tree.map(move, self.run_state.buffer.rollouts)
    self.run_state = self.run_state._replace(
      buffer=self.run_state.buffer._replace(rollouts=rollouts)
    )
    restored = checkpoint.restore_latest(self._saved([2]), self.run_state)
    chex.assert_trees_all_equal(restored, self._at(2))
    for leaf in jax.tree.leaves(restored.buffer.rollouts):
      self.assertEqual(leaf.sharding.memory_kind, 'pinned_host')

  def test_an_empty_folder_holds_no_run(self):
    manager = checkpoint.open_folder(self.folder, keep=1)
    self.assertIsNone(checkpoint.restore_latest(manager, self.run_state))

  def test_only_the_newest_stay(self):
    self.assertEqual(self._saved([1, 2, 3, 4], keep=2).all_steps(), [3, 4])

  def test_what_is_saved_does_not_change_when_the_run_is_donated(self):
    manager = checkpoint.open_folder(self.folder, keep=1)
    run = jax.tree.map(jnp.copy, self._at(1))
    overwrite = jax.jit(
      lambda run: jax.tree.map(jnp.zeros_like, run), donate_argnums=0
    )
    with warnings.catch_warnings():
      warnings.simplefilter('ignore')  # Leaves that cannot be donated.
      checkpoint.save(manager, run)
      jax.block_until_ready(overwrite(run))
    manager.wait_until_finished()
    restored = checkpoint.restore_latest(manager, self.run_state)
    chex.assert_trees_all_equal(restored, self._at(1))

  def test_where_none_can_be_read_it_says_so_and_moves_nothing(self):
    manager = self._saved([2, 4])
    failing = mock.patch.object(
      checkpoint, '_restore', side_effect=OSError('unreadable')
    )
    with (
      failing,
      self.assertRaisesRegex(
        ValueError, r'= \[2, 4\]: must be readable, .*\(unreadable\)'
      ),
    ):
      checkpoint.restore_latest(manager, self.run_state)
    self.assertEqual(manager.all_steps(), [2, 4])
    self.assertFalse((self.folder.parent / checkpoint.DAMAGED).exists())

  @parameterized.parameters('flipped', 'cut', 'lost', 'no commit')
  def test_a_damaged_checkpoint_is_moved_aside_and_the_one_before_is_used(
    self, damage
  ):
    self._saved([2, 4]).close()
    files = [path for path in (self.folder / '4').rglob('*') if path.is_file()]
    largest = max(files, key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    if damage == 'flipped':
      content[len(content) // 2] ^= 1
      largest.write_bytes(content)
    elif damage == 'cut':
      largest.write_bytes(content[: len(content) // 2])
    elif damage == 'lost':
      largest.unlink()
    else:
      for path in files:
        if path.name in ('_METADATA', '_CHECKPOINT_METADATA'):
          path.unlink()
    manager = checkpoint.open_folder(self.folder, keep=3)
    with self.assertWarnsRegex(checkpoint.DamagedCheckpointWarning, 'damaged'):
      restored = checkpoint.restore_latest(manager, self.run_state)
    chex.assert_trees_all_equal(restored, self._at(2))
    self.assertTrue((self.folder.parent / checkpoint.DAMAGED / '4').exists())
    # The run goes on and saves the same step again.
    checkpoint.save(manager, self._at(4))
    manager.wait_until_finished()
    restored = checkpoint.restore_latest(manager, self.run_state)
    chex.assert_trees_all_equal(restored, self._at(4))


class ChecksumTest(parameterized.TestCase):
  def test_is_the_sum_of_hashes_of_bits_and_places(self):
    array = np.array([[1.5, -2.0], [0.0, 3e-5], [7.0, 1e9]], np.float32)
    expected = sum(
      _finalizer(int(bits) ^ place * 0x9E3779B9 % 2**32)
      for place, bits in enumerate(array.view(np.uint32).ravel())
    )
    self.assertEqual(
      checkpoint.checksums({'a': array, 'b': [array[0, 0]]}),
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
    of_all = jax.jit(jax.vmap(checkpoint.checksum_of_array))
    found = of_all(jnp.asarray(np.stack([array, *flipped]))).tolist()
    self.assertNotIn(found[0], found[1:])
    # Nor do two of them give the same, for so few.
    self.assertLen(set(found), len(found))

  def test_sees_what_moved_or_changed_twice(self):
    array = jnp.arange(1.0, 9).reshape(2, 4)
    found = {
      checkpoint.checksums([changed])['[0]']
      for changed in (array, -array, array[::-1], array[:, ::-1], 2 * array)
    }
    self.assertLen(found, 5)

  @parameterized.parameters('data', 'fsdp', 'tensor')
  def test_is_the_same_on_any_mesh(self, axis):
    tree = {
      'a': jax.random.normal(jax.random.key(0), (8, 3)),
      'b': jnp.arange(5) > 2,
    }
    expected = checkpoint.checksums(tree)
    mesh = mesh_lib.make({'data': 1, 'fsdp': 1, 'tensor': 1} | {axis: 8})
    split = jax.device_put(
      tree,
      {
        'a': jax.NamedSharding(mesh, jax.P(axis)),
        'b': jax.NamedSharding(mesh, jax.P()),
      },
    )
    self.assertEqual(checkpoint.checksums(split), expected)

  def test_is_the_same_in_the_memory_of_the_host(self):
    mesh = mesh_lib.make({'data': 1, 'fsdp': 8, 'tensor': 1})
    split = jax.NamedSharding(mesh, jax.P('fsdp'))
    array = jax.random.normal(jax.random.key(0), (8, 3))
    there = jax.device_put(array, split.with_memory_kind('pinned_host'))
    self.assertEqual(
      checkpoint.checksums([there]), checkpoint.checksums([array])
    )

  def test_only_a_number_crosses_devices(self):
    mesh = mesh_lib.make({'data': 1, 'fsdp': 8, 'tensor': 1})
    array = jax.ShapeDtypeStruct(
      (64, 32), jnp.float32, sharding=jax.NamedSharding(mesh, jax.P('fsdp'))
    )
    program = jax.jit(
      checkpoint.checksum_of_array,
      out_shardings=jax.NamedSharding(mesh, jax.P()),
    )
    compiled = program.lower(array).compile()
    text = compiled.as_text()
    self.assertIn('all-reduce', text)
    self.assertNotIn('all-gather', text)
    self.assertNotIn('u32[64,32]', text)


if __name__ == '__main__':
  absltest.main()
