"""Tests of the bounds and the constants of all policy losses."""

import inspect
import itertools

import chex
import jax
import numpy as np
from absl.testing import parameterized

from replay_rl.rl import corrections
from replay_rl.rl import losses
from replay_rl.rl import penalties
from tests.rl import loss_cases


class BoundOfTheLogRatioTest(parameterized.TestCase):
  @parameterized.parameters(*loss_cases.UNBOUNDED)
  def test_no_ratio_gives_an_infinite_loss_or_gradient(self, name):
    for loss_fn, log_ratio, advantage in itertools.product(
      (loss_cases.LOSSES[name], loss_cases.UNBOUNDED[name]),
      (-np.inf, -100.0, 100.0, np.inf),
      (2.0, 0.0, -2.0),
    ):
      batch = loss_cases.one_row([log_ratio, 0.0], advantage)
      token_loss, grads = loss_cases.value_and_grad(loss_fn, batch)
      self.assertTrue(np.isfinite(token_loss.loss).all())
      self.assertTrue(np.isfinite(grads).all())
      # The lead of `vcpo` over its baseline is not zero there.
      if advantage == 0 and name not in ('behavior_kl', 'vcpo'):
        self.assertFalse(token_loss.is_clipped.any())

  @parameterized.product(
    name=[
      'clipped_surrogate',
      'm2po',
      'cispo',
      'truncated_importance_sampling',
      'masked_importance_sampling',
      'icepop',
    ],
    log_ratio=[-100.0, 100.0],
  )
  def test_a_ratio_beyond_e_to_the_20_counts_as_clipped(self, name, log_ratio):
    # The advantage pulls the ratio back to 1, so that M2PO keeps the token.
    advantage = -np.sign(log_ratio)
    token_loss, grads = loss_cases.value_and_grad(
      loss_cases.UNBOUNDED[name],
      loss_cases.one_row([log_ratio, 0.0], advantage),
    )
    weight = np.exp(np.clip(log_ratio, -20.0, 20.0))
    surrogates = ('clipped_surrogate', 'm2po')
    # log pi is -1, and the other token has a ratio of 1.
    loss, other = (-1.0, -1.0) if name in surrogates else (1.0, 1.0)
    np.testing.assert_allclose(
      token_loss.loss, [[0, loss * weight * advantage, other * advantage]], 1e-5
    )
    grad = 0.0 if name in surrogates else -weight * advantage
    np.testing.assert_allclose(grads, [[0.0, grad, -advantage]], 1e-5)
    np.testing.assert_array_equal(token_loss.is_clipped, [[False, True, False]])

  @parameterized.product(name=['gspo', 'topr'], log_ratio=[-50.0, 50.0])
  def test_a_sequence_ratio_beyond_e_to_the_20_counts_as_clipped(
    self, name, log_ratio
  ):
    token_loss, grads = loss_cases.value_and_grad(
      loss_cases.UNBOUNDED[name],
      loss_cases.one_row([log_ratio, log_ratio], -2.0),
    )
    bound = np.clip(log_ratio, -20.0, 20.0)
    if name == 'topr':
      loss, grad = -2 * np.exp(min(bound, 0)), 2 * np.exp(min(bound, 0))
    else:
      loss, grad = 2 * np.exp(bound), 0.0
    np.testing.assert_allclose(token_loss.loss, [[0, loss, loss]], 1e-5)
    np.testing.assert_allclose(grads, [[0, grad, grad]], 1e-5)
    np.testing.assert_array_equal(token_loss.is_clipped, [[False, True, True]])


class ConstantsTest(parameterized.TestCase):
  @parameterized.parameters(
    (losses.clipped_surrogate, {'clip_low': -0.1}, r'clip_low = -0.1'),
    (losses.clipped_surrogate, {'clip_high': -0.1}, r'clip_high = -0.1'),
    (losses.clipped_surrogate, {'dual_clip': 1.0}, r'dual_clip = 1.0'),
    (losses.clipped_surrogate, {'clip_low': None}, r'clip_low = None'),
    (losses.gspo, {'clip_low': np.nan}, r'clip_low = nan'),
    (losses.gspo, {'clip_high': True}, r'clip_high = True'),
    (losses.asymre, {'delta_v': np.inf}, r'delta_v = inf'),
    (
      corrections.truncated_importance_sampling,
      {'max_ratio': 0},
      'max_ratio = 0',
    ),
    (
      corrections.masked_importance_sampling,
      {'max_ratio': 0.9},
      'max_ratio = 0.9',
    ),
    (corrections.icepop, {'lowest': 2, 'highest': 1}, 'lowest = 2'),
    (corrections.icepop, {'lowest': 0.5, 'highest': 0.9}, 'highest = 0.9'),
    (corrections.icepop, {'lowest': 0, 'highest': None}, 'highest = None'),
    (corrections.decoupled_ppo, {'max_ratio': 0}, 'max_ratio = 0'),
    (corrections.a3po, {'clip_low': -1}, 'clip_low = -1'),
    (corrections.a3po, {'max_ratio': '2'}, "max_ratio = '2'"),
    (corrections.exgrpo, {'beta': 0.0}, 'beta = 0.0'),
    (penalties.behavior_kl, {'coefficient': -0.1}, 'coefficient = -0.1'),
    (penalties.reference_kl, {'coefficient': np.inf}, 'coefficient = inf'),
    (penalties.tba, {'beta': True}, 'beta = True'),
    (losses.cispo, {'clip_low': -1.0}, r'clip_low = -1.0'),
    (losses.cispo, {'clip_high': 'no'}, r"clip_high = 'no'"),
    (losses.sat, {'clip_high': np.inf}, r'clip_high = inf'),
    (losses.sat, {'clip_low': -0.1}, r'clip_low = -0.1'),
    (losses.sat, {'exponent': 0}, r'exponent = 0'),
  )
  def test_constants_out_of_range_raise(self, loss_fn, constants, message):
    allowed = {
      losses.clipped_surrogate: dict(
        clip_low=0.2, clip_high=0.2, dual_clip=None
      ),
      losses.gspo: dict(clip_low=0.2, clip_high=0.2),
      losses.cispo: dict(clip_low=0.2, clip_high=0.2),
      losses.sat: dict(clip_low=0.2, clip_high=0.2, exponent=2.0),
      corrections.decoupled_ppo: dict(
        clip_low=0.2, clip_high=0.2, max_ratio=2.0
      ),
      corrections.exgrpo: dict(clip_low=0.2, clip_high=0.2, beta=0.1),
      corrections.a3po: dict(clip_low=0.2, clip_high=0.2, max_ratio=2.0),
    }.get(loss_fn, {})
    with self.assertRaisesRegex(ValueError, f'^{message}: must be '):
      loss_cases.of_arrays(loss_fn, **(allowed | constants))(
        *loss_cases.random_batch()
      )

  @parameterized.parameters(
    (losses.clipped_surrogate, 0.2, 0.3, 3.0),
    (losses.gspo, 0.2, 0.3),
    (losses.cispo, 0.2, 0.3),
    (losses.sat, 0.2, 0.3, 2.0),
    (corrections.truncated_importance_sampling, 2.0),
    (losses.asymre, -0.1),
    (corrections.sequence_truncated_importance_sampling, 2.0),
    (corrections.vcpo, 2.0),
    (corrections.masked_importance_sampling, 2.0),
    (corrections.icepop, 0.8, 2.0),
    (corrections.decoupled_ppo, 0.2, 0.3, 1.5),
    (corrections.a3po, 0.2, 0.3, 1.5),
    (corrections.exgrpo, 0.2, 0.3, 0.5),
    (penalties.reference_kl, 0.5),
    (penalties.behavior_kl, 0.5),
    (penalties.tba, 0.5),
  )
  def test_constants_may_be_traced(self, loss_fn, *values):
    batch = loss_cases.random_batch()
    names = inspect.signature(loss_fn).parameters
    numbers = dict(zip(list(names)[1:], values, strict=True))
    compute = jax.jit(lambda c: loss_cases.of_arrays(loss_fn, **c)(*batch))
    chex.assert_trees_all_close(
      compute(numbers),
      loss_cases.of_arrays(loss_fn, **numbers)(*batch),
      rtol=1e-5,
    )
