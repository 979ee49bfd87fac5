"""Tests of losses that a run refuses; configs/methods_test.py has others."""

from absl.testing import parameterized

from replay_rl.run import build
from tests import tiny

_BAPO = (
  'balanced_clip_bounds(min_share=0.4, low_start=0.6, low_end=0.9, '
  'high_start=1.2, high_end=3.0, high_step=0.05)'
)


class RunTest(parameterized.TestCase):
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
