"""Tests of runs over many processes: real ones, on the loopback.

What many processes compute equals what one computes but for rounding: sums
over rows are taken in another order. `_ATOL` bounds it for weights of about 1
after six iterations; rewards and all integers, tokens among them, are equal.

Each class has one test of many checks: of several, two workers would each start
all the processes.
"""

import atexit
import functools
import json
import pathlib
import shutil
import signal
import tempfile

from absl.testing import absltest

from replay_rl import train
from replay_rl.lm import hf
from replay_rl.run import build
from replay_rl.run import checkpoint
from tests import processes
from tests import tiny
from tests import tiny_text

_ATOL = 1e-4
_CHANGES = {
  'num_iterations': 6,
  'optimizer__learning_rate': 1e-3,
  'evaluation__every': 0,
  'logging__samples_every': 0,
}


def _mesh(**sizes):
  return {'mesh__shape': {'data': 1, 'fsdp': 1, 'tensor': 1} | sizes}


def _lines(workdir):
  text = (workdir / 'metrics.jsonl').read_text()
  return [json.loads(line) for line in text.splitlines()]


@functools.cache
def _folder():
  """Returns the folder of all runs; in `one` is that of one process."""
  folder = pathlib.Path(tempfile.mkdtemp())
  atexit.register(shutil.rmtree, folder, ignore_errors=True)
  train.train(tiny.config(**_CHANGES), folder / 'one')
  return folder


class RunsTestCase(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.folder = _folder()

  @classmethod
  def job(cls, workdir, changes, **others):
    return {
      'module': 'tests.tiny',
      'workdir': str(cls.folder / workdir),
      'changes': _CHANGES | {'cache_dir': tiny.CACHE} | changes,
    } | others

  def assert_equal_but_for_rounding(self, found, expected):
    found, expected = self.folder / found, self.folder / expected
    difference = processes.many_processes.differences(found, expected)
    self.assertEqual(difference['integers_that_differ'], 0, difference)
    self.assertLess(difference['largest_difference'], _ATOL)
    for one, other in zip(_lines(found), _lines(expected), strict=True):
      self.assertEqual(one['reward'], other['reward'])
      for name in {'accuracy', 'eval/greedy', 'verifier/correct'} & one.keys():
        self.assertEqual(one[name], other[name])
    self.assertGreater(max(line['grad_norm'] for line in _lines(found)), 0.01)


class TwoProcessesTest(RunsTestCase):
  def test_two_processes(self):
    for check in (
      self.all_are_told_what_is_wrong_with_the_mesh_or_the_config_of_one,
      self.a_run_of_two_is_the_run_of_one,
      self.sampling_on_another_mesh_from_a_buffer_on_the_hosts_is_the_same,
      self.a_task_in_text_judged_by_two_is_that_judged_by_one,
      self.where_one_is_killed_the_other_ends_too,
      self.a_killed_run_that_is_started_again_ends_as_if_untouched,
    ):
      with self.subTest(check.__name__):
        check()

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    fsdp = _mesh(fsdp=2)
    cls.first = processes.run_jobs(
      2,
      cls.job(
        'mesh',
        _mesh(),
        error=r'mesh.shape = .* has none of the processes \[1\]',
      ),
      cls.job(
        'broken',
        fsdp,
        changes_of_1={'replay__capacity': 3},
        error='replay.capacity = 3|reading the config: failed in another',
      ),
      cls.job(
        'differing',
        fsdp,
        changes_of_1={'seed': 1},
        error=r'config: differs between process 0 and the processes \[1\]',
      ),
      cls.job('whole', fsdp),
      cls.job(
        'elsewhere',
        fsdp
        | {
          'mesh__sampler_shape': {'data': 2, 'fsdp': 1, 'tensor': 1},
          'mesh__buffer_memory': 'pinned_host',
        },
      ),
      cls._text_job(),
      cls.job('killed', fsdp, signal=['SIGKILL', 1, 4]),
    )
    cls.steps = processes.many_processes.steps(cls.folder / 'killed')
    cls._damage(cls.folder / 'killed/checkpoints' / str(cls.steps[-1]))
    cls.again = processes.run_jobs(2, cls.job('killed', fsdp))

  @classmethod
  def _text_job(cls):
    """Trains a task in text by one process; returns the job of doing it again.

    The weights are those of a checkpoint, of which each process reads a share.
    """
    data, stored = cls.folder / 'problems', cls.folder / 'stored'
    changes = {
      'num_iterations': 2,
      'num_seeds': 2,
      'model__checkpoint': str(stored),
    }
    config = tiny_text.config(data)
    parts = build.parts(config)
    hf.save(
      stored,
      parts.transformer,
      build.base_weights(config, parts),
      dtype='float32',
      max_file_bytes=10**9,
      max_position_embeddings=64,
      eos_ids=parts.task.eos_ids,
      bos_id=None,
    )
    train.train(tiny_text.config(data, **changes), cls.folder / 'text_one')
    return {
      'module': 'tests.tiny_text',
      'workdir': str(cls.folder / 'text_two'),
      'folder': str(data),
      'changes': changes | {'cache_dir': tiny.CACHE} | _mesh(data=2),
    }

  @classmethod
  def _damage(cls, checkpoint):
    """Cuts off weights that process 1 alone has written, and reads."""
    # All but a byte: in which half of a file the data is depends on timing.
    for path in (checkpoint / 'run/ocdbt.process_1/d').iterdir():
      path.write_bytes(path.read_bytes()[:1])

  def all_are_told_what_is_wrong_with_the_mesh_or_the_config_of_one(self):
    # The processes check the messages, and go on.
    for name in ('mesh', 'broken', 'differing'):
      self.assertFalse((self.folder / name).exists())
    self.assertTrue((self.folder / 'whole').exists(), self.first)

  def a_run_of_two_is_the_run_of_one(self):
    self.assert_equal_but_for_rounding('whole', 'one')
    timing = (self.folder / 'whole/timing.jsonl').read_text()
    self.assertLen(timing.splitlines(), 6)

  def sampling_on_another_mesh_from_a_buffer_on_the_hosts_is_the_same(self):
    self.assert_equal_but_for_rounding('elsewhere', 'one')

  def a_task_in_text_judged_by_two_is_that_judged_by_one(self):
    self.assert_equal_but_for_rounding('text_two', 'text_one')
    lines = _lines(self.folder / 'text_two')
    self.assertGreater(sum(line['accuracy'] for line in lines), 0)
    for line in lines:
      verdicts = [v for k, v in line.items() if k.startswith('verifier/')]
      self.assertEqual(sum(verdicts), 32)
    found, expected = (
      (self.folder / name / 'samples.jsonl').read_text().splitlines()
      for name in ('text_two', 'text_one')
    )
    self.assertLen(found, 8)
    for one, other in zip(found, expected, strict=True):
      for field in ('prompt', 'response', 'reference', 'reward'):
        self.assertEqual(json.loads(one)[field], json.loads(other)[field])

  def where_one_is_killed_the_other_ends_too(self):
    other, killed = self.first
    self.assertEqual(killed.status, -signal.SIGKILL)
    self.assertNotIn(other.status, (0, 143), other.output)

  def a_killed_run_that_is_started_again_ends_as_if_untouched(self):
    # Even where only one process finds its share of a checkpoint damaged.
    self.assertEqual([ended.status for ended in self.again], [0, 0], self.again)
    self.assertIn('failed in another process', self.again[0].output)
    self.assertGreaterEqual(self.steps[-1], 3)
    moved = self.folder / 'killed' / checkpoint.DAMAGED
    self.assertEqual(
      [path.name for path in moved.iterdir()], [str(self.steps[-1])]
    )
    found = processes.many_processes.differences(
      self.folder / 'killed', self.folder / 'whole'
    )
    self.assertEqual(found['arrays_that_differ'], 0, found)
    self.assertTrue(found['metrics_are_equal'])


class FourProcessesTest(RunsTestCase):
  def test_four_processes(self):
    for check in (
      self.sigterm_to_one_ends_all_with_the_same_step,
      self.one_process_goes_on_where_four_were_on_another_mesh,
    ):
      with self.subTest(check.__name__):
        check()

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    changes = _mesh(data=2, fsdp=2)
    cls.ended = processes.run_jobs(
      4, cls.job('run', changes, signal=['SIGTERM', 2, 3])
    )
    cls.steps = processes.many_processes.steps(cls.folder / 'run')
    with cls().assertWarnsRegex(UserWarning, 'mesh.shape.data is 1 now, was 2'):
      cls.run_of_one = train.train(
        tiny.config(**_CHANGES, **_mesh(fsdp=2)), cls.folder / 'run'
      )

  def sigterm_to_one_ends_all_with_the_same_step(self):
    for ended in self.ended:
      self.assertEqual(ended.status, 143, ended.output)
    self.assertEqual(self.steps, [2, 3, 4])

  def one_process_goes_on_where_four_were_on_another_mesh(self):
    self.assert_equal_but_for_rounding('run', 'one')
    self.assertLen(_lines(self.folder / 'run'), 6)
    weights = self.run_of_one.learner.params['layers']['gate_up']
    self.assertEqual(weights.addressable_shards[0].data.size * 2, weights.size)


if __name__ == '__main__':
  absltest.main()
