"""Tests of runs over many processes: real ones, on the loopback.

What many processes compute equals what one computes but for rounding: sums
over rows are taken in another order. `_ATOL` bounds it for weights of about 1
after four iterations; rewards and all integers, tokens among them, are equal.

There is one test of many checks: of several, two workers would each start all
the processes. experiments/many_processes has four processes too.
"""

import json
import pathlib
import signal
import tempfile

from absl.testing import absltest

from replay_rl import train
from replay_rl.lm.hf import checkpoint as hf
from replay_rl.run import build
from replay_rl.run import checkpoint
from replay_rl.tasks import task as task_lib
from tests import processes
from tests import tiny
from tests import tiny_text

_ATOL = 1e-4
_CHANGES = {'num_iterations': 4, 'optimizer__learning_rate': 1e-3}


def _mesh(**sizes):
  return {'mesh__shape': {'data': 1, 'fsdp': 1, 'tensor': 1} | sizes}


def _lines(workdir):
  text = (workdir / 'metrics.jsonl').read_text()
  return [json.loads(line) for line in text.splitlines()]


class TwoProcessesTest(absltest.TestCase):
  """Runs in `folder`; those of one process are `one_text` and `one_jax`.

  The task in text is sampled on another mesh from a buffer on the hosts. Its
  weights are those of a checkpoint, of which each process reads a share. Each
  iteration of the task in JAX is one program.
  """

  def assert_equal_but_for_rounding(self, name, one_process):
    actual, expected = self.folder / name, self.folder / one_process
    difference = processes.many_processes.differences(actual, expected)
    self.assertEqual(difference['integers_that_differ'], 0, difference)
    self.assertLess(difference['largest_difference'], _ATOL)
    for one, other in zip(_lines(actual), _lines(expected), strict=True):
      self.assertEqual(one['reward'], other['reward'])
      for name in {'accuracy', 'eval/greedy', 'verifier/correct'} & one.keys():
        self.assertEqual(one[name], other[name])
    self.assertGreater(max(line['grad_norm'] for line in _lines(actual)), 0.01)

  def test_two_processes(self):
    for check in (
      self.all_are_told_what_is_wrong_with_the_mesh_or_the_config_of_one,
      self.where_one_is_killed_the_other_ends_too,
      self.a_killed_run_that_is_started_again_ends_as_one_that_nobody_killed,
      self.a_run_judged_by_two_is_that_judged_by_one,
      self.sigterm_to_one_ends_both_with_the_same_step,
      self.one_process_goes_on_where_two_were_on_another_mesh,
    ):
      with self.subTest(check.__name__):
        check()

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    folder = tempfile.TemporaryDirectory()
    cls.addClassCleanup(folder.cleanup)
    cls.folder = pathlib.Path(folder.name)
    cls._store_weights()
    train.train(
      tiny_text.config(cls.folder / 'problems', **cls._changes()),
      cls.folder / 'one_text',
    )
    in_jax = _CHANGES | {'cache_dir': tiny.CACHE}
    train.train(tiny.config(**in_jax), cls.folder / 'one_jax')
    split = _mesh(fsdp=2) | {
      'mesh__sampler_shape': {'data': 2, 'fsdp': 1, 'tensor': 1},
      'mesh__buffer_memory': 'pinned_host',
    }
    cls.first = processes.run_jobs(
      2,
      cls._job(
        'mesh',
        _mesh(),
        error=r'mesh.shape = .* has none of the processes \[1\]',
      ),
      cls._job(
        'broken',
        split,
        changes_of_1={'replay__capacity': 3},
        error='replay.capacity = 3|reading the config: failed in another',
      ),
      cls._job(
        'differing',
        split,
        changes_of_1={'seed': 1},
        error=r'processes that differ in config = \[1\]: must be none',
      ),
      cls._job('killed', split, signal=['SIGKILL', 1, 3]),
    )
    cls.steps = processes.many_processes.steps(cls.folder / 'killed')
    cls.logs_at_kill = {
      name: (cls.folder / 'killed' / name).read_bytes()
      for name in ('metrics.jsonl', 'samples.jsonl')
    }
    cls._damage(cls.folder / 'killed/checkpoints' / str(cls.steps[-1]))
    cls.again = processes.run_jobs(
      2,
      cls._job('killed', split),
      cls._job('whole', split),
      {
        'module': 'tests.tiny',
        'workdir': str(cls.folder / 'stopped'),
        'changes': in_jax | _mesh(data=2),
        'signal': ['SIGTERM', 1, 1],
      },
    )
    cls.steps_of_stopped = processes.many_processes.steps(
      cls.folder / 'stopped'
    )
    with cls().assertWarnsRegex(UserWarning, 'mesh.shape.data is 1 now, was 2'):
      cls.run_of_one = train.train(
        tiny.config(**in_jax, **_mesh(fsdp=2)), cls.folder / 'stopped'
      )

  @classmethod
  def _changes(cls):
    return _CHANGES | {
      'cache_dir': tiny.CACHE,
      'evaluation__every': 2,
      'logging__samples_every': 2,
      'model__checkpoint': str(cls.folder / 'stored'),
    }

  @classmethod
  def _job(cls, workdir, changes, **others):
    return {
      'module': 'tests.tiny_text',
      'workdir': str(cls.folder / workdir),
      'folder': str(cls.folder / 'problems'),
      'changes': cls._changes() | changes,
    } | others

  @classmethod
  def _store_weights(cls):
    config = tiny_text.config(cls.folder / 'problems')
    task = build.task(config)
    cls.addClassCleanup(task_lib.close, task)
    experiment = build.experiment(config, task.shape)
    hf.save(
      cls.folder / 'stored',
      experiment.parts.transformer,
      build.base_weights(config, experiment, task),
      dtype='float32',
      max_file_bytes=10**9,
      max_position_embeddings=64,
      eos_ids=task.shape.eos_ids,
      bos_id=None,
    )

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
    self.assertTrue((self.folder / 'killed').exists(), self.first)

  def a_run_judged_by_two_is_that_judged_by_one(self):
    self.assert_equal_but_for_rounding('killed', 'one_text')
    timing = (self.folder / 'killed/timing.jsonl').read_text()
    self.assertLen(timing.splitlines(), 4)
    lines = _lines(self.folder / 'killed')
    self.assertGreater(sum(line['accuracy'] for line in lines), 0)
    self.assertIn('eval/greedy', lines[-1])
    for line in lines:
      verdicts = [v for k, v in line.items() if k.startswith('verifier/')]
      self.assertEqual(sum(verdicts), 32)
    actual, expected = (
      (self.folder / name / 'samples.jsonl').read_text().splitlines()
      for name in ('killed', 'one_text')
    )
    self.assertLen(actual, 2 * 4)
    for one, other in zip(actual, expected, strict=True):
      for field in ('prompt', 'response', 'reference', 'reward'):
        self.assertEqual(json.loads(one)[field], json.loads(other)[field])

  def where_one_is_killed_the_other_ends_too(self):
    other, killed = self.first
    self.assertEqual(killed.status, -signal.SIGKILL)
    self.assertEqual(other.status, 1)
    self.assertStartsWith(
      other.output.splitlines()[-1],
      'error: lost processes = [1]: must be none of 2; ',
    )
    self.assertNotRegex(other.output, 'Traceback|Check failure')

  def a_killed_run_that_is_started_again_ends_as_one_that_nobody_killed(self):
    # Even where only one process finds its share of a checkpoint damaged.
    self.assertIn('failed in another process', self.again[0].output)
    moved = self.folder / 'killed' / checkpoint.DAMAGED
    self.assertEqual(
      [path.name for path in moved.iterdir()], [str(self.steps[-1])]
    )
    # So the last iterations before the kill were repeated, to the same bytes.
    self.assertGreaterEqual(self.steps[-1], 2)
    for name, written in self.logs_at_kill.items():
      self.assertNotEmpty(written)
      actual = (self.folder / 'killed' / name).read_bytes()
      self.assertEqual(actual[: len(written)], written)
      self.assertGreater(len(actual), len(written))
      whole = (self.folder / 'whole' / name).read_bytes()
      self.assertEqual(actual, whole)
    difference = processes.many_processes.differences(
      self.folder / 'whole', self.folder / 'killed'
    )
    self.assertEqual(difference['arrays_that_differ'], 0, difference)

  def sigterm_to_one_ends_both_with_the_same_step(self):
    for ended in self.again:
      self.assertEqual(ended.status, 143, ended.output)
    self.assertEqual(self.steps_of_stopped, [1, 2])

  def one_process_goes_on_where_two_were_on_another_mesh(self):
    self.assert_equal_but_for_rounding('stopped', 'one_jax')
    self.assertLen(_lines(self.folder / 'stopped'), 4)
    weights = self.run_of_one.learner.params['layers']['gate_up']
    self.assertEqual(weights.addressable_shards[0].data.size * 2, weights.size)
