"""Tests of losses and their statistics in the tiny run."""

import math

from absl.testing import parameterized

from replay_rl import train
from replay_rl.run import build
from tests import tiny
from tests import train_test

_BAPO = (
  'balanced_clip_bounds(min_share=0.4, low_start=0.6, low_end=0.9, '
  'high_start=1.2, high_end=3.0, high_step=0.05)'
)
_CLIP = 'clip_low=0.2, clip_high=0.2'


class RunTest(train_test.TrainTestCase):
  @parameterized.parameters(
    # Two of them at a time, because each program takes seconds to compile.
    (
      'masked_importance_sampling(max_ratio=2.0) + '
      'icepop(lowest=0.5, highest=5.0)',
      None,
    ),
    (
      'sequence_truncated_importance_sampling(max_ratio=8.0) + '
      'behavior_kl(coefficient=0.1)',
      None,
    ),
    (f'a3po({_CLIP}, max_ratio=2.0)', None),
    ('bapo()', _BAPO),
    ('vcpo(max_ratio=8.0)', 'optimal_baseline(max_ratio=8.0)'),
    (
      f'decoupled_ppo({_CLIP}, max_ratio=2.0) + reference_kl(coefficient=0.1)',
      None,
    ),
  )
  def test_two_iterations_train(self, policy, statistics):
    workdir = self.workdir()
    config = tiny.config(
      num_iterations=2,
      warm_start__num_steps=0,  # A wrong answer has a gradient, too.
      loss__policy=policy,
      loss__statistics=statistics,
      loss__advantage='w_reinforce(correct_weight=0.1, min_correct=0.5)',
      optimizer__microbatch_rows=4,
      # So that rewards differ where no answer is right.
      reward='correctness() + soft_overlong(max_length=2, cache_length=2)',
    )
    run = train.train(config, workdir)
    self.assertEqual(run.learner.step.tolist(), [4])
    lines = train_test.read_lines(workdir)
    self.assertLen(lines, 2)
    for line in lines:
      self.assertTrue(math.isfinite(line['loss']))
      self.assertGreater(line['grad_norm'], 0.0)

  @parameterized.parameters(
    ('bapo()', 'second_moment_cutoff(limit=0.04)', "must have 'lowest_ratio'"),
    ('bapo()', None, 'statistics = None: must be given for bapo'),
    (
      'bapo()',
      _BAPO.replace('0.6', '0.95'),
      'low_start = 0.95: must be at mos',
    ),
    ('reinforce()', _BAPO, 'must be None, because loss.policy ignores it'),
  )
  def test_statistics_that_do_not_fit_the_loss_are_refused(
    self, policy, statistics, message
  ):
    config = tiny.config(loss__policy=policy, loss__statistics=statistics)
    with self.assertRaisesRegex(ValueError, f'^loss.[ps].* = .*{message}'):
      build.experiment(config, build.planned_shape(config), None)
