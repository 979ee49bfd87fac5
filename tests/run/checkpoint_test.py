"""Tests of checkpoints."""

import pathlib
import warnings
from unittest import mock

import chex
import jax
import jax.numpy as jnp
from absl.testing import parameterized

from replay_rl.run import checkpoint
from replay_rl.run import state
from tests.run import tiny_run


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
