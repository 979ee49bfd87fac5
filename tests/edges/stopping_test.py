"""Runs that diverge, that are asked to stop, or whose disk is full."""

import contextlib
import errno
import os
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from unittest import mock

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl import command_line
from replay_rl import train
from replay_rl.disk import durable
from replay_rl.run import checkpoint
from replay_rl.run import events
from replay_rl.run import generation as generation_lib
from replay_rl.run import stopping
from tests import tiny
from tests import train_test

# No file of the process grows beyond a size, as on a full disk.
_WITH_LITTLE_SPACE = """
import resource, sys
from replay_rl import command_line, train
from tests import tiny
limit, workdir, cache = sys.argv[1:]
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), most))
with command_line.one_line():
  train.train(tiny.config(cache, num_iterations=4), workdir)
"""


class DivergedTest(train_test.TrainTestCase):
  def _named_checkpoint(self, workdir, error):
    """Returns the run in the checkpoint that a message calls good."""
    match = re.search(r'the last good checkpoint is (.*)$', str(error))
    assert match, error
    checkpoints = checkpoint.Checkpoints(workdir / 'checkpoints', keep=9)
    with contextlib.closing(checkpoints):
      self.assertEndsWith(match[1], f'/{checkpoints.steps()[-1]}')
      like = train.train(tiny.config(num_iterations=1), self.workdir('like'))
      return checkpoints.restore_latest(like, lambda marks: None).run

  @parameterized.parameters(3e38, float('nan'))
  def test_weights_that_overflow_are_not_saved_as_good(self, value):
    workdir = self.workdir()
    config = tiny.config(num_iterations=4)
    cycle, calls = events.cycle, []

    def poisoned(run, schedule, actions):
      run, measured = cycle(run, schedule, actions=actions)
      params = jax.tree.map(
        lambda leaf: jnp.where(run.clock.iteration == 3, value, leaf),
        run.learner.params,
      )
      calls.append(1)
      return run._replace(learner=run.learner._replace(params=params)), measured

    with (
      mock.patch.object(events, 'cycle', poisoned),
      self.assertRaisesRegex(
        stopping.DivergedError,
        'weights or their log-probs = not finite in iter',
      ) as raised,
    ):
      train.train(config, workdir)
    self.assertNotEmpty(calls)
    run = self._named_checkpoint(workdir, raised.exception)
    self.assertEqual(run.clock.iteration.tolist(), [2])
    for leaf in jax.tree.leaves(run.learner.params):
      self.assertLess(np.abs(np.asarray(leaf)).max(), 10)

  def test_a_reward_that_is_not_finite_is_called_a_reward(self):
    config = tiny.config(num_iterations=2)
    generated = generation_lib.judge

    def judge(generation, task):
      rewards, *others = generated(generation, task)
      return rewards.at[0].set(jnp.nan), *others

    with (
      mock.patch.object(generation_lib, 'judge', judge),
      self.assertRaisesRegex(
        stopping.DivergedError,
        'reward = nan in iteration 0 .*there is no checkpoint yet',
      ),
    ):
      train.train(config, self.workdir())

  def test_an_evaluation_that_is_not_finite_ends_the_run(self):
    lines = [{'iteration': 3, 'seed': 1, 'reward': 0.5, 'eval/x': float('nan')}]
    checkpoints = mock.Mock(steps=lambda: [])
    with self.assertRaisesRegex(stopping.DivergedError, 'eval/x = nan in iter'):
      stopping.check_finite(lines, checkpoints)


class SignalsTest(train_test.TrainTestCase):
  @parameterized.parameters('SIGINT', 'SIGHUP', 'SIGTERM')
  def test_a_signal_saves_and_the_run_continues(self, name):
    number = getattr(signal, name)
    config = tiny.config(num_iterations=10_000, checkpoint__every=10_000)
    workdir = self.workdir()

    def stop():
      metrics = workdir / 'metrics.jsonl'
      while not metrics.exists() or not train_test.read_lines(workdir):
        time.sleep(0.05)
      signal.raise_signal(number)

    thread = threading.Thread(target=stop)
    thread.start()
    before = signal.getsignal(number)
    with self.assertRaises(SystemExit) as raised:
      train.train(config, workdir)
    thread.join()
    self.assertEqual(raised.exception.code, 128 + number)
    self.assertEqual(signal.getsignal(number), before)
    done = len(train_test.read_lines(workdir))
    (step,) = (workdir / 'checkpoints').iterdir()
    self.assertEqual(int(step.name), done)

  def test_a_second_ctrl_c_has_its_default_action(self):
    with stopping.signals() as received:
      signal.raise_signal(signal.SIGINT)
      self.assertEqual(received, {signal.SIGINT})
      self.assertEqual(signal.getsignal(signal.SIGINT), signal.SIG_DFL)
    self.assertNotEqual(signal.getsignal(signal.SIGINT), signal.SIG_DFL)

  def test_what_nohup_ignores_stays_ignored(self):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
      with stopping.signals() as received:
        signal.raise_signal(signal.SIGHUP)
        self.assertEmpty(received)
    finally:
      signal.signal(signal.SIGHUP, before)


class DiskTest(train_test.TrainTestCase):
  def _run_with_little_space(self, limit, workdir):
    # In a process of its own, because it must end while threads of TensorStore
    # may still write.
    return subprocess.run(
      [
        sys.executable,
        '-c',
        _WITH_LITTLE_SPACE,
        str(limit),
        str(workdir),
        tiny.CACHE,
      ],
      cwd=train_test.ROOT,
      env=os.environ
      | {
        # As in `conftest.py`; else the run would write to config.json first.
        'JAX_NUM_CPU_DEVICES': '8',
        'JAX_NUMPY_RANK_PROMOTION': 'raise',
        # Without space, an entry of the shared cache would be cut off.
        'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '1e9',
      },
      capture_output=True,
      text=True,
      check=False,
    )

  def test_a_full_disk_is_one_line_and_the_run_continues_with_space(self):
    config = tiny.config(num_iterations=4)
    whole, parted = self.workdir('whole'), self.workdir('parted')
    expected = train.train(config, whole)
    train.train(config, parted, stop_after=1)
    first, last = (
      (workdir / 'metrics.jsonl').stat().st_size for workdir in (parted, whole)
    )
    # The log fills the disk, and then a checkpoint does.
    for limit, name in (
      (first + 100, 'metrics.jsonl'),
      (last + 100, 'checkpoints/'),
    ):
      ended = self._run_with_little_space(limit, parted)
      self.assertEqual(ended.returncode, 1)
      # Threads of TensorStore may write to the same line.
      self.assertRegex(
        ended.stderr,
        f"error: path = '{parted}/{name}.*: must be writable .*; it needs up "
        r'to \d+ bytes, \d+ bytes and \d+ files are free; free some, then the '
        'same command continues',
      )
      kept = sorted(x.name for x in (parted / 'checkpoints').glob('?'))
      self.assertEqual(kept, ['1'])
    chex.assert_trees_all_equal(train.train(config, parted), expected)
    self.assertEqual(
      (parted / 'metrics.jsonl').read_bytes(),
      (whole / 'metrics.jsonl').read_bytes(),
    )

  def test_the_last_checkpoint_is_read_back_before_a_run_ends(self):
    error = durable.WriteError('arrays = 0: must be more')
    with (
      mock.patch.object(checkpoint, '_check_arrays', side_effect=error),
      self.assertRaisesRegex(durable.WriteError, 'arrays = 0: must be more'),
    ):
      train.train(tiny.config(num_iterations=1), self.workdir())

  def test_tensorboard_files_that_fail_do_not_stop_a_run(self):
    workdir = self.workdir()

    def fail(*_):
      raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with (
      mock.patch('tensorboardX.event_file_writer.EventsWriter.__init__', fail),
      warnings.catch_warnings(record=True) as caught,
    ):
      warnings.simplefilter('always')
      train.train(tiny.config(logging__writers='tensorboard()'), workdir)
    messages = [str(x.message) for x in caught]
    self.assertTrue(any('No space left' in x for x in messages), messages)
    self.assertTrue(any('lack 4 lines' in x for x in messages), messages)
    self.assertLen(train_test.read_lines(workdir), 4)

  def test_a_lost_reader_of_the_output_does_not_stop_a_run(self):
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, 'w') as stream, mock.patch('sys.stdout', stream):
      with (
        mock.patch('sys.stderr') as stderr,
        command_line.lasting_output(),
      ):
        train.train(tiny.config(num_iterations=1), self.workdir())
        print('lost', flush=True)
      said = ''.join(call.args[0] for call in stderr.write.call_args_list)
    self.assertIn('standard output is lost (Broken pipe); the program', said)
