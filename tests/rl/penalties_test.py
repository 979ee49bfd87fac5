"""Tests of replay_rl.rl.penalties; those of every loss are in losses_test."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl.rl import penalties
from replay_rl.rl import statistics
from tests.rl import loss_cases


def _distributions():
  """Logits of two policies over seven tokens, and a mask of one row of all."""
  rng = np.random.default_rng(0)
  logits, others = jnp.array(rng.normal(size=(2, 7)), jnp.float32)
  return logits, others, jnp.ones((1, 7), bool)


class KlTest(parameterized.TestCase):
  # exp(x) - x - 1 at x = 0, log 2, log 1/2.
  K3 = (0.0, 1 - np.log(2), np.log(2) - 0.5)

  @parameterized.parameters(2.0, 0.0)
  def test_behavior_kl_by_hand(self, advantage):
    loss_cases.check_row(
      loss_cases.LOSSES['behavior_kl'],
      np.log([1.0, 2.0, 0.5]),
      advantage,
      loss=np.multiply(0.5, self.K3),
      grad=[0.0, 0.5, -0.25],  # (r - 1) / 2
      is_clipped=[False] * 3,
    )

  @parameterized.parameters(2.0, 0.0)
  def test_reference_kl_by_hand(self, advantage):
    # log pi is -1, and pi_ref / pi is 1, 2 and 1/2.
    reference = -1.0 + np.log([[1.0, 1.0, 2.0, 0.5]], dtype=np.float32)
    loss_cases.check_row(
      loss_cases.of_arrays(
        penalties.reference_kl,
        {'reference_logprobs': reference},
        coefficient=0.5,
      ),
      [0.3, 0.2, -0.4],  # Not read.
      advantage,
      loss=np.multiply(0.5, self.K3),
      grad=[0.0, -0.5, 0.25],  # (1 - pi_ref / pi) / 2
      is_clipped=[False] * 3,
    )

  def test_the_mean_over_tokens_of_mu_is_the_kl_of_distrax(self):
    with warnings.catch_warnings():
      warnings.simplefilter('ignore', DeprecationWarning)
      import distrax
    logits, behavior_logits, mask = _distributions()
    behavior = jax.nn.log_softmax(behavior_logits)[None]
    loss_fn = loss_cases.of_arrays(penalties.behavior_kl, coefficient=3.0)

    def ours(logits):
      logprobs = jax.nn.log_softmax(logits)[None]
      token_loss = loss_fn(logprobs, behavior, jnp.zeros(1), mask)
      return jnp.sum(jnp.exp(behavior) * token_loss.loss)

    def theirs(logits):
      return 3.0 * distrax.Categorical(behavior_logits).kl_divergence(
        distrax.Categorical(logits)
      )

    for actual, expected in zip(
      jax.value_and_grad(ours)(logits),
      jax.value_and_grad(theirs)(logits),
      strict=True,
    ):
      np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-6)

  def test_the_mean_over_tokens_of_pi_is_the_kl_to_the_reference(self):
    logits, reference_logits, mask = _distributions()
    logprobs = jax.nn.log_softmax(logits)[None]
    reference = jax.nn.log_softmax(reference_logits)[None]
    token_loss = loss_cases.of_arrays(
      penalties.reference_kl,
      {'reference_logprobs': reference},
      coefficient=1.0,
    )(logprobs, logprobs, jnp.zeros(1), mask)
    probs = np.exp(logprobs)
    np.testing.assert_allclose(
      np.sum(probs * token_loss.loss),
      np.sum(probs * (logprobs - reference)),
      rtol=1e-4,
    )

  @parameterized.parameters(-100.0, 100.0)
  def test_a_ratio_beyond_e_to_the_20_counts_as_clipped(self, log_ratio):
    token_loss, grads = loss_cases.value_and_grad(
      loss_cases.LOSSES['behavior_kl'],
      loss_cases.one_row([log_ratio, 0.1], 0.0),
    )
    x = np.clip(log_ratio, -20, 20)
    np.testing.assert_allclose(
      token_loss.loss[0, 1], 0.5 * (np.exp(x) - x - 1), rtol=1e-5
    )
    self.assertEqual(grads[0, 1], 0.0)
    np.testing.assert_array_equal(token_loss.is_clipped, [[False, True, False]])


class TbaTest(parameterized.TestCase):
  def test_by_hand(self):
    # log pi is -1 on the three tokens, l = 3 (-1 + 1.5) = 1.5, the mean is
    # 0.25, and A - 0.5 (1.5 - 0.25) = 1.375.
    loss_cases.check_row(
      loss_cases.LOSSES['tba'],
      [0.3, 0.2, -0.4],
      2.0,
      loss=[1.375] * 3,
      grad=[-1.375] * 3,
      is_clipped=[False] * 3,
    )

  def test_the_gradient_is_that_of_the_trajectory_balance(self):
    # One group: log Z is the mean of r / beta - l over it.
    logprobs, behavior_logprobs, rewards, mask = loss_cases.random_batch(
      has_empty_row=False
    )
    rng = np.random.default_rng(1)
    reference = rng.normal(-1.0, 0.5, logprobs.shape).astype(np.float32)
    beta = 0.5
    inputs = loss_cases.inputs_of(
      *(logprobs, behavior_logprobs, rewards - rewards.mean(), mask),
      {'reference_logprobs': reference},
    )
    whole = statistics.mean_reference_log_ratio(inputs)

    def ours(logprobs):
      token_loss = penalties.tba(
        inputs._replace(logprobs=logprobs, statistics=whole), beta=beta
      )
      return jnp.sum(token_loss.loss) / len(rewards)

    def trajectory_balance(logprobs):
      gaps = jnp.sum(jnp.where(mask, logprobs - reference, 0.0), axis=1)
      log_z = jax.lax.stop_gradient(jnp.mean(rewards / beta - gaps))
      return jnp.mean((log_z + gaps - rewards / beta) ** 2)

    np.testing.assert_allclose(
      2 / beta * jax.jit(jax.grad(ours))(jnp.array(logprobs)),
      jax.jit(jax.grad(trajectory_balance))(jnp.array(logprobs)),
      rtol=1e-4,
      atol=1e-5,
    )


class ReferenceTest(parameterized.TestCase):
  @parameterized.parameters(
    ('reference_kl', {'coefficient': 0.1}), ('tba', {'beta': 0.1})
  )
  def test_without_a_reference_policy_they_raise(self, name, constants):
    with self.assertRaisesRegex(
      ValueError,
      f'^LossInputs.reference_logprobs = None: must be given for {name}$',
    ):
      loss_cases.of_arrays(
        getattr(penalties, name), {'reference_logprobs': None}, **constants
      )(*loss_cases.random_batch())

  @parameterized.parameters(
    ('reference_kl', {'coefficient': 0.5}), ('tba', {'beta': 0.5})
  )
  def test_the_reference_policy_of_padding_changes_nothing(
    self, name, constants
  ):
    batch = loss_cases.random_batch()
    reference = np.full_like(batch[0], loss_cases.REFERENCE)
    expected = loss_cases.value_and_grad(loss_cases.LOSSES[name], batch)
    actual = loss_cases.value_and_grad(
      loss_cases.of_arrays(
        getattr(penalties, name),
        {'reference_logprobs': np.where(batch[3], reference, -np.inf)},
        **constants,
      ),
      batch,
    )
    for one, other in zip(
      jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True
    ):
      np.testing.assert_array_equal(one, other)
