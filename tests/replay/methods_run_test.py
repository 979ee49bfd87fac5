"""Tests of replay methods in a run; configs/methods_test.py trains others."""

import numpy as np
from absl.testing import parameterized

from replay_rl import train
from tests import tiny
from tests import train_test
from tests.run import tiny_run


class RunTest(train_test.TrainTestCase):
  def test_the_loss_reads_the_advantages_of_the_batch_and_the_buffer_keeps_its(
    self,
  ):
    workdir = self.workdir()
    config = tiny.config(num_iterations=1)
    run = train.train(
      config, workdir, batch_advantage=lambda batch: 0.0 * batch.probs
    )
    (line,) = train_test.read_lines(workdir)
    self.assertEqual(line['grad_norm'], 0.0)
    self.assertTrue(np.any(run.buffer.rollouts.advantages))

  @parameterized.parameters(
    (
      'same_prompt(num_replayed=33, only_failed=False)',
      '^replay.compose = .*: must fit the run .num_replayed = 33: must be at '
      'most capacity = 32.$',
    ),
    (
      'same_prompt(num_replayed=1, only_failed=False, group_size=2)',
      "^replay.compose.group_size = 2: must be named one of .'num_replayed', ",
    ),
  )
  def test_a_batch_that_does_not_fit_the_run_is_refused(self, compose, message):
    with self.assertRaisesRegex(ValueError, message):
      tiny_run.experiment(replay__compose=compose, replay__batch_size=None)

  def test_advantages_of_another_shape_or_type_are_refused(self):
    for function, returned in (
      (lambda batch: batch.rollouts.rewards[:, None], r'float32\[8, 1\]'),
      (lambda batch: batch.rollouts.group_id, r'int32\[8\]'),
      (lambda batch: 1.0, r'.*\[\]'),
    ):
      with self.assertRaisesRegex(
        ValueError,
        r'^loss.batch_advantage = .*: must return float32\[8\], not '
        f'{returned}$',
      ):
        tiny_run.experiment({'batch_advantage': function})
