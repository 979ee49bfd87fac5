"""Tests of replay_rl.rl.losses."""

import warnings

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl import choices
from replay_rl.rl import losses
from replay_rl.run import functions
from tests.rl import loss_cases

_CLIPPED = 'clipped_surrogate(clip_low=0.2, clip_high=0.3, dual_clip=None)'
_KL = 'behavior_kl(coefficient=0.5)'
_ICEPOP = 'icepop(lowest=0.9, highest=2.0)'


def _chosen(text):
  choice = choices.choose('loss.policy', text, functions.KINDS['loss'][1])
  return loss_cases.of_arrays(choice.bind(choice.scalars))


class HandValuesTest(parameterized.TestCase):
  """Each branch of each loss, at ratios 1, 1.5, 0.5 and 4."""

  LOG_RATIOS = tuple(np.log([1.0, 1.5, 0.5, 4.0]))

  def test_clipped_surrogate_of_a_good_response(self):
    loss_cases.check_row(
      loss_cases.LOSSES['clipped_surrogate'],
      self.LOG_RATIOS,
      2.0,
      loss=[-2.0, -2.6, -1.0, -2.6],
      grad=[-2.0, 0.0, -1.0, 0.0],
      is_clipped=[False, True, False, True],
    )

  def test_clipped_surrogate_of_a_bad_response(self):
    loss_cases.check_row(
      loss_cases.LOSSES['clipped_surrogate'],
      self.LOG_RATIOS,
      -2.0,
      loss=[2.0, 3.0, 1.6, 6.0],
      grad=[2.0, 3.0, 0.0, 0.0],
      is_clipped=[False, False, True, True],
    )

  def test_clipped_surrogate_without_dual_clip_and_lower_bound(self):
    loss_cases.check_row(
      loss_cases.of_arrays(
        losses.clipped_surrogate, clip_low=1.5, clip_high=0.3, dual_clip=None
      ),
      self.LOG_RATIOS,
      -2.0,
      loss=[2.0, 3.0, 1.0, 8.0],
      grad=[2.0, 3.0, 1.0, 8.0],
      is_clipped=[False] * 4,
    )

  @parameterized.parameters(
    # Token ratios 1, 1.5, 0.5 and 4 multiply to 3 = 1.316^4: above 1.3.
    ((1.0, 1.5, 0.5, 4.0), 2.0, 1.3, True),
    ((1.0, 1.5, 0.5, 4.0), -2.0, 3**0.25, False),
    # 0.25 = 0.707^4: below 0.8.
    ((1.0, 1.0, 0.5, 0.5), 2.0, 0.25**0.25, False),
    ((1.0, 1.0, 0.5, 0.5), -2.0, 0.8, True),
  )
  def test_gspo_bounds_the_ratio_of_the_sequence(
    self, ratios, advantage, bounded, is_clipped
  ):
    # Each of the 4 tokens has a quarter of the gradient of 4 tokens.
    loss = -bounded * advantage
    loss_cases.check_row(
      loss_cases.LOSSES['gspo'],
      np.log(ratios),
      advantage,
      loss=[loss] * 4,
      grad=[0.0 if is_clipped else loss] * 4,
      is_clipped=[is_clipped] * 4,
    )

  def test_reinforce(self):
    loss_cases.check_row(
      loss_cases.LOSSES['reinforce'],
      self.LOG_RATIOS,
      2.0,
      loss=[2.0] * 4,
      grad=[-2.0] * 4,
      is_clipped=[False] * 4,
    )

  def test_asymre_raises_every_advantage_where_delta_v_is_negative(self):
    loss_cases.check_row(
      loss_cases.LOSSES['asymre'],
      self.LOG_RATIOS,
      -2.0,
      loss=[-1.9] * 4,
      grad=[1.9] * 4,
      is_clipped=[False] * 4,
    )

  @parameterized.parameters(2.0, -2.0)
  def test_cispo(self, advantage):
    weights = np.array([1.0, 1.3, 0.8, 1.3])
    loss_cases.check_row(
      loss_cases.LOSSES['cispo'],
      self.LOG_RATIOS,
      advantage,
      loss=advantage * weights,
      grad=-advantage * weights,
      is_clipped=[False, True, True, True],
    )

  @parameterized.parameters(
    ((1.0, 1.5, 0.5, 4.0), 2.0, 1.0, False),
    ((1.0, 1.5, 0.5, 4.0), -2.0, 1.0, True),
    ((1.0, 1.0, 0.5, 0.5), 2.0, 1.0, False),
    ((1.0, 1.0, 0.5, 0.5), -2.0, 0.25, False),
  )
  def test_topr_tapers_bad_responses_only(
    self, ratios, advantage, weight, is_clipped
  ):
    loss_cases.check_row(
      loss_cases.LOSSES['topr'],
      np.log(ratios),
      advantage,
      loss=[weight * advantage] * 4,
      grad=[-weight * advantage] * 4,
      is_clipped=[is_clipped] * 4,
    )

  @parameterized.parameters(
    (2.0, [-2.0, -2.6, -1.0, -2.6], [1, 0, 1, 0]),
    (-2.0, [2.0, 3.0, 1.6, 8.0], [1, 1, 0, 1]),
  )
  def test_bapo_has_the_bounds_of_the_statistics(
    self, advantage, loss, has_gradient
  ):
    loss_cases.check_row(
      loss_cases.LOSSES['bapo'],
      self.LOG_RATIOS,
      advantage,
      loss=loss,
      grad=np.multiply(loss, has_gradient),
      is_clipped=np.equal(has_gradient, 0),
    )

  def test_m2po_drops_tokens_above_the_cutoff(self):
    # The squares of the log ratios: 0, 0.0625, 0.0625, 0.1225, 0.1225.
    log_ratios = np.array([0.0, 0.25, -0.25, 0.35, -0.35])
    weights = np.exp(log_ratios)
    for advantage, dropped in [(2.0, 3), (-2.0, 4)]:
      kept = np.arange(5) != dropped
      loss_cases.check_row(
        loss_cases.LOSSES['m2po'],
        log_ratios,
        advantage,
        loss=-advantage * weights * kept,
        grad=-advantage * weights * kept,
        is_clipped=~kept,
      )


class OracleTest(parameterized.TestCase):
  def test_clipped_surrogate_equals_rlax(self):
    with warnings.catch_warnings():
      # Importing rlax imports others that use deprecated parts of JAX.
      warnings.simplefilter('ignore', DeprecationWarning)
      import rlax
    logprobs, behavior_logprobs, advantages, _ = map(
      jnp.array, loss_cases.random_batch()
    )
    loss_mask = jnp.ones(logprobs.shape, bool)
    loss_fn = loss_cases.of_arrays(
      losses.clipped_surrogate, clip_low=0.2, clip_high=0.2, dual_clip=None
    )
    token_loss = loss_fn(logprobs, behavior_logprobs, advantages, loss_mask)
    expected = rlax.clipped_surrogate_pg_loss(
      jnp.exp(logprobs - behavior_logprobs).ravel(),
      jnp.repeat(advantages, logprobs.shape[1]),
      0.2,
    )
    np.testing.assert_allclose(
      jnp.sum(token_loss.loss * losses.token_mean(loss_mask)),
      expected,
      rtol=1e-5,
    )

  @parameterized.product(
    level=['token', 'sequence'], normalizer=list(loss_cases.NORMALIZERS)
  )
  def test_losses_equal_the_formulas_of_trl(self, level, normalizer):
    # trl's GRPOTrainer, written out again in NumPy: importance sampling level
    # 'token' or 'sequence' (GSPO), delta = 3 at the former, and loss types
    # 'dapo', 'grpo' and 'dr_grpo'. trl averages over empty rows, we do not.
    batch = loss_cases.random_batch(has_empty_row=False)
    logprobs, behavior_logprobs, advantages, mask = batch
    log_ratios = (logprobs - behavior_logprobs).astype(np.float64) * mask
    delta = 3.0
    if level == 'sequence':
      lengths = mask.sum(1, keepdims=True)
      log_ratios = log_ratios.sum(1, keepdims=True) / lengths
      delta = np.inf
    coef_1 = np.exp(log_ratios)
    coef_2 = np.clip(coef_1, 0.8, 1.3)
    adv = advantages[:, None]
    per_token = -np.minimum(np.minimum(coef_1, delta) * adv, coef_2 * adv)
    per_token = per_token * mask
    expected = {
      'token_mean': per_token.sum() / mask.sum(),
      'sequence_mean': (per_token.sum(1) / mask.sum(1)).mean(),
      'constant': per_token.sum() / (8 * 6.0),
    }[normalizer]
    is_clipped = ((coef_1 < 0.8) & (adv < 0)) | ((coef_1 > 1.3) & (adv > 0))
    is_clipped |= (coef_1 > delta) & (adv < 0)

    name = {'token': 'clipped_surrogate', 'sequence': 'gspo'}[level]
    token_loss = loss_cases.LOSSES[name](*batch)
    weights = loss_cases.NORMALIZERS[normalizer](mask)
    np.testing.assert_allclose(
      jnp.sum(token_loss.loss * weights), expected, rtol=1e-5
    )
    np.testing.assert_array_equal(token_loss.is_clipped, is_clipped & mask)


class EveryLossTest(parameterized.TestCase):
  @parameterized.parameters(*loss_cases.LOSSES)
  def test_masked_tokens_change_neither_loss_nor_gradient(self, name):
    logprobs, behavior_logprobs, advantages, mask = loss_cases.random_batch()
    expected, expected_grads = loss_cases.value_and_grad(
      loss_cases.LOSSES[name], (logprobs, behavior_logprobs, advantages, mask)
    )
    self.assertTrue((expected.loss[~mask] == 0).all())
    self.assertFalse(expected.is_clipped[~mask].any())
    for in_padding, behavior_in_padding in [
      (np.inf, -np.inf),
      (-np.inf, 0.0),
      (1000.0, 0.0),
    ]:
      actual, grads = loss_cases.value_and_grad(
        loss_cases.LOSSES[name],
        (
          np.where(mask, logprobs, np.float32(in_padding)),
          np.where(mask, behavior_logprobs, np.float32(behavior_in_padding)),
          advantages,
          mask,
        ),
      )
      np.testing.assert_array_equal(actual.loss, expected.loss)
      np.testing.assert_array_equal(actual.is_clipped, expected.is_clipped)
      np.testing.assert_array_equal(grads, expected_grads)
      self.assertTrue((grads[~mask] == 0).all())

  @parameterized.parameters(
    'clipped_surrogate',
    'gspo',
    'm2po',
    'cispo',
    'topr',
    'bapo',
    'sat',
    'truncated_importance_sampling',
    'sequence_truncated_importance_sampling',
    'masked_importance_sampling',
    'icepop',
    'a3po',
  )
  def test_on_policy_gradient_is_that_of_reinforce(self, name):
    logprobs, _, advantages, mask = map(jnp.array, loss_cases.random_batch())

    def gradient(loss_fn):
      weights = losses.sequence_mean(mask)

      def total(x):
        loss = loss_fn(x, logprobs, advantages, mask).loss
        return jnp.sum(weights * loss)

      return jax.jit(jax.grad(total))(logprobs)

    np.testing.assert_allclose(
      gradient(loss_cases.LOSSES[name]),
      gradient(loss_cases.LOSSES['reinforce']),
      rtol=1e-5,
    )

  @parameterized.parameters(*loss_cases.LOSSES)
  def test_a_batch_without_tokens_has_no_loss_and_no_gradient(self, name):
    logprobs, behavior_logprobs, advantages, mask = loss_cases.random_batch()
    empty = (logprobs, behavior_logprobs, advantages, np.zeros_like(mask))
    with jax.debug_nans(True):
      token_loss, grads = loss_cases.value_and_grad(
        loss_cases.LOSSES[name], empty
      )
    np.testing.assert_array_equal(token_loss.loss, 0.0)
    np.testing.assert_array_equal(grads, 0.0)
    self.assertFalse(token_loss.is_clipped.any())

  @parameterized.parameters(*loss_cases.LOSSES)
  def test_microbatches_sum_to_the_whole_batch(self, name):
    batch = loss_cases.random_batch()

    @jax.jit
    def loss_and_grad(logprobs, rest, weights):
      def total(logprobs):
        return jnp.sum(weights * loss_cases.LOSSES[name](logprobs, *rest).loss)

      return jax.value_and_grad(total)(logprobs)

    for normalize in loss_cases.NORMALIZERS.values():
      weights = np.asarray(normalize(batch[3]))
      whole, whole_grads = loss_and_grad(batch[0], batch[1:], weights)
      total, grads = 0.0, []
      for start in range(0, 8, 2):
        rows = [x[start : start + 2] for x in (*batch, weights)]
        part, part_grads = loss_and_grad(rows[0], tuple(rows[1:4]), rows[4])
        total += np.asarray(part)
        grads.append(part_grads)
      np.testing.assert_allclose(total, whole, atol=1e-6)
      np.testing.assert_allclose(np.concatenate(grads), whole_grads, atol=1e-6)

  @parameterized.parameters(*loss_cases.LOSSES)
  def test_jit_and_a_seed_axis_change_nothing(self, name):
    batch = loss_cases.random_batch()
    expected = loss_cases.LOSSES[name](*batch)
    seeds = [np.stack([x, x[::-1]]) for x in batch]
    actual = jax.jit(jax.vmap(loss_cases.LOSSES[name]))(*seeds)
    np.testing.assert_allclose(actual.loss[0], expected.loss, rtol=1e-5)
    np.testing.assert_allclose(actual.loss[1], expected.loss[::-1], rtol=1e-5)
    np.testing.assert_array_equal(actual.is_clipped[0], expected.is_clipped)
    self.assertEqual(actual.loss.dtype, jnp.float32)

  @parameterized.parameters(*loss_cases.LOSSES)
  def test_wrong_inputs_raise(self, name):
    logprobs, behavior_logprobs, advantages, mask = loss_cases.random_batch()
    for message, batch in [
      ('rank', (logprobs[0], behavior_logprobs[0], advantages, mask[0])),
      ('rank', (logprobs, behavior_logprobs, advantages[:, None], mask)),
      ('shape', (logprobs, behavior_logprobs[:, :1], advantages, mask)),
      ('shape', (logprobs, behavior_logprobs, advantages, mask[:, :1])),
      ('shape', (logprobs, behavior_logprobs, advantages[:6], mask)),
      ('type', (logprobs, behavior_logprobs, advantages, logprobs)),
      ('type', (logprobs, behavior_logprobs, mask[:, 0], mask)),
    ]:
      with self.assertRaisesRegex(AssertionError, message):
        loss_cases.LOSSES[name](*batch)


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
      losses.total(losses.topr)(inputs), losses.topr(inputs)
    )
