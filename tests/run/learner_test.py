"""Tests of the learner."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl.testing import parameterized

from replay_rl import base
from replay_rl.rl import losses
from replay_rl.run import learner
from tests.run import updates


class UpdateTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.parts = updates.make_parts()
    self.params = self.parts.init_params_fn(jax.random.key(0))
    self.rollouts = updates.make_rollouts(self.parts, 8)

  @parameterized.parameters(
    (updates.CLIPPED, losses.token_mean),
    (updates.CLIPPED, losses.sequence_mean),
    (
      functools.partial(losses.gspo, clip_low=0.5, clip_high=0.5),
      functools.partial(losses.constant, tokens_per_row=4.0),
    ),
  )
  def test_any_split_into_microbatches_gives_the_gradient_of_the_batch(
    self, loss_fn, normalizer_fn
  ):
    update = functools.partial(
      updates.update, loss_fn=loss_fn, normalizer_fn=normalizer_fn
    )
    whole, seen, _ = update(self.parts, self.params, self.rollouts)
    for num_microbatches in (2, 4, 8):
      split, seen_split, _ = update(
        self.parts,
        self.params,
        self.rollouts,
        num_microbatches=num_microbatches,
      )
      distance = updates.distance(
        updates.gradient(split), updates.gradient(whole)
      )
      self.assertLess(distance, 1e-6)
      chex.assert_trees_all_close(seen_split, seen, rtol=1e-5, atol=1e-6)

  def test_rows_that_are_not_valid_have_no_part(self):
    is_valid = jnp.arange(8) % 2 == 0
    masked, seen, _ = updates.update(
      self.parts, self.params, self.rollouts, is_valid
    )
    half = jax.tree.map(lambda leaf: leaf[::2], self.rollouts)
    alone, seen_alone, _ = updates.update(self.parts, self.params, half)
    distance = updates.distance(
      updates.gradient(masked), updates.gradient(alone)
    )
    self.assertLess(distance, 1e-6)
    self.assertAlmostEqual(float(seen.loss), float(seen_alone.loss), places=6)

  def test_without_a_valid_row_nothing_is_learned(self):
    update = functools.partial(
      updates.update,
      self.parts,
      self.params,
      self.rollouts,
      optimizer=optax.adam(0.1),
    )
    first, _, status = update()
    self.assertEqual(tuple(map(bool, status[:4])), (True, False, False, False))
    state, seen, status = update(jnp.zeros(8, bool), start=first)
    # Not even by the momentum of the update before.
    chex.assert_trees_all_equal(
      state, first._replace(num_tried=jnp.int32(2), num_empty_in_a_row=1)
    )
    self.assertEqual(float(seen.loss), 0.0)
    self.assertEqual(tuple(map(bool, status[:4])), (False, True, False, False))
    state, _, _ = update(jnp.zeros(8, bool), start=state)
    self.assertEqual(int(state.num_empty_in_a_row), 2)
    # A second update on the same rollouts is not counted.
    state, _, _ = update(
      jnp.zeros(8, bool), start=state, num_updates_since_fresh=1
    )
    self.assertEqual(int(state.num_empty_in_a_row), 2)
    state, _, _ = update(start=state)
    self.assertEqual(int(state.num_empty_in_a_row), 0)
    self.assertEqual((int(state.step), int(state.num_tried)), (2, 5))

  def test_reports_the_loss_and_the_norms_by_the_formula(self):
    state, seen, _ = updates.update(self.parts, self.params, self.rollouts)
    chex.assert_trees_all_close(
      state.params,
      jax.tree.map(jnp.subtract, self.params, updates.gradient(state)),
      atol=1e-7,
    )
    logprobs, _ = jax.jit(updates.make_functions(self.parts).logprobs_fn)(
      self.params, self.rollouts.tokens
    )
    np.testing.assert_allclose(seen.logprobs, logprobs, atol=1e-6)
    mask = np.asarray(self.rollouts.loss_mask)
    ratios = np.exp(logprobs - self.rollouts.behavior_logprobs)
    advantages = np.asarray(self.rollouts.advantages)[:, None]
    surrogate = np.minimum(
      ratios * advantages, np.clip(ratios, 0.8, 1.2) * advantages
    )
    expected = -np.sum(surrogate * mask) / np.sum(mask)
    np.testing.assert_allclose(seen.loss, expected, rtol=1e-5)
    gradient = updates.gradient(state)
    np.testing.assert_allclose(
      seen.grad_norm, optax.tree.norm(gradient), rtol=1e-4
    )

  def test_one_microbatch_is_scored_at_a_time(self):
    score = updates.make_functions(self.parts).logprobs_fn
    for num_microbatches in (1, 2, 4, 8):
      num_rows = set()

      def logprobs_fn(params, tokens, num_rows=num_rows):
        num_rows.add(tokens.shape[0])
        return score(params, tokens)

      updates.update(
        self.parts,
        self.params,
        self.rollouts,
        num_microbatches=num_microbatches,
        logprobs_fn=logprobs_fn,
        statistics_fn=lambda inputs: jnp.sum(inputs.logprobs),
      )
      self.assertEqual(num_rows, {8 // num_microbatches})

  def test_tokens_are_clipped_by_the_rule_and_only_in_valid_rows(self):
    is_valid = np.arange(8) < 5
    state, seen, _ = updates.update(
      self.parts, self.params, self.rollouts, jnp.asarray(is_valid)
    )
    del state
    gap = np.asarray(seen.logprobs - self.rollouts.behavior_logprobs)
    is_good = np.asarray(self.rollouts.advantages)[:, None] > 0
    is_out = np.where(is_good, np.exp(gap) > 1.2, np.exp(gap) < 0.8)
    is_out &= np.asarray(self.rollouts.loss_mask)
    self.assertTrue(is_out[~is_valid].any())
    expected = is_out & is_valid[:, None]
    self.assertTrue(expected.any())
    np.testing.assert_array_equal(seen.is_clipped, expected)

  def test_the_optimizer_gets_the_weights_and_its_own_state(self):
    # The norm is of the gradient, before what the optimizer makes of it.
    optimizer = optax.chain(
      optax.clip_by_global_norm(1e-3),
      optax.add_decayed_weights(0.1),
      optax.sgd(0.5, momentum=0.9),
    )
    update = functools.partial(
      updates.update,
      self.parts,
      self.params,
      self.rollouts,
      optimizer=optimizer,
    )
    first, seen, _ = update()
    plain, _, _ = updates.update(self.parts, self.params, self.rollouts)
    norm = optax.tree.norm(updates.gradient(plain))
    self.assertGreater(float(norm), 1e-2)
    np.testing.assert_allclose(seen.grad_norm, norm, rtol=1e-4)
    direction = jax.tree.map(
      lambda gradient, weight: gradient * 1e-3 / norm + 0.1 * weight,
      updates.gradient(plain),
      self.params,
    )
    expected = jax.tree.map(lambda w, d: w - 0.5 * d, self.params, direction)
    chex.assert_trees_all_close(first.params, expected, atol=1e-6)
    # The second update goes about as far, plus nine tenths of the first.
    second, _, _ = update(start=first)
    moved = jax.tree.map(jnp.subtract, first.params, second.params)
    self.assertAlmostEqual(
      float(optax.tree.norm(moved) / optax.tree.norm(direction)),
      0.5 * (1 + 0.9),
      delta=0.1,
    )

  def test_row_weights_multiply_the_loss_of_a_row(self):
    weights = jnp.arange(8) / 4.0
    functions = updates.make_functions(self.parts)
    start = learner.init(self.params, functions)._replace(step=jnp.int32(2))
    state, outcome, _ = updates.update(
      self.parts,
      self.params,
      self.rollouts,
      probs=weights,
      num_microbatches=2,
      start=start,
      row_weight_fn=lambda batch, step: batch.probs * step,
    )
    # The surrogate is linear in the advantage.
    scaled = self.rollouts._replace(
      advantages=self.rollouts.advantages * weights * 2
    )
    expected, expected_outcome, _ = updates.update(
      self.parts, self.params, scaled
    )
    self.assertLess(
      updates.distance(updates.gradient(state), updates.gradient(expected)),
      1e-6,
    )
    np.testing.assert_allclose(outcome.loss, expected_outcome.loss, rtol=1e-5)
    np.testing.assert_array_equal(outcome.row_weights, 2 * weights)

  def test_the_loss_reads_the_age_of_a_row(self):
    def aged(inputs):
      token_loss = losses.reinforce(inputs)
      return token_loss._replace(
        loss=token_loss.loss * inputs.age[:, None].astype(jnp.float32)
      )

    state, _, _ = updates.update(
      self.parts, self.params, self.rollouts, loss_fn=aged, num_microbatches=4
    )
    # In step 0, a rollout of version -i has age i.
    ages = jnp.arange(8.0)
    scaled = self.rollouts._replace(advantages=self.rollouts.advantages * ages)
    expected, _, _ = updates.update(
      self.parts, self.params, scaled, loss_fn=losses.reinforce
    )
    self.assertLess(
      updates.distance(updates.gradient(state), updates.gradient(expected)),
      1e-6,
    )

  def test_a_loss_that_selects_over_the_batch_is_right_in_microbatches(self):
    def selective(inputs):
      """Drops the tokens above the mean gap of the whole batch."""
      gaps = jnp.abs(inputs.logprobs - inputs.behavior_logprobs)
      is_kept = jax.lax.stop_gradient(
        gaps <= base.required(inputs, 'statistics', 'the loss selective')
      )
      token_loss = losses.reinforce(inputs)
      return base.TokenLoss(
        jnp.where(is_kept, token_loss.loss, 0.0), inputs.loss_mask & ~is_kept
      )

    def mean_gap(inputs):
      gaps = jnp.abs(inputs.logprobs - inputs.behavior_logprobs)
      return jnp.mean(gaps, where=inputs.loss_mask)

    is_valid = jnp.arange(8) != 3
    changes = {'loss_fn': selective, 'statistics_fn': mean_gap}
    whole, seen, _ = updates.update(
      self.parts, self.params, self.rollouts, is_valid, **changes
    )
    share = jnp.mean(seen.is_clipped, where=self.rollouts.loss_mask)
    self.assertBetween(float(share), 0.1, 0.9)
    for num_microbatches in (2, 8):
      split, seen_split, _ = updates.update(
        self.parts,
        self.params,
        self.rollouts,
        is_valid,
        num_microbatches=num_microbatches,
        **changes,
      )
      self.assertLess(
        updates.distance(updates.gradient(split), updates.gradient(whole)), 1e-6
      )
      np.testing.assert_array_equal(seen_split.is_clipped, seen.is_clipped)

    # The negative control: statistics of each microbatch alone select others.
    def alone(inputs):
      return selective(inputs._replace(statistics=mean_gap(inputs)))

    other, _, _ = updates.update(
      self.parts,
      self.params,
      self.rollouts,
      is_valid,
      num_microbatches=8,
      loss_fn=alone,
    )
    self.assertGreater(
      updates.distance(updates.gradient(other), updates.gradient(whole)), 1e-2
    )
    with self.assertRaisesRegex(ValueError, 'LossInputs.statistics = None'):
      updates.update(self.parts, self.params, self.rollouts, loss_fn=selective)

  def test_a_gate_refuses_scales_and_ends_the_reuse(self):
    def gate(is_accepted, ends_reuse=False, rate_scale=1.0):
      def judge(state, proposal):
        verdict = base.Verdict(
          jnp.asarray(is_accepted),
          jnp.asarray(ends_reuse),
          jnp.float32(rate_scale),
        )
        norm = optax.tree.norm(proposal.gradients)
        return verdict, (state[0] + proposal.num_updates_since_fresh, norm)

      return base.Gate(lambda _: (jnp.int32(5), jnp.float32(0)), judge)

    update = functools.partial(
      updates.update,
      self.parts,
      self.params,
      self.rollouts,
      optimizer=optax.adam(1e-2),
    )
    plain, seen, _ = update()
    half, _, status = update(gate=gate(True, rate_scale=0.5))
    self.assertTrue(status.is_applied)
    chex.assert_trees_all_close(
      half.params,
      jax.tree.map(lambda a, b: 0.5 * (a + b), plain.params, self.params),
      atol=1e-7,
    )
    chex.assert_trees_all_equal(half.opt_state, plain.opt_state)
    refused, _, status = update(
      gate=gate(False, ends_reuse=True), num_updates_since_fresh=3, start=None
    )
    self.assertTrue(status.is_refused & status.ends_reuse)
    self.assertFalse(status.is_applied)
    self.assertEqual(int(refused.step), 0)
    self.assertEqual(int(refused.num_tried), 1)
    chex.assert_trees_all_equal(refused.params, self.params)
    self.assertEqual(int(refused.opt_state[0].count), 0)
    # The state of the gate is kept, also where it refuses.
    self.assertEqual(int(refused.gate_state[0]), 5 + 3)
    np.testing.assert_allclose(refused.gate_state[1], seen.grad_norm, rtol=1e-5)
    # It is not shown an empty update.
    empty, _, status = update(
      jnp.zeros(8, bool),
      gate=gate(False, ends_reuse=True),
      num_updates_since_fresh=3,
    )
    self.assertFalse(status.is_refused | status.ends_reuse)
    self.assertEqual(int(empty.gate_state[0]), 5)

  def test_refuses_a_split_that_does_not_divide_the_rows(self):
    with self.assertRaisesRegex(ValueError, 'num_microbatches = 3: .* 8 rows'):
      updates.update(self.parts, self.params, self.rollouts, num_microbatches=3)
