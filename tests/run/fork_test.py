"""Tests of runs that begin with the state of another run."""

import functools
import json
import pathlib
import shutil
import tempfile
from unittest import mock

import chex
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from replay_rl import train
from replay_rl.provenance import sources
from replay_rl.run import fork
from replay_rl.run import programs as programs_lib
from tests import saved_run
from tests import tiny

_FILES = ('metrics.jsonl', 'samples.jsonl')


def _config(**changes):
  return tiny.config(logging__samples_every=2, **changes)


@functools.cache
def _programs():
  """Returns a cache of programs, which all runs of this file can share."""
  return {}


def _make(*args):
  if 'made' not in _programs():
    _programs()['made'] = programs_lib.build(*args)
  return _programs()['made']


def _train(config, workdir, **kwargs):
  return train.train(config, workdir, make_programs=_make, **kwargs)


@functools.cache
def _trained():
  """Returns the folder of a run of four iterations, and its state."""
  folder = pathlib.Path(tempfile.mkdtemp(dir=tiny.FOLDER)) / 'run'
  return folder, _train(_config(checkpoint__keep=4), folder)


def _record(folder):
  return json.loads((folder / 'config.json').read_text())


def _lines(folder):
  return (folder / 'metrics.jsonl').read_bytes().splitlines()


class ForkTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.create_tempdir().full_path)
    self.fork = self.root / 'fork'

  def _enters(self, config, workdir, ancestor):
    """Starts a run that passes all checks, and fails before it computes."""
    failing = mock.Mock(side_effect=RuntimeError('entered'))
    with self.assertRaisesRegex(RuntimeError, 'entered'):
      train.train(config, workdir, ancestor=ancestor, make_programs=failing)

  def test_a_fork_without_a_change_is_the_run_bit_for_bit(self):
    folder, expected = _trained()
    ancestor = fork.parse(f'{folder}@2')
    config = _config(checkpoint__keep=4)
    actual = _train(config, self.fork, ancestor=ancestor)
    chex.assert_trees_all_equal(actual, expected)
    for name in _FILES:
      self.assertEqual(
        (self.fork / name).read_bytes(), (folder / name).read_bytes()
      )
    link = {'run': str(folder), 'iteration': 2}
    link['commit'] = _record(folder)['commit']
    self.assertEqual(_record(self.fork)['ancestry'], [link])

  def test_a_changed_setting_holds_from_there_and_the_ancestor_may_go(self):
    folder = self.root / 'ancestor'
    shutil.copytree(_trained()[0], folder)
    ancestor = fork.Ancestor(folder, 2)
    config = _config(optimizer__learning_rate=1e-3, num_iterations=5)
    _train(config, self.fork, ancestor=ancestor, stop_after=3)
    shutil.rmtree(folder)
    self._enters(config, self.fork, ancestor)
    run = _train(config, self.fork)
    np.testing.assert_array_equal(
      run.hyper['optimizer']['learning_rate'], np.float32([1e-3])
    )
    lines, before = _lines(self.fork), _lines(_trained()[0])
    self.assertLen(lines, 5)
    self.assertEqual(lines[:2], before[:2])
    # The rollouts of the first iteration of its own are of the same weights.
    of_first, of_other = json.loads(lines[2]), json.loads(before[2])
    self.assertEqual(of_first['reward'], of_other['reward'])
    self.assertNotEqual(lines[2:4], before[2:4])
    (link,) = _record(self.fork)['ancestry']
    self.assertEqual(
      link['config'],
      {
        'checkpoint.keep': [4, 3],
        'num_iterations': [4, 5],
        'optimizer.learning_rate': [1e-2, 1e-3],
      },
    )
    with self.assertRaisesRegex(
      ValueError, '--from = .*other@2.: must be absent, or as at the start'
    ):
      other = fork.Ancestor(self.root / 'other', 2)
      _train(config, self.fork, ancestor=other)
    again = self.root / 'again'
    self._enters(_config(), again, fork.Ancestor(self.fork, 3))
    links = _record(again)['ancestry']
    self.assertEqual([x['iteration'] for x in links], [2, 3])
    self.assertEqual(links[0], link)

  def test_a_fork_that_did_not_begin_begins_again_and_frees_its_folder(self):
    folder, expected = _trained()
    ancestor = fork.Ancestor(folder, 2)

    def die(*_):
      raise RuntimeError('dead')

    with mock.patch.object(fork.checkpoint.Checkpoints, 'save', die):
      with self.assertRaisesRegex(RuntimeError, 'dead'):
        _train(_config(), self.fork, ancestor=ancestor)
    # The log is copied, and a plain start would not be the fork.
    self.assertLen(_lines(self.fork), 2)
    with self.assertRaisesRegex(ValueError, f'--from = None: must be {folder}'):
      _train(_config(), self.fork)
    _train(_config(), self.fork, ancestor=ancestor, stop_after=2)
    # The only checkpoint is that of the ancestor: another config may come.
    other = _config(optimizer__learning_rate=1e-3)
    _train(other, self.fork, ancestor=ancestor, stop_after=2)
    self.assertTrue((self.fork / 'unbegun/1/checkpoints/2').exists())
    # So may another ancestor of the same config.
    self._enters(other, self.fork, fork.Ancestor(folder, 3))
    self.assertTrue((self.fork / 'unbegun/2/checkpoints/2').exists())
    self.assertEqual(_record(self.fork)['ancestry'][0]['iteration'], 3)
    again = _train(_config(), self.fork, ancestor=ancestor)
    chex.assert_trees_all_equal(again, expected)

  def test_a_damaged_ancestor_is_refused(self):
    folder = self.root / 'ancestor'
    shutil.copytree(_trained()[0], folder)
    metrics = folder / 'metrics.jsonl'
    metrics.write_bytes(metrics.read_bytes()[10:])
    with self.assertRaisesRegex(ValueError, 'checkpoint = .*/2.: must be read'):
      _train(_config(), self.fork, ancestor=fork.Ancestor(folder, 2))


_ASYNCHRONOUS = {
  'schedule': 'asynchronous(workers=1, trainers=1, publish_every=1, '
  'in_flight=True)',
  'replay__updates_per_iteration': None,
}
_TABLE = {
  'replay__num_prompts': 8,
  'replay__weights': 'pass_rate(center=0.5, width=0.5)',
}


_GATE = 'gradient_gate(threshold=0.1, window=2, squared=False)'


@functools.cache
def _saved(changes):
  """Returns the folder of a run with one checkpoint, without training."""
  folder = pathlib.Path(tempfile.mkdtemp(dir=tiny.FOLDER)) / 'ancestor'
  saved_run.save(folder, tiny.config(**dict(changes)), iteration=2)
  return folder


class RefusalTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.create_tempdir().full_path)

  def _refused(self, message, there, changes, iteration=2, **kwargs):
    workdir = self.root / 'fork'
    folder = _saved(tuple(there.items()))
    with self.assertRaisesRegex(ValueError, message):
      train.train(
        tiny.config(**{**there, **changes}),
        workdir,
        ancestor=fork.Ancestor(folder, iteration),
        make_programs=mock.Mock(side_effect=AssertionError),
        **kwargs,
      )
    self.assertFalse(workdir.exists())

  @parameterized.parameters(
    (r'^model\.d_model = 32 \(there: 16\): must be as', {'model__d_model': 32}),
    (r'^model\.norm_eps = 0.1 \(', {'model__norm_eps': 0.1}),
    (r'^warm_start.num_steps = 3 \(', {'warm_start__num_steps': 3}),
    (r'^seed = 1 \(', {'seed': 1}),
    (r'^num_seeds = 2 \(', {'num_seeds': 2}),
    (r'^mu = 3.0 \(', {'mu': 3.0}),
    (r'^sampler.group_size = 2 \(', {'sampler__group_size': 2}),
    (
      r'^task = .*\); seed = 1|^seed = 1 \(there: 0\); task = ',
      {'seed': 1, 'task': 'addition(num_digits=2, forget_probability=0.5)'},
    ),
    (
      r'^replay.capacity = 64 \(there: 32\): must be as there, in the run whose'
      r' state --from = .* other shapes in buffer\.insert_index and 13 more$',
      {'replay__capacity': 64, 'optimizer__learning_rate': 1e-3},
    ),
    (r'^replay.num_prompts = 8 \(there: None\); replay.weights = ', _TABLE),
    (
      r'^optimizer.gate = [^;]* \(there: None\): must be as .*gate_state',
      {'optimizer__gate': _GATE, 'replay__batch_size': 4},
    ),
    (r'^num_iterations = 2: must be above the 2 of', {'num_iterations': 2}),
  )
  def test_what_does_not_fit_the_state_is_named(self, message, changes):
    self._refused(message, {}, changes)

  def test_what_counts_publications_is_named(self):
    changes = {'replay__batch_size': 4}
    message = r'^replay.batch_size = 4 \(there: 8\): .* begins with$'
    self._refused(message, _ASYNCHRONOUS, changes)

  def test_other_code_needs_a_flag(self):
    _saved(())
    edited = sources.of_package() | {'rl/losses.py': 'edited'}
    with mock.patch.object(sources, 'of_package', return_value=edited):
      message = 'rl/losses.py = .edited. .*--allow_code_change goes on'
      self._refused(message, {}, {})
      # Then the next check comes.
      message = '^num_iterations = 1: must be above'
      self._refused(message, {}, {'num_iterations': 1}, allow_code_change=True)

  def test_a_module_that_only_the_fork_names_is_no_other_code(self):
    changes = {
      'optimizer__transform': 'tests.user_functions:exploding(factor=1.0)',
      'replay__capacity': 64,
    }
    self._refused('^optimizer.transform = .*; replay.capac', {}, changes)

  def test_a_checkpoint_that_is_not_there_is_refused(self):
    message = r'ancestor@3.: must end with one of \[2\]'
    self._refused(message, {}, {}, iteration=3)

  def test_a_folder_without_a_run_is_refused(self):
    with self.assertRaisesRegex(ValueError, 'name a folder that replay_rl'):
      train.train(
        tiny.config(), self.root / 'a', ancestor=fork.Ancestor(self.root, 2)
      )

  def test_the_folder_itself_is_refused(self):
    ancestor = fork.Ancestor(self.root.resolve() / 'a', 2)
    with self.assertRaisesRegex(ValueError, 'a@2.: must be another folder'):
      train.train(tiny.config(), self.root / 'a', ancestor=ancestor)

  @parameterized.parameters('runs/a', '@2', 'runs/a@', 'runs/a@-1', 'runs/a@x')
  def test_a_text_that_names_nothing_is_refused(self, text):
    with self.assertRaisesRegex(ValueError, '--from = .*: must be RUN@ITER'):
      fork.parse(text)

  def test_parses_a_folder_with_an_at(self):
    expected = fork.Ancestor(pathlib.Path('/a@1/b'), 20)
    self.assertEqual(fork.parse('/a@1/b@20'), expected)
    self.assertEqual(str(expected), '/a@1/b@20')


if __name__ == '__main__':
  absltest.main()
