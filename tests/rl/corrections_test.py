"""Tests of replay_rl.rl.corrections; those of every loss are in losses_test."""

import importlib
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl.rl import corrections
from replay_rl.rl import losses
from tests.rl import loss_cases

RATIOS = (1.0, 1.5, 0.5, 4.0)
FOUR = tuple(np.log(RATIOS))
CLIP = {'clip_low': 0.2, 'clip_high': 0.3}


class HandValuesTest(parameterized.TestCase):
  @parameterized.product(
    case=[
      ('truncated_importance_sampling', [1, 1.5, 0.5, 2], [0, 0, 0, 1]),
      ('masked_importance_sampling', [1, 1.5, 0.5, 0], [0, 0, 0, 1]),
      ('icepop', [1, 1.5, 0, 0], [0, 0, 1, 1]),
    ],
    advantage=[2.0, -2.0],
  )
  def test_weights_of_tokens(self, case, advantage):
    name, weights, is_clipped = case
    # log pi is -1.
    loss_cases.check_row(
      loss_cases.LOSSES[name],
      FOUR,
      advantage,
      loss=np.multiply(advantage, weights),
      grad=np.multiply(-advantage, weights),
      is_clipped=np.array(is_clipped, bool),
    )

  def test_the_ends_of_a_band_are_inside(self):
    for loss_fn in (
      loss_cases.of_arrays(corrections.icepop, lowest=1.0, highest=1.0),
      loss_cases.of_arrays(
        corrections.masked_importance_sampling, max_ratio=1.0
      ),
    ):
      batch = loss_cases.one_row([0.0, 0.1], 2.0)
      _, grads = loss_cases.value_and_grad(loss_fn, batch)
      np.testing.assert_array_equal(grads, [[0.0, -2.0, 0.0]])

  @parameterized.parameters(
    # The ratios of the tokens multiply to 3, and to 0.25.
    (RATIOS, 2.0, 2.0, True),
    (RATIOS, -2.0, 2.0, True),
    ((1.0, 1.0, 0.5, 0.5), 2.0, 0.25, False),
    ((1.0, 1.0, 0.5, 0.5), -2.0, 0.25, False),
  )
  def test_the_weight_of_a_sequence(
    self, ratios, advantage, weight, is_clipped
  ):
    loss_cases.check_row(
      loss_cases.LOSSES['sequence_truncated_importance_sampling'],
      np.log(ratios),
      advantage,
      loss=[weight * advantage] * 4,
      grad=[-weight * advantage] * 4,
      is_clipped=[is_clipped] * 4,
    )

  @parameterized.parameters(
    (2.0, [-2, -4.16, -0.5, -2.6], [1, 0, 1, 0], [0, 1, 0, 1]),
    (-2.0, [2, 4.8, 0.8, 8], [1, 1, 0, 1], [0, 1, 1, 0]),
  )
  def test_decoupled_ppo(self, advantage, loss, has_gradient, is_clipped):
    # u is as the ratios elsewhere, and w = pi_prox / mu, truncated at 1.6.
    u, w = np.log(RATIOS), np.log([1.0, 2.0, 0.5, 1.0])
    proximal = np.array([[-1.0, *(-1.0 - u)]], np.float32)
    loss_fn = loss_cases.of_arrays(
      corrections.decoupled_ppo,
      {'proximal_logprobs': proximal},
      max_ratio=1.6,
      **CLIP,
    )
    loss_cases.check_row(
      loss_fn,
      u + w,
      advantage,
      loss=loss,
      grad=np.multiply(loss, has_gradient),
      is_clipped=np.array(is_clipped, bool),
    )

  @parameterized.parameters(
    # At age 2, u and w are both sqrt(r); w is truncated at 1.5.
    (2, 2.0, [-2, -3, -1, -3.9], [1, 1, 1, 0], [0, 0, 0, 1]),
    (2, -2.0, [2, 3, 1.6 * 0.5**0.5, 6], [1, 1, 0, 1], [0, 0, 1, 1]),
    # At age 4, u = r^(1 / 4) is never below 0.8, and w = r^(3 / 4).
    (
      4,
      -2.0,
      [2, 3, 1, 3 * 2**0.5],
      [1, 1, 1, 1],
      [0, 0, 0, 1],
    ),
  )
  def test_a3po(self, age, advantage, loss, has_gradient, is_clipped):
    loss_fn = loss_cases.of_arrays(
      corrections.a3po, {'age': jnp.array([age])}, max_ratio=1.5, **CLIP
    )
    loss_cases.check_row(
      loss_fn,
      FOUR,
      advantage,
      loss=loss,
      grad=np.multiply(loss, has_gradient),
      is_clipped=np.array(is_clipped, bool),
    )


class LimitsTest(parameterized.TestCase):
  @parameterized.parameters('masked_importance_sampling', 'icepop')
  def test_a_band_without_ends_is_plain_importance_weighting(self, name):
    batch = loss_cases.random_batch()
    for actual, expected in zip(
      jax.tree.leaves(loss_cases.UNBOUNDED[name](*batch)),
      jax.tree.leaves(
        loss_cases.UNBOUNDED['truncated_importance_sampling'](*batch)
      ),
      strict=True,
    ):
      np.testing.assert_array_equal(actual, expected)

  def test_a_sequence_of_one_token_is_a_token(self):
    for log_ratio in FOUR:
      batch = loss_cases.one_row([log_ratio], -2.0)
      actual, expected = (
        loss_cases.LOSSES[f'{level}truncated_importance_sampling'](*batch)
        for level in ('sequence_', '')
      )
      np.testing.assert_array_equal(actual.loss, expected.loss)

  @parameterized.parameters(0, 1)
  def test_a3po_of_a_young_row_is_the_clipped_surrogate(self, age):
    batch = loss_cases.random_batch()
    a3po = loss_cases.of_arrays(
      corrections.a3po,
      {'age': jnp.full(8, age)},
      max_ratio=1.0,
      **CLIP,
    )
    clipped = loss_cases.of_arrays(
      losses.clipped_surrogate, dual_clip=None, **CLIP
    )
    for actual, expected in zip(
      jax.tree.leaves(loss_cases.value_and_grad(a3po, batch)),
      jax.tree.leaves(loss_cases.value_and_grad(clipped, batch)),
      strict=True,
    ):
      np.testing.assert_array_equal(actual, expected)

  def test_decoupled_ppo_with_the_policy_of_a3po_is_a3po(self):
    logprobs, behavior_logprobs, advantages, mask = loss_cases.random_batch()
    ages = np.arange(8)
    share = 1 - 1 / np.maximum(ages, 1)[:, None]
    proximal = (1 - share) * behavior_logprobs + share * logprobs
    batch = logprobs, behavior_logprobs, advantages, mask
    decoupled = loss_cases.of_arrays(
      corrections.decoupled_ppo,
      {'proximal_logprobs': proximal.astype(np.float32)},
      max_ratio=1.5,
      **CLIP,
    )
    a3po = loss_cases.of_arrays(
      corrections.a3po, {'age': jnp.array(ages)}, max_ratio=1.5, **CLIP
    )
    for actual, expected in zip(
      jax.tree.leaves(loss_cases.value_and_grad(decoupled, batch)),
      jax.tree.leaves(loss_cases.value_and_grad(a3po, batch)),
      strict=True,
    ):
      np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)

  def test_the_proximal_policy_of_padding_changes_nothing(self):
    batch = loss_cases.random_batch()
    proximal = np.full_like(batch[0], loss_cases.PROXIMAL)
    expected = loss_cases.value_and_grad(
      loss_cases.LOSSES['decoupled_ppo'], batch
    )
    loss_fn = loss_cases.of_arrays(
      corrections.decoupled_ppo,
      {'proximal_logprobs': np.where(batch[3], proximal, -np.inf)},
      max_ratio=1.6,
      **CLIP,
    )
    for actual, value in zip(
      jax.tree.leaves(loss_cases.value_and_grad(loss_fn, batch)),
      jax.tree.leaves(expected),
      strict=True,
    ):
      np.testing.assert_array_equal(actual, value)

  @parameterized.parameters(0, 2)
  def test_a3po_stays_finite(self, age):
    loss_fn = loss_cases.of_arrays(
      corrections.a3po,
      {'age': jnp.array([age])},
      clip_low=1.0,
      clip_high=np.inf,
      max_ratio=np.inf,
    )
    for log_ratio in (-np.inf, -100.0, 100.0, np.inf):
      token_loss, grads = loss_cases.value_and_grad(
        loss_fn, loss_cases.one_row([log_ratio, 0.0], 2.0)
      )
      self.assertTrue(np.isfinite(token_loss.loss).all())
      self.assertTrue(np.isfinite(grads).all())
      np.testing.assert_array_equal(
        token_loss.is_clipped, [[False, True, False]]
      )

  @parameterized.parameters(-100.0, 100.0)
  def test_a_weight_beyond_e_to_the_20_counts_as_clipped(self, log_weight):
    # pi is pi_prox, so the surrogate has no bound.
    token_loss, grads = loss_cases.value_and_grad(
      loss_cases.of_arrays(
        corrections.decoupled_ppo,
        {'proximal_logprobs': np.full((1, 2), -1.0, np.float32)},
        max_ratio=np.inf,
        **CLIP,
      ),
      loss_cases.one_row([log_weight], 2.0),
    )
    weight = np.exp(np.clip(log_weight, -20, 20))
    np.testing.assert_allclose(token_loss.loss, [[0.0, -2 * weight]], 1e-5)
    np.testing.assert_allclose(grads, [[0.0, -2 * weight]], 1e-5)
    np.testing.assert_array_equal(token_loss.is_clipped, [[False, True]])


class OracleTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    # rlax and what it imports use deprecated parts of themselves and of JAX.
    self.enter_context(warnings.catch_warnings())
    for category in (DeprecationWarning, PendingDeprecationWarning):
      warnings.simplefilter('ignore', category)
    self.rlax = importlib.import_module('rlax')

  @parameterized.parameters(
    ('truncated_importance_sampling', lambda r: np.minimum(r, 2.0)),
    ('masked_importance_sampling', lambda r: np.where(r > 2.0, 0.0, r)),
    ('icepop', lambda r: r * ((r > 0.8) & (r < 2.0))),
  )
  def test_gradients_of_logits_equal_weighted_rlax(self, name, weights_of):
    logprobs, behavior_logprobs, advantages, _ = loss_cases.random_batch()
    rng = np.random.default_rng(1)
    num_rows, num_tokens = logprobs.shape
    logits = jnp.array(rng.normal(size=(num_rows, num_tokens, 5)), jnp.float32)
    actions = jnp.array(rng.integers(0, 5, logprobs.shape))
    mask = jnp.ones(logprobs.shape, bool)

    def policy(logits):
      logprobs = jax.nn.log_softmax(logits)
      return jnp.take_along_axis(logprobs, actions[..., None], -1)[..., 0]

    def ours(logits):
      token_loss = loss_cases.LOSSES[name](
        policy(logits), behavior_logprobs, advantages, mask
      )
      return jnp.sum(token_loss.loss * losses.token_mean(mask))

    ratios = np.exp(policy(logits) - behavior_logprobs)
    self.assertTrue((ratios < 0.8).any() and (ratios > 2.0).any())

    def theirs(logits):
      return self.rlax.policy_gradient_loss(
        logits.reshape(-1, 5),
        actions.ravel(),
        jnp.repeat(advantages, num_tokens),
        jnp.array(weights_of(ratios)).ravel(),
      )

    np.testing.assert_allclose(ours(logits), theirs(logits), rtol=1e-5)
    np.testing.assert_allclose(
      jax.jit(jax.grad(ours))(logits),
      jax.jit(jax.grad(theirs))(logits),
      rtol=1e-4,
      atol=1e-7,
    )

  def test_decoupled_ppo_equals_rlax_with_weighted_advantages(self):
    logprobs, behavior_logprobs, advantages, _ = loss_cases.random_batch()
    rng = np.random.default_rng(2)
    proximal = rng.normal(-1.0, 0.5, logprobs.shape).astype(np.float32)
    mask = jnp.ones(logprobs.shape, bool)
    loss_fn = loss_cases.of_arrays(
      corrections.decoupled_ppo,
      {'proximal_logprobs': jnp.array(proximal)},
      clip_low=0.2,
      clip_high=0.2,
      max_ratio=1.5,
    )

    def ours(logprobs):
      token_loss = loss_fn(logprobs, behavior_logprobs, advantages, mask)
      return jnp.mean(token_loss.loss)

    weights = np.minimum(np.exp(proximal - behavior_logprobs), 1.5)

    def theirs(logprobs):
      return self.rlax.clipped_surrogate_pg_loss(
        jnp.exp(logprobs - proximal).ravel(),
        jnp.array(weights * advantages[:, None]).ravel(),
        0.2,
      )

    for actual, expected in zip(
      jax.value_and_grad(ours)(jnp.array(logprobs)),
      jax.value_and_grad(theirs)(jnp.array(logprobs)),
      strict=True,
    ):
      np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-7)


class WrongInputsTest(parameterized.TestCase):
  def test_decoupled_ppo_without_a_proximal_policy_raises(self):
    with self.assertRaisesRegex(
      ValueError,
      '^LossInputs.proximal_logprobs = None: must be given for decoupled_ppo',
    ):
      loss_cases.of_arrays(
        corrections.decoupled_ppo,
        {'proximal_logprobs': None},
        max_ratio=2.0,
        **CLIP,
      )(*loss_cases.random_batch())

  @parameterized.parameters(
    ('decoupled_ppo', 'proximal_logprobs', np.zeros((8, 1), np.float32)),
    ('a3po', 'age', np.zeros((8, 1), np.int32)),
    ('a3po', 'age', np.zeros(8, np.float32)),
  )
  def test_another_shape_or_type_raises(self, name, field, value):
    with self.assertRaisesRegex(AssertionError, 'shape|type'):
      loss_cases.of_arrays(
        getattr(corrections, name), {field: value}, max_ratio=2.0, **CLIP
      )(*loss_cases.random_batch())
