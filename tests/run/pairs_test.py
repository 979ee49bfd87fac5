"""Tests that a pair is refused only for what it means."""

from absl.testing import absltest
from absl.testing import parameterized

from replay_rl.rl import advantages
from replay_rl.run import build
from tests import tiny

_NEVER_USED = {'replay__weights': 'never_used_first()'}
_WAIT = {
  'replay__weights': 'oldest_unused()',
  'replay__draw': 'largest()',
  'replay__drop_zero_variance': True,
}
_ASYMRE = {'loss__policy': 'asymre(delta_v=-0.1)'}


def _build(functions=None, **changes):
  config = tiny.config(**changes)
  return build.experiment(config, build.planned_shape(config), functions)


class RefusedTest(parameterized.TestCase):
  @parameterized.product(
    truncation=({'sampler__top_k': 3}, {'sampler__top_p': 0.9}),
    policy=(
      'clipped_surrogate(clip_low=0.2, clip_high=0.2, dual_clip=None)',
      'gspo(clip_low=0.2, clip_high=0.2)',
      'topr()',
    ),
  )
  def test_a_truncated_sampler_with_a_loss_that_has_a_ratio(
    self, truncation, policy
  ):
    with self.assertRaisesRegex(
      ValueError,
      '^sampler.top_. = .*: must be None.* with loss.policy = .*, whose ratio',
    ):
      _build(**truncation, loss__policy=policy)

  @parameterized.parameters(
    (_NEVER_USED['replay__weights'], 'blocked_inverse_cdf(stratified=False)'),
    (
      'uniform() * never_used_first()',
      'private_shards(num_shards=2, stratified=False)',
    ),
  )
  def test_unused_rollouts_first_in_a_draw_with_replacement(
    self, weights, draw
  ):
    with self.assertRaisesRegex(
      ValueError,
      '^replay.draw = .*: must be gumbel_top_k, because replay.weights = .*; '
      'a draw with replacement would repeat',
    ):
      _build(replay__weights=weights, replay__draw=draw)

  @parameterized.parameters('group_standardized(eps=1e-6)', 'leave_one_out()')
  def test_asymre_with_another_baseline(self, advantage):
    with self.assertRaisesRegex(
      ValueError,
      '^loss.advantage = .*: must be group_mean_baseline, because loss.policy',
    ):
      _build(**_ASYMRE, loss__advantage=advantage)

  def test_tba_with_another_baseline(self):
    with self.assertRaisesRegex(
      ValueError,
      '^loss.advantage = .*: must be group_mean_baseline, because loss.policy '
      '= .*; its beta is in units of reward',
    ):
      _build(
        loss__policy='tba(beta=0.1)',
        loss__statistics='mean_reference_log_ratio()',
        loss__advantage='leave_one_out()',
      )

  @parameterized.parameters(
    'behavior_kl(coefficient=0.1)',
    'behavior_kl(coefficient=0.1) + reference_kl(coefficient=0.1)',
  )
  def test_a_penalty_without_a_policy_loss(self, policy):
    with self.assertRaisesRegex(
      ValueError,
      '^loss.policy = .*: must have a loss that reads the advantages beside',
    ):
      _build(loss__policy=policy)

  @parameterized.parameters(
    _ASYMRE,
    {
      'loss__policy': 'tba(beta=0.1)',
      'loss__statistics': 'mean_reference_log_ratio()',
    },
  )
  def test_a_baseline_of_the_generation_with_one_of_the_batch(self, **changes):
    with self.assertRaisesRegex(
      ValueError,
      '^loss.batch_advantage = .*: must be None, because loss.policy = .*; it '
      'needs the mean reward of the group at generation$',
    ):
      _build(**changes, loss__batch_advantage='joint(eps=1e-6)')

  def test_advantages_of_the_batch_for_a_loss_that_ignores_advantages(self):
    with self.assertRaisesRegex(
      ValueError,
      "^loss.batch_advantage = 'joint.*': must be None, because loss.policy "
      r"ignores the advantages \(loss.policy = 'vcpo.*'\)$",
    ):
      _build(
        loss__policy='vcpo(max_ratio=8.0)',
        loss__statistics='optimal_baseline(max_ratio=8.0)',
        loss__batch_advantage='joint(eps=1e-6)',
      )

  @parameterized.parameters(
    'fresh_filled()',
    'fresh_anchored(replay_fraction=0.5, warmup_steps=0)',
    'fresh_anchored_groups(replay_fraction=0.5, warmup_steps=0)',
  )
  def test_the_most_varied_slots_where_the_first_draws_count(self, compose):
    with self.assertRaisesRegex(
      ValueError,
      '^replay.compose = .*: must be same_prompt or .*, because replay.draw',
    ):
      _build(
        replay__compose=compose,
        replay__draw='most_varied()',
        replay__batch_size=None,
      )


class AllowedTest(parameterized.TestCase):
  @parameterized.parameters(
    {**_NEVER_USED, 'replay__draw': 'gumbel_top_k()'},
    {**_ASYMRE, 'loss__advantage': 'group_mean_baseline()'},
    {'sampler__top_p': 0.9, 'loss__policy': 'reinforce()'},
    {'sampler__top_k': 3, **_ASYMRE},
    {'sampler__top_p': 1.0},
    {**_WAIT, 'replay__compose': 'collected(max_batches=9)'},
    {'replay__draw': 'most_varied()'},
    {'loss__batch_advantage': 'apart(eps=1e-6)'},
    {'loss__policy': 'reinforce() + behavior_kl(coefficient=0.1)'},
    {
      'loss__policy': 'behavior_kl(coefficient=0.1) + '
      'replay_rl.rl.losses:reinforce()'
    },
    {'stop': 'max_updates(updates=3)'},
    {'stop': 'level(greedy=1, num_evaluations=1)', 'evaluation__every': 1},
  )
  def test_these_are_not_refused(self, **changes):
    self.assertGreater(_build(**changes).parts.num_rows, 0)

  def test_functions_of_the_user_may_be_combined_with_anything(self):
    def advantage(rewards, group_id):
      return advantages.group_mean_baseline(rewards, group_id)

    experiment = _build({'advantage': advantage}, **_ASYMRE)
    self.assertLen(experiment.users, 1)


if __name__ == '__main__':
  absltest.main()
