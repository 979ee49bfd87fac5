"""Tests of Weights & Biases offline: what the package wrote is read back."""

import importlib.util
import json
import math
import os
import time
import unittest
from unittest import mock

from absl.testing import absltest

from replay_rl import train
from replay_rl.run import stopping
from replay_rl.run import wandb_runs
from replay_rl.run import writers
from tests import tiny
from tests import train_test

IS_INSTALLED = importlib.util.find_spec('wandb') is not None
OFFLINE = "wandb(project='replay', offline=True)"
_BLOCK, _HEADER = 32768, 7  # Bytes, of the log format of LevelDB.


def _records(path):
  """Yields the records of a file of the package, up to a torn one."""
  from wandb.proto import wandb_internal_pb2

  data, at, parts = path.read_bytes(), _HEADER, b''
  while at + _HEADER <= len(data):
    if _BLOCK - at % _BLOCK < _HEADER:
      at += _BLOCK - at % _BLOCK
      continue
    size = int.from_bytes(data[at + 4 : at + 6], 'little')
    kind, at = data[at + 6], at + _HEADER
    parts += data[at : at + size]
    if kind in (1, 4):  # Whole, or the last part.
      yield wandb_internal_pb2.Record.FromString(parts)
      parts = b''
    at += size


def _finished(path):
  """Returns the records of a run that is closed, once the file has them all."""
  deadline = time.monotonic() + 30
  while True:
    records = list(_records(path))
    if records and records[-1].WhichOneof('record_type') == 'exit':
      return records
    assert time.monotonic() < deadline, path
    time.sleep(0.05)


def _items(items):
  return {
    item.key or '/'.join(item.nested_key): json.loads(item.value_json)
    for item in items
  }


def read(folder):
  """Returns the record of the run and its steps, by seed."""
  found = {}
  for path in sorted((folder / 'wandb').glob('offline-run-*/*.wandb')):
    records = _finished(path)
    # The first record of the run has its settings.
    run = next(x.run for x in records if x.WhichOneof('record_type') == 'run')
    steps = [
      (x.history.step.num, _items(x.history.item))
      for x in records
      if x.WhichOneof('record_type') == 'history'
    ]
    seed = _items(run.config.update)['seed']
    assert seed not in found, path
    found[seed] = run, steps
  return found


@unittest.skipUnless(IS_INSTALLED, "needs wandb: pip install -e '.[test]'")
class WandbRunsTest(train_test.TrainTestCase):
  def setUp(self):
    super().setUp()
    # It would look for settings and a login in the home folder.
    self.enter_context(
      mock.patch.dict(os.environ, {'WANDB_CONFIG_DIR': str(self.workdir('c'))})
    )

  def opened(self, folder, lines=(), **changes):
    arguments = {
      'name': 'arm',
      'seeds': (3, 4),
      'settings': {'replay.capacity': 32, 'replay.feedback': None},
      'project': 'replay',
      'offline': True,
    }
    return wandb_runs.WandbRuns(folder, lines=lines, **arguments | changes)

  def test_each_seed_is_a_run_of_one_group_with_the_settings(self):
    folder = self.workdir()
    folder.mkdir()
    runs = self.opened(folder)
    for iteration in range(2):
      for seed in 3, 4:
        runs.write(
          iteration,
          seed,
          seconds=5.0 + iteration,
          loss=seed + iteration / 4,
          gap=math.nan,
          uses=[1, 2],
        )
    runs.close()
    runs.close()
    found = read(folder)
    self.assertEqual(list(found), [3, 4])
    self.assertLen({run.run_group for run, _ in found.values()}, 1)
    for seed, (run, steps) in found.items():
      self.assertEqual(run.project, 'replay')
      self.assertEqual(run.display_name, f'arm seed {seed}')
      self.assertStartsWith(run.run_group, 'arm ')
      settings = _items(run.config.update)
      expected = {'replay.capacity': 32, 'replay.feedback': None, 'seed': seed}
      self.assertEqual(settings, settings | expected)
      self.assertEqual([step for step, _ in steps], [0, 1])
      for step, values in steps:
        self.assertEqual(values['loss'], seed + step / 4)
        self.assertEqual(values['_timestamp'], 5.0 + step)
        self.assertNoCommonElements(values, ['gap', 'uses', 'seed'])

  def test_a_step_that_is_there_is_not_written_again(self):
    folder = self.workdir()
    folder.mkdir()
    lines = [{'iteration': i, 'seed': 3, 'loss': float(i)} for i in range(3)]
    runs = self.opened(folder, seeds=(3,))
    run = mock.Mock(starting_step=2)
    with mock.patch('wandb.init', return_value=run) as init:
      # What a server says of a run that lacks the last line.
      online = self.opened(folder, lines, seeds=(3,), offline=False)
      online.write(3, 3, seconds=9.0, loss=3.0)
      online.close()
    runs.close()
    self.assertEqual(
      run.log.call_args_list,
      [
        mock.call({'loss': 2.0}, step=2, commit=True),
        mock.call({'loss': 3.0, '_timestamp': 9.0}, step=3, commit=True),
      ],
    )
    self.assertEqual(init.call_args.kwargs['resume'], 'allow')
    self.assertEqual(init.call_args.kwargs['mode'], 'online')
    # It is the run that was there.
    ((offline, _),) = read(folder).values()
    self.assertEqual(init.call_args.kwargs['id'], offline.run_id)

  def test_a_failure_is_told_once_and_counted(self):
    folder = self.workdir()
    folder.mkdir()
    run = mock.Mock(starting_step=0)
    run.log.side_effect = BrokenPipeError('gone')
    with mock.patch('wandb.init', return_value=run):
      runs = self.opened(folder, seeds=(3,))
    with self.assertWarnsRegex(UserWarning, 'takes no lines .gone.'):
      runs.write(0, 3, seconds=1.0, loss=0.5)
    runs.write(1, 3, seconds=1.0, loss=0.5)
    with self.assertWarnsRegex(UserWarning, 'lacks 2 lines'):
      runs.close()

  def test_a_project_that_is_refused_is_one_line(self):
    folder = self.workdir()
    folder.mkdir()
    with self.assertRaisesRegex(
      ValueError, r"^logging.writers.wandb.project = 'a/b': must be a project"
    ):
      self.opened(folder, project='a/b')

  def test_a_file_in_place_of_the_folder_is_one_line(self):
    folder = self.workdir()
    folder.mkdir()
    (folder / 'wandb').touch()
    with self.assertRaisesRegex(ValueError, 'must be a folder; move that file'):
      self.opened(folder)

  def test_a_run_that_ended_early_continues_with_every_step_once(self):
    workdir = self.workdir()
    config = tiny.config(logging__writers=OFFLINE, checkpoint__every=2)

    def fail(run, *_):
      if int(run.clock.iteration[0]) == 3:
        raise RuntimeError('gone')

    with (
      mock.patch.object(stopping, 'check_not_empty', fail),
      self.assertRaisesRegex(RuntimeError, 'gone'),
    ):
      train.train(config, workdir)
    # Three iterations were written, and the checkpoint is after the second.
    self.assertLen(train_test.read_lines(workdir), 3)
    identity = (workdir / 'wandb/id').read_text()
    train.train(config, workdir)
    found = read(workdir)
    self.assertEqual(list(found), [0])
    self.assertEqual(found[0][0].run_id, f'{identity}-seed0')
    for line in train_test.read_lines(workdir):
      _, steps = found[line['seed']]
      self.assertEqual([step for step, _ in steps], [0, 1, 2, 3])
      values = dict(steps)[line['iteration']]
      for name, value in line.items():
        if isinstance(value, (int, float)) and name != 'seed':
          self.assertEqual(values.get(name, line['iteration']), value, name)


class ChoiceTest(absltest.TestCase):
  def test_writers_are_named_once_each(self):
    config = tiny.config(logging__writers=f'tensorboard() + {OFFLINE}')
    self.assertTrue(writers.is_tensorboard(config))
    self.assertTrue(writers.is_wandb(config))
    config = tiny.config()
    self.assertFalse(writers.is_tensorboard(config))
    self.assertFalse(writers.is_wandb(config))
    for text, message in (
      ('tensorboard() + tensorboard()', 'must name each writer once'),
      ("wandb(project='x')", 'writers.offline = None: must be given'),
      ('wandb(project=1, offline=True)', 'project = 1: must be of type str'),
      ('board()', 'of tensorboard, wandb or module:name'),
      (True, 'must be of type str or None'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        train.train(tiny.config(logging__writers=text), '/nowhere/at/all')


if __name__ == '__main__':
  absltest.main()
