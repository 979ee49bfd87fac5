"""Names and contents of the folder of a run, and what was changed since."""

import json
import os
import pathlib
from unittest import mock

import jax
from absl.testing import parameterized

from replay_rl import train
from replay_rl.provenance import sources
from replay_rl.rl import losses
from replay_rl.run import checkpoint
from tests import saved_run
from tests import tiny
from tests import train_test


def tripled(inputs):
  """A loss of a user, whose module a test edits."""
  return losses.reinforce(inputs)


class NamesTest(train_test.TrainTestCase):
  @parameterized.parameters('a[1]b', '[/x]?*', "ä's {x} %s")
  def test_a_run_continues_in_a_folder_of_any_name(self, name):
    workdir = self.workdir(name)
    config = tiny.config(name=name, num_iterations=2)
    train.train(config, workdir, stop_after=1)
    train.train(config, workdir)
    self.assertLen(train_test.read_lines(workdir), 2)
    steps = sorted(x.name for x in (workdir / 'checkpoints').iterdir())
    self.assertEqual(steps, ['1', '2'])

  def test_a_tilde_is_the_home(self):
    home = self.workdir('home')
    with mock.patch.dict(os.environ, {'HOME': str(home)}):
      train.train(tiny.config(num_iterations=1), '~/run')
    self.assertTrue((home / 'run' / 'metrics.jsonl').exists())

  @parameterized.parameters('checkpoints', 'tensorboard', 'metrics.jsonl')
  def test_another_kind_of_file_in_its_place_is_one_line(self, name):
    workdir = self.workdir()
    workdir.mkdir()
    if name == 'metrics.jsonl':
      (workdir / name).mkdir()
    else:
      (workdir / name).write_text('')
    with self.assertRaisesRegex(ValueError, f"= '{workdir / name}': must be"):
      train.train(tiny.config(logging__writers='tensorboard()'), workdir)


class UnbegunTest(train_test.TrainTestCase):
  def _fails(self, workdir, **changes):
    """Starts a run that fails before its first iteration."""
    memory = mock.Mock(side_effect=RuntimeError('out of memory'))
    with self.assertRaisesRegex(RuntimeError, 'out of memory'):
      train.train(tiny.config(**changes), workdir, make_programs=memory)

  def test_a_run_that_failed_before_its_first_checkpoint_frees_its_folder(self):
    workdir = self.workdir()
    for size in (4, 2, 8):
      self._fails(workdir, replay__batch_size=size)
    for number, size in enumerate((4, 2), start=1):
      of_old = workdir / f'unbegun/{number}/config.json'
      config = json.loads(of_old.read_text())['config']
      self.assertEqual(config['replay']['batch_size'], size)

  def test_the_same_run_begins_again_and_the_lines_of_another_are_kept(self):
    workdir = self.workdir()
    with (
      mock.patch.object(checkpoint.Checkpoints, 'save', side_effect=OSError),
      self.assertRaises(OSError),
    ):
      train.train(tiny.config(), workdir)
    lines = (workdir / 'metrics.jsonl').read_bytes()
    self.assertTrue(lines)
    self._fails(workdir)
    self.assertFalse((workdir / 'unbegun').exists())
    self._fails(workdir, replay__batch_size=4)
    moved = workdir / 'unbegun/1/metrics.jsonl'
    self.assertEqual(moved.read_bytes(), lines)
    self.assertFalse((workdir / 'metrics.jsonl').exists())

  def test_a_folder_that_lost_its_checkpoints_is_not_free(self):
    workdir = self.workdir()
    saved_run.save(workdir, tiny.config(), iteration=3)
    (workdir / 'checkpoints').rename(workdir / 'moved')
    (workdir / 'metrics.jsonl').write_text('{}\n' * 3)
    with self.assertRaisesRegex(ValueError, '= 3: must be at most 2 where'):
      train.train(tiny.config(replay__batch_size=4), workdir)
    self.assertFalse((workdir / 'unbegun').exists())


class ChangesTest(train_test.TrainTestCase):
  def _stopped(self, config=None, **functions):
    workdir = self.workdir()
    config = config or tiny.config(num_iterations=2)
    train.train(config, workdir, stop_after=1, **functions)
    return workdir, config

  def test_an_edited_module_is_refused_unless_allowed(self):
    workdir, config = self._stopped()
    edited = sources.of_package() | {'rl/losses.py': 'edited'}
    with mock.patch.object(sources, 'of_package', return_value=edited):
      with self.assertRaisesRegex(
        ValueError, r"rl/losses.py = 'edited' .*; --allow_code_change goes on"
      ):
        train.train(config, workdir)
      self.assertLen(train_test.read_lines(workdir), 1)
      with self.assertWarnsRegex(UserWarning, "rl/losses.py is 'edited' now"):
        train.train(config, workdir, allow_code_change=True)
    self.assertLen(train_test.read_lines(workdir), 2)
    record = json.loads((workdir / 'config.json').read_text())
    (change,) = record['changes']
    self.assertEqual(change['newest_checkpoint'], 1)
    self.assertEqual(change['sources']['rl/losses.py'][1], 'edited')

  def test_an_edited_module_of_a_user_is_refused(self):
    # Also where the function itself is as before.
    workdir, config = self._stopped(loss=tripled)
    read = pathlib.Path.read_bytes

    def edited(path):
      return read(path) + b'#' * (path == pathlib.Path(__file__))

    with (
      mock.patch.object(pathlib.Path, 'read_bytes', edited),
      self.assertRaisesRegex(
        ValueError, f'have the sources .*{__name__} = .*--allow_code_change'
      ),
    ):
      train.train(config, workdir, loss=tripled)

  @parameterized.parameters(
    ('jax_enable_x64', True),
    ('jax_default_prng_impl', 'rbg'),
    ('jax_threefry_partitionable', False),
    ('jax_random_seed_offset', 3),
  )
  def test_a_setting_that_changes_random_streams_is_refused(self, name, value):
    before = getattr(jax.config, name)
    jax.config.update(name, value)
    try:
      with self.assertRaisesRegex(
        ValueError, f'^{name.upper()} = {value!r}: must be .*random streams'
      ):
        train.train(tiny.config(), self.workdir())
    finally:
      jax.config.update(name, before)

  def test_another_compiler_flag_is_told(self):
    workdir, config = self._stopped()
    flags = os.environ.get('XLA_FLAGS', '') + ' --xla_cpu_enable_fast_math=true'
    with (
      mock.patch.dict(os.environ, {'XLA_FLAGS': flags}),
      self.assertWarnsRegex(UserWarning, 'XLA_FLAGS is .*fast_math=true. now'),
    ):
      train.train(config, workdir)
