"""Tests of replay_rl.rl.token_losses, and of losses that `+` joins."""

import chex
import numpy as np
from absl.testing import parameterized

from replay_rl import choices
from replay_rl.rl import losses
from replay_rl.rl import penalties
from replay_rl.rl import token_losses
from replay_rl.run import functions
from tests.rl import loss_cases

_CLIPPED = 'clipped_surrogate(clip_low=0.2, clip_high=0.3, dual_clip=None)'
_KL = 'behavior_kl(coefficient=0.5)'
_ICEPOP = 'icepop(lowest=0.9, highest=2.0)'


def _chosen(text):
  choice = choices.choose('loss.policy', text, functions.KINDS['loss'][1])
  return loss_cases.of_arrays(choice.bind(choice.scalars))


class TotalTest(parameterized.TestCase):
  @parameterized.parameters(
    (_CLIPPED, _KL), (_CLIPPED, _KL, 'reinforce()'), (_KL, _KL)
  )
  def test_losses_and_gradients_add_up(self, *texts):
    batch = loss_cases.random_batch()
    actual, grads = loss_cases.value_and_grad(_chosen(' + '.join(texts)), batch)
    terms = [loss_cases.value_and_grad(_chosen(x), batch) for x in texts]
    np.testing.assert_allclose(
      actual.loss, sum(term.loss for term, _ in terms), rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(
      grads, sum(grads for _, grads in terms), rtol=1e-5, atol=1e-6
    )

  def test_a_sum_by_hand(self):
    # At r = 2 and A = 2: -1.3 * 2 without a gradient, and 0.5 (2 - log 2 - 1)
    # with the gradient 0.5.
    loss_cases.check_row(
      _chosen(f'{_CLIPPED} + {_KL}'),
      [np.log(2.0)],
      2.0,
      loss=[-2.6 + 0.5 * (1 - np.log(2.0))],
      grad=[0.5],
      is_clipped=[True],
    )

  def test_a_token_is_clipped_if_one_term_clips_it(self):
    token_loss = _chosen(f'{_CLIPPED} + {_ICEPOP}')(
      *loss_cases.one_row(np.log([1.0, 1.5, 0.5]), 2.0)
    )
    np.testing.assert_array_equal(
      token_loss.is_clipped, [[False, False, True, True]]
    )

  def test_one_loss_is_itself(self):
    inputs = loss_cases.inputs_of(*loss_cases.random_batch())
    chex.assert_trees_all_equal(
      token_losses.total(losses.topr)(inputs), losses.topr(inputs)
    )


class StatisticTest(parameterized.TestCase):
  @parameterized.parameters(
    (losses.m2po, 'second_moment_cutoff', {}),
    (losses.bapo, 'lowest_ratio', {}),
    (losses.bapo, 'highest_ratio', {}),
    (penalties.tba, 'mean_reference_log_ratio', {'beta': 0.5}),
  )
  def test_without_the_statistic_a_loss_raises(self, loss_fn, key, constants):
    name = loss_fn.__name__
    others = dict(loss_cases.STATISTICS)
    del others[key]
    for statistics, message in (
      (None, f'None: must be given for {name}'),
      (others, rf"\['.*'\]: must have '{key}' for {name}"),
      (np.float32(1), rf"\[\]: must have '.*' for {name}"),
    ):
      with self.assertRaisesRegex(
        ValueError, f'^LossInputs.statistics = {message}$'
      ):
        loss_cases.of_arrays(loss_fn, {'statistics': statistics}, **constants)(
          *loss_cases.random_batch()
        )
