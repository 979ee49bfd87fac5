"""Tests of replay_rl.rl.gates."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl import base
from replay_rl.rl import gates


def proposal_of(*, norm=1.0, num_updates=0, log_ratios=None, is_valid=None):
  """An update of rows with these log ratios; the last token is padding."""
  log_ratios = np.zeros((2, 2)) if log_ratios is None else np.array(log_ratios)
  num_rows = len(log_ratios)
  logprobs = np.pad(log_ratios, ((0, 0), (0, 1))).astype(np.float32)
  zeros_B = np.zeros(num_rows, np.float32)
  is_padding = np.arange(logprobs.shape[1]) == logprobs.shape[1] - 1
  is_valid_B = np.ones(num_rows, bool) if is_valid is None else is_valid
  is_valid_B = jnp.asarray(is_valid_B)
  rollouts = base.Rollout(
    tokens=np.zeros(logprobs.shape, np.int32),
    loss_mask=jnp.asarray(np.tile(~is_padding, (num_rows, 1))),
    # The padding would change the ratios.
    behavior_logprobs=jnp.asarray(
      -np.arange(num_rows, dtype=np.float32)[:, None] * is_padding
    ),
    rewards=zeros_B,
    advantages=zeros_B,
    group_id=zeros_B.astype(np.int32),
    prompt_id=zeros_B.astype(jnp.uint32),
    rollout_id=zeros_B.astype(jnp.uint32),
    policy_version=zeros_B.astype(jnp.int32),
  )
  return base.Proposal(
    batch=base.Batch(
      rollouts=rollouts,
      slots=np.arange(num_rows, dtype=np.int32),
      is_valid=is_valid_B,
      is_fresh=is_valid_B,
      probs=zeros_B,
      num_eligible=jnp.int32(num_rows),
    ),
    outcome=base.Outcome(
      loss=jnp.zeros(()),
      logprobs=jnp.asarray(logprobs),
      is_clipped=np.zeros(logprobs.shape, bool),
      row_weights=np.ones(num_rows, np.float32),
      grad_norm=jnp.ones(()),
      output_projection_grad_norm=jnp.float32(norm),
    ),
    gradients={},
    step=jnp.int32(7),
    num_updates_since_fresh=jnp.int32(num_updates),
  )


def numbers(verdict):
  return [float(x) for x in verdict[:3]]


class AcceptAllTest(parameterized.TestCase):
  def test_changes_nothing(self):
    gate = gates.accept_all()
    verdict, state = gate.judge(gate.init({}), proposal_of())
    self.assertEqual(numbers(verdict), [True, False, 1.0])
    self.assertIsNone(verdict.gradients)
    self.assertEqual(state, ())


class EssScaledRateTest(parameterized.TestCase):
  @parameterized.parameters(
    # The sequences have weights 1, 2 and 3: the ESS is 36 / (3 * 14) = 0.857.
    (0.9, None, 36 / 42 / 0.9),
    (0.5, None, 1.0),
    # Of the weights 1 and 3: 16 / (2 * 10).
    (1.0, [True, False, True], 0.8),
    (1.0, [False, False, False], 0.0),
  )
  def test_rate_scale_by_hand(self, on_policy_ess, is_valid, expected):
    log_ratios = np.log([[1.0, 1.0], [4.0, 0.5], [1.5, 2.0]])
    proposal = proposal_of(log_ratios=log_ratios, is_valid=is_valid)

    @jax.jit
    def judge(on_policy_ess):
      gate = gates.ess_scaled_rate(on_policy_ess=on_policy_ess)
      return gate.judge(gate.init({}), proposal)

    gate = gates.ess_scaled_rate(on_policy_ess=on_policy_ess)
    for verdict, state in (
      gate.judge(gate.init({}), proposal),
      judge(on_policy_ess),
    ):
      np.testing.assert_allclose(
        numbers(verdict), [True, False, expected], rtol=1e-5
      )
      self.assertEqual(state, ())

  def test_one_huge_ratio_leaves_one_row_that_counts(self):
    gate = gates.ess_scaled_rate(on_policy_ess=1.0)
    for log_ratio in (500.0, np.inf):
      verdict, _ = gate.judge((), proposal_of(log_ratios=[[0.0], [log_ratio]]))
      self.assertEqual(float(verdict.rate_scale), 0.5)

  @parameterized.parameters(0.0, 1.5)
  def test_wrong_constants_raise(self, value):
    with self.assertRaisesRegex(ValueError, r'^on_policy_ess = .*in \(0, 1\]'):
      gates.ess_scaled_rate(on_policy_ess=value)


class StalenessScaledRateTest(parameterized.TestCase):
  @parameterized.parameters(
    # Ages are 7, 5 and 0: their mean is 4.
    (2.0, None, 0.5),
    (4.0, None, 1.0),
    (9.0, None, 1.0),
    # Ages 7 and 0.
    (1.0, [True, False, True], 2 / 7),
    (1.0, [False, False, False], 1.0),
  )
  def test_rate_scale_by_hand(self, free_age, is_valid, expected):
    proposal = proposal_of(log_ratios=np.zeros((3, 1)), is_valid=is_valid)
    rollouts = proposal.batch.rollouts._replace(
      policy_version=jnp.array([0, 2, 7])
    )
    proposal = proposal._replace(
      batch=proposal.batch._replace(rollouts=rollouts)
    )

    def judge(free_age):
      gate = gates.staleness_scaled_rate(free_age=free_age)
      return gate.judge(gate.init({}), proposal)

    for verdict, state in judge(free_age), jax.jit(judge)(free_age):
      np.testing.assert_allclose(numbers(verdict), [True, False, expected])
      self.assertEqual(state, ())

  @parameterized.parameters(0.0, -1.0, np.inf)
  def test_wrong_constants_raise(self, value):
    with self.assertRaisesRegex(ValueError, r'^free_age = .*in \(0, 1e\+09\]'):
      gates.staleness_scaled_rate(free_age=value)


class GradientGateTest(parameterized.TestCase):
  def judged(self, norms_and_updates, *, threshold, window=2, squared=False):
    """The verdicts on updates with these norms, in order, and the state."""
    gate = gates.gradient_gate(
      threshold=threshold, window=window, squared=squared
    )
    judge = jax.jit(gate.judge)
    state, verdicts = gate.init({}), []
    for norm, num_updates in norms_and_updates:
      proposal = proposal_of(norm=norm, num_updates=num_updates)
      verdict, state = judge(state, proposal)
      verdicts.append(numbers(verdict))
    return verdicts, state

  def test_a_surge_is_refused_by_hand(self):
    # The increments 1 and 5 have mean 3 and deviation 2: at the norm 10.8 the
    # increment is 3.8 and z = 0.4.
    norms = [(1.0, 0), (2.0, 1), (7.0, 2), (10.8, 3)]
    accepted = [True, False, 1.0]
    verdicts, state = self.judged(norms, threshold=0.41)
    self.assertEqual(verdicts, [accepted] * 4)
    # The fourth wrote its increment over the first one.
    np.testing.assert_allclose(state.differences, [3.8, 5.0], rtol=1e-5)
    self.assertEqual(int(state.num_differences), 3)

    verdicts, state = self.judged(norms, threshold=0.39)
    self.assertEqual(verdicts, [accepted] * 3 + [[False, True, 1.0]])
    # The refused update left no trace.
    np.testing.assert_allclose(state.differences, [1.0, 5.0])
    self.assertEqual(int(state.num_differences), 2)
    self.assertEqual(float(state.previous_norm), 7.0)

  def test_a_surge_of_the_squared_norm_by_hand(self):
    # The squares 1, 4, 16 and 36 rise by 3, 12 and 20. The mean of the first
    # two is 7.5 and their deviation 4.5: z = 12.5 / 4.5 = 2.778. The norms rise
    # by 1, 2 and 2: z = 1.
    norms = [(1.0, 0), (2.0, 1), (4.0, 2), (6.0, 3)]
    accepted, refused = [True, False, 1.0], [False, True, 1.0]
    for squared, z in ((True, 12.5 / 4.5), (False, 1.0)):
      for threshold, last in ((z + 0.01, accepted), (z - 0.01, refused)):
        verdicts, state = self.judged(
          norms, threshold=threshold, squared=squared
        )
        self.assertEqual(verdicts, [accepted] * 3 + [last])
      before = ([3.0, 12.0], 16.0) if squared else ([1.0, 2.0], 4.0)
      np.testing.assert_allclose(state.differences, before[0], rtol=1e-6)
      np.testing.assert_allclose(state.previous_norm, before[1], rtol=1e-6)

  def test_the_first_update_after_generation_is_accepted(self):
    norms = [(1.0, 0), (2.0, 1), (5.0, 2), (70.0, 0)]
    verdicts, _ = self.judged(norms, threshold=0.1)
    self.assertEqual(verdicts[-1], [True, False, 1.0])

  def test_a_window_that_is_not_full_accepts(self):
    norms = [(1.0, 0), (2.0, 1), (5.0, 2), (70.0, 3)]
    verdicts, state = self.judged(norms, threshold=0.1, window=3)
    self.assertEqual(verdicts[-1], [True, False, 1.0])
    np.testing.assert_allclose(state.differences, [1.0, 3.0, 65.0])

  def test_an_infinite_threshold_accepts_any_surge(self):
    norms = [(1.0, 0), (1.0, 1), (1.0, 2), (3e38, 3), (np.inf, 4)]
    verdicts, _ = self.judged(norms, threshold=jnp.inf)
    self.assertEqual(verdicts, [[True, False, 1.0]] * 5)

  def test_a_threshold_may_be_traced(self):
    state = gates.GradientGateState(
      jnp.array([1.0, 5.0]), jnp.int32(2), jnp.float32(7.0)
    )

    @jax.jit
    def is_accepted(threshold):
      gate = gates.gradient_gate(threshold=threshold, window=2, squared=False)
      proposal = proposal_of(norm=10.8, num_updates=1)
      return gate.judge(state, proposal)[0].is_accepted

    self.assertEqual([is_accepted(x) for x in (0.39, 0.41)], [False, True])

  @parameterized.parameters(
    ({'threshold': -0.1}, r'threshold = -0.1: must be in \[0, in'),
    ({'window': 1}, r'window = 1: must be in \[2, inf\)'),
    ({'window': 2.0}, 'window = 2.0: must be of type int'),
    ({'squared': 1}, 'squared = 1: must be of type bool'),
  )
  def test_wrong_constants_raise(self, constants, message):
    with self.assertRaisesRegex(ValueError, f'^{message}'):
      gates.gradient_gate(
        **({'threshold': 0.1, 'window': 2, 'squared': False} | constants)
      )
