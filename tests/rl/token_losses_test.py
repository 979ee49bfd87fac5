"""Tests of replay_rl.rl.token_losses; those of the losses cover the rest."""

import numpy as np
from absl.testing import parameterized

from replay_rl.rl import losses
from replay_rl.rl import penalties
from tests.rl import loss_cases


class StatisticTest(parameterized.TestCase):
  @parameterized.parameters(
    (losses.m2po, 'second_moment_cutoff', {}),
    (losses.bapo, 'lowest_ratio', {}),
    (
      losses.sat,
      'log_ratio_quantile',
      {'clip_low': 0.2, 'clip_high': 0.2, 'exponent': 2.0},
    ),
    (losses.bapo, 'highest_ratio', {}),
    (penalties.tba, 'mean_reference_log_ratio', {'beta': 0.5}),
    (penalties.tba, 'prompt_id', {'beta': 0.5}),
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
