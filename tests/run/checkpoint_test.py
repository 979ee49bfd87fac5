"""Tests of checkpoints."""

import gc
import os
import pathlib
import sys
import warnings
from unittest import mock

import chex
import jax
import jax.numpy as jnp
from absl.testing import parameterized

from replay_rl.disk import durable
from replay_rl.disk import line_file
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
      optimizer__gate='gradient_gate(threshold=1.0, window=2, squared=False)',
      replay__num_prompts=5,
    ).parts
    params = parts.init_params_fn(jax.random.key(0))
    cls.run_state = jax.vmap(
      lambda seed, hyper: state.init(parts, params, seed, hyper)
    )(jnp.arange(2, dtype=jnp.uint32), state.of_seeds(parts.hyper, 2))

  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.create_tempdir().full_path) / 'checkpoints'

  def _saved(self, steps, keep=3):
    checkpoints = self._opened(keep)
    for step in steps:
      checkpoints.save(self._at(step), {'a': line_file.Mark(step, 'f')})
    checkpoints.wait()
    return checkpoints

  def _opened(self, keep=3):
    checkpoints = checkpoint.Checkpoints(self.folder, keep=keep)
    self.addCleanup(checkpoints.close)
    return checkpoints

  def _restored(self, checkpoints):
    restored = checkpoints.restore_latest(self.run_state, lambda marks: None)
    return restored and restored.run

  def _at(self, step):
    counter = jnp.full((2,), step, jnp.int32)
    stored = self.run_state.buffer._replace(
      num_inserted=counter.astype(jnp.uint32)
    )
    clock = self.run_state.clock._replace(iteration=counter)
    return self.run_state._replace(clock=clock, buffer=stored)

  def test_restores_every_array_bit_for_bit_with_its_type(self):
    checkpoints = self._saved([2, 4])
    restored = self._restored(checkpoints)
    chex.assert_trees_all_equal_shapes_and_dtypes(restored, self.run_state)
    chex.assert_trees_all_equal(restored, self._at(4))

  def test_a_checkpoint_is_whole_when_it_is_copied(self):
    copied = []

    def upload(step, marks):
      latest = checkpoint.read(self.folder, step, self.run_state)
      copied.append((step, marks, latest.run))

    checkpoints = checkpoint.Checkpoints(self.folder, keep=3, upload=upload)
    self.addCleanup(checkpoints.close)
    marks = {'a': line_file.Mark(3, 'f')}
    checkpoints.save(self._at(2), marks)
    checkpoints.save(self._at(4), {})
    self.assertEqual([step for step, *_ in copied[:1]], [2])
    checkpoints.wait()
    self.assertEqual([x[:2] for x in copied], [(2, marks), (4, {})])
    chex.assert_trees_all_equal(copied[1][2], self._at(4))
    checkpoints.wait()
    self.assertLen(copied, 2)

  def test_a_copy_that_fails_is_told_at_the_next_save(self):
    def upload(step, marks):
      raise OSError('no network')

    checkpoints = checkpoint.Checkpoints(self.folder, keep=3, upload=upload)
    self.addCleanup(checkpoints.close)
    checkpoints.save(self._at(2), {})
    with self.assertRaisesRegex(OSError, 'no network'):
      checkpoints.save(self._at(4), {})
    self.assertEqual(checkpoints.steps(), [2])

  def test_restores_what_lives_on_the_host_to_there(self):
    def move(leaf):
      place = leaf.sharding.with_memory_kind('pinned_host')
      return jax.device_put(leaf, place)

    rollouts = jax.tree.map(move, self.run_state.buffer.rollouts)
    self.run_state = self.run_state._replace(
      buffer=self.run_state.buffer._replace(rollouts=rollouts)
    )
    restored = self._restored(self._saved([2]))
    chex.assert_trees_all_equal(restored, self._at(2))
    for leaf in jax.tree.leaves(restored.buffer.rollouts):
      self.assertEqual(leaf.sharding.memory_kind, 'pinned_host')

  def test_an_empty_folder_holds_no_run(self):
    self.assertIsNone(self._restored(self._opened()))

  def test_only_the_newest_stay(self):
    self.assertEqual(self._saved([1, 2, 3, 4], keep=2).steps(), [3, 4])

  def test_what_is_saved_does_not_change_when_the_run_is_donated(self):
    checkpoints = self._opened(keep=1)
    run = jax.tree.map(jnp.copy, self._at(1))
    overwrite = jax.jit(
      lambda run: jax.tree.map(jnp.zeros_like, run), donate_argnums=0
    )
    with warnings.catch_warnings():
      warnings.simplefilter('ignore')  # Leaves that cannot be donated.
      checkpoints.save(run, {})
      jax.block_until_ready(overwrite(run))
    checkpoints.wait()
    restored = self._restored(checkpoints)
    chex.assert_trees_all_equal(restored, self._at(1))

  def test_where_none_can_be_read_it_says_so_and_moves_nothing(self):
    checkpoints = self._saved([2, 4])
    failing = mock.patch.object(
      checkpoint, '_restore', side_effect=OSError('unreadable')
    )
    with (
      failing,
      self.assertRaisesRegex(
        ValueError, r'= \[2, 4\]: must be readable .*\(unreadable\)'
      ),
    ):
      self._restored(checkpoints)
    self.assertEqual(checkpoints.steps(), [2, 4])
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
    checkpoints = self._opened()
    with self.assertWarnsRegex(checkpoint.DamagedCheckpointWarning, 'damaged'):
      restored = self._restored(checkpoints)
    chex.assert_trees_all_equal(restored, self._at(2))
    self.assertTrue((self.folder.parent / checkpoint.DAMAGED / '4').exists())
    # The run goes on and saves the same step again.
    checkpoints.save(self._at(4), {})
    checkpoints.wait()
    restored = self._restored(checkpoints)
    chex.assert_trees_all_equal(restored, self._at(4))

  def test_the_marks_come_back_and_are_checked_from_the_newest_on(self):
    checkpoints = self._saved([2, 4])
    seen = []

    def check(marks):
      seen.append(marks)
      if marks['a'].num_bytes == 4:
        raise ValueError('line 7 unreadable')

    with self.assertWarnsRegex(
      checkpoint.DamagedCheckpointWarning, r'older one is used \(line 7 unread'
    ):
      restored = checkpoints.restore_latest(self.run_state, check)
    chex.assert_trees_all_equal(restored.run, self._at(2))
    self.assertEqual(restored.marks, {'a': line_file.Mark(2, 'f')})
    self.assertEqual(
      seen, [{'a': line_file.Mark(4, 'f')}, {'a': line_file.Mark(2, 'f')}]
    )
    self.assertEqual(checkpoints.steps(), [2])

  @parameterized.parameters('a[b]c', 'a*?[x', os.fsdecode(b'a\xff'))
  def test_a_name_with_wildcards_keeps_its_checkpoints(self, name):
    self.folder = self.folder.parent / name / 'checkpoints'
    self._saved([2]).close()
    checkpoints = self._opened()
    chex.assert_trees_all_equal(self._restored(checkpoints), self._at(2))
    checkpoints.close()
    self.assertEqual(checkpoints.steps(), [2])

  def test_a_checkpoint_that_lacks_arrays_is_not_called_saved(self):
    # As Orbax does in a folder with a bracket in its name.
    unchanged = mock.patch.object(
      checkpoint, '_plain_name', lambda folder: folder
    )
    self.folder = self.folder.parent / 'a[b]' / 'checkpoints'
    with (
      unchanged,
      self.assertRaisesRegex(durable.WriteError, r'arrays of .*/2 = 0: must'),
    ):
      self._saved([2])

  def test_a_step_that_orbax_would_skip_is_an_error(self):
    checkpoints = self._saved([4])
    with self.assertRaisesRegex(durable.WriteError, r'a new checkpoint.*\[4\]'):
      checkpoints.save(self._at(3), {})

  def test_a_file_in_the_place_of_the_folder_is_refused(self):
    self.folder.write_text('')
    with self.assertRaisesRegex(ValueError, 'must be a folder; move that file'):
      self._opened()

  def test_a_save_leaves_nothing_in_memory(self):
    checkpoints = self._opened(keep=1)

    def num_blocks(first, last):
      for step in range(first, last):
        checkpoints.save(self._at(step), {})
      checkpoints.wait()
      gc.collect()
      return sys.getallocatedblocks()

    before = num_blocks(1, 12)
    # TensorStore left 24 lists and dicts of statistics for each save, and four
    # strings for each array.
    self.assertLess((num_blocks(12, 32) - before) / 20, 40)
