"""Tests of replay methods in the tiny run: batches, weights, draws, advantages.

Prompts of one digit recur, so that older rows of the same prompts are found.
"""

import math

import numpy as np
from absl.testing import parameterized

from replay_rl import train
from tests import tiny
from tests import train_test
from tests.run import tiny_run


class RunTest(train_test.TrainTestCase):
  @parameterized.parameters(
    # Several functions at a time, because each program takes seconds to
    # compile.
    (
      'same_prompt(num_replayed=2, only_failed=False)',
      'exp_reward(temperature=1.0) * newest_first()',
      'most_varied()',
      {
        'loss__batch_advantage': 'apart(eps=1e-6)',
        'sampler__num_prompts': 32,
        'replay__capacity': 512,
      },
    ),
    (
      'same_prompt(num_replayed=1, only_failed=True)',
      'min_reward(limit=0.5) * confident(temperature=0.1)',
      'largest()',
      {
        'loss__batch_advantage': 'joint(eps=1e-6)',
        'sampler__num_prompts': 32,
        'replay__capacity': 512,
        'replay__drop_zero_variance': True,
      },
    ),
    (
      'fresh_filled()',
      'oldest_first() * max_age(limit=8)',
      'largest()',
      {'replay__drop_zero_variance': True},
    ),
    (
      'fresh_first()',
      'inverse_age(exponent=0.5)',
      'gumbel_top_k()',
      {
        'loss__row_weights': (
          'annealed_per_importance_weights(start=0.4, end=1.0, num_steps=4)'
        )
      },
    ),
    (
      'fresh_anchored_groups(replay_fraction=0.5, warmup_steps=0)',
      'advantage_magnitude(exponent=0.5)',
      'gumbel_top_k()',
      {},
    ),
  )
  def test_two_iterations_train(self, compose, weights, draw, changes):
    workdir = self.workdir()
    config = tiny.config(
      num_iterations=2,
      replay__batch_size=None,
      replay__compose=compose,
      replay__weights=weights,
      replay__draw=draw,
      **changes,
    )
    run = train.train(config, workdir)
    self.assertEqual(run.learner.num_tried.tolist(), [4])
    lines = train_test.read_lines(workdir)
    self.assertLen(lines, 2)
    for line in lines:
      self.assertTrue(math.isfinite(line['loss']))
      self.assertGreater(line['grad_norm'], 0.0)
    self.assertGreater(lines[1]['buffer/num_eligible'], 0)
    self.assertGreater(lines[1]['batch/num_valid'], lines[1]['batch/num_fresh'])

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
