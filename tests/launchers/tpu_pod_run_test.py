"""Trainings that tpu_pod.sh starts on two workers, watches and stops."""

import pathlib
import sys
import time
import unittest

from absl.testing import parameterized

from tests.launchers import fakes

COMMON = ['--name=my-pod', '--zone=us-west4-a', '--project=my-project']
TRAINING = [
  '--config=configs/my config.py:arm',
  "--config.mesh.shape={'data': -1}",
]


@unittest.skipUnless(sys.platform == 'linux', 'workers have Linux')
class TpuPodRunTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.fakes = fakes.Fakes(self.create_tempdir().full_path)
    self.addCleanup(self.pod, 'stop')
    # All workers see this folder.
    shared = pathlib.Path(self.create_tempdir().full_path)
    self.workdir = shared / 'it\'s "mine" $HOME'
    self.workdir.mkdir()
    self.training = [*TRAINING, f'--workdir={self.workdir}']

  def pod(self, subcommand, *arguments):
    done = self.fakes.bash(
      'scripts/tpu_pod.sh', subcommand, *COMMON, *arguments
    )
    return done.returncode, done.stdout + done.stderr

  def workers(self, *statuses):
    homes = [self.fakes.worker(each) for each in statuses]
    status, output = self.pod('sync')
    self.assertEqual(status, 0, output)
    return homes

  def wait_for(self, condition, homes):
    deadline = time.monotonic() + 20
    while not all(condition(home) for home in homes):
      self.assertLess(time.monotonic(), deadline)
      time.sleep(0.02)

  def start(self):
    status, output = self.pod('run', '--max-crashes=1', '--', *self.training)
    self.assertEqual(status, 0, output)
    self.assertIn('started; its log is ~/replay_rl.log\n', output)

  def test_each_worker_trains_and_starts_again_until_it_is_done(self):
    homes = self.workers([143, '1 0 1', 143, 0], [143, 0])
    self.start()
    self.wait_for(
      lambda home: ': done' in (home / 'replay_rl.log').read_text(), homes
    )
    started = [
      *['tpu,cpu', '-m', 'replay_rl.train', *fakes.MANY_HOSTS, *self.training]
    ]
    self.assertEqual(fakes.trainings(homes[0]), [started] * 4)
    self.assertEqual(fakes.trainings(homes[1]), [started] * 2)
    status, output = self.pod('logs', '--lines=1')
    self.assertEqual(status, 0, output)
    self.assertRegex(output, r'^(restart.sh \S+Z: done\n){2}$')
    self.wait_for(lambda home: not (home / 'replay_rl.pid').exists(), homes)
    self.assertEqual(self.pod('stop'), (0, 'nothing runs here\n' * 2))

  def test_a_training_that_is_refused_is_not_started_again(self):
    (home,) = self.workers([1, 0])
    self.start()
    log = home / 'replay_rl.log'
    self.wait_for(lambda _: 'gives up' in log.read_text(), [home])
    self.assertIn('status 1 before the first iteration', log.read_text())
    self.assertLen(fakes.trainings(home), 1)

  def test_stop_saves_on_every_worker_and_starts_none_again(self):
    homes = self.workers(['wait', 0], ['wait', 0])
    self.start()
    self.wait_for(lambda home: (home / 'waits').exists(), homes)
    status, output = self.pod('stop')
    self.assertEqual(status, 0, output)
    self.assertEqual(
      output.count('stopped; the command ended with status 143'), 2
    )
    for home in homes:
      self.assertLen(fakes.trainings(home), 1)
      log = (home / 'replay_rl.log').read_text()
      self.assertIn('one line of the training\nsaved\n', log)

  def test_while_it_trains_nothing_else_starts_nor_changes(self):
    (home,) = self.workers(['wait', 0])
    self.start()
    self.wait_for(lambda home: (home / 'waits').exists(), [home])
    expected = 'error: training: must be stopped first, it runs here already\n'
    for arguments in ['sync'], ['run', '--max-crashes=1', '--', *self.training]:
      status, output = self.pod(*arguments)
      self.assertEqual((status, output), (1, expected))
    self.assertLen(fakes.trainings(home), 1)

  def test_a_number_of_another_process_is_not_that_of_a_training(self):
    (home,) = self.workers([0])
    (home / 'replay_rl.pid').write_text('1\n')
    self.assertEqual(self.pod('stop'), (0, 'nothing runs here\n'))
    self.start()
    self.wait_for(lambda home: (home / 'trainings').exists(), [home])
