"""Tests of the learner."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl.testing import absltest
from absl.testing import parameterized

from replay_rl import base
from replay_rl.rl import losses
from replay_rl.run import build
from replay_rl.run import learner
from tests import tiny

_CLIPPED = functools.partial(
  losses.clipped_surrogate, clip_low=0.2, clip_high=0.2, dual_clip=None
)


def _rollouts(parts, num_rows):
  rng = np.random.default_rng(0)
  num_tokens = parts.transformer.max_context
  tokens = rng.integers(0, 12, (num_rows, num_tokens)).astype(np.int32)
  # Responses of 1 to 4 tokens after a prompt of 4.
  lengths = rng.integers(1, 5, num_rows)
  columns = np.arange(num_tokens)[None]
  mask = (columns >= 4) & (columns < 4 + lengths[:, None])
  behavior = np.where(mask, rng.normal(-2.5, 0.5, mask.shape), 0.0)
  return base.Rollout(
    tokens=jnp.asarray(tokens),
    loss_mask=jnp.asarray(mask),
    behavior_logprobs=jnp.asarray(behavior, jnp.float32),
    rewards=jnp.zeros(num_rows),
    advantages=jnp.asarray(rng.normal(size=num_rows), jnp.float32),
    group_id=jnp.zeros(num_rows, jnp.int32),
    policy_version=jnp.zeros(num_rows, jnp.int32),
  )


# Keeps the gradient as its state: no rounding by the weights' size.
_OPTIMIZER = optax.chain(optax.trace(decay=0.0), optax.sgd(1.0))


@functools.cache
def _parts(tied=True):
  return build.parts(tiny.config(model__tied_embeddings=tied))


@functools.cache
def _compiled(logprobs_fn, loss_fn, normalizer_fn, num_microbatches):
  return jax.jit(
    functools.partial(
      learner.update,
      logprobs_fn=logprobs_fn,
      loss_fn=loss_fn,
      normalizer_fn=normalizer_fn,
      optimizer=_OPTIMIZER,
      num_microbatches=num_microbatches,
    )
  )


def _update(
  parts,
  params,
  rollouts,
  is_valid=None,
  num_microbatches=1,
  loss_fn=_CLIPPED,
  normalizer_fn=losses.token_mean,
):
  if is_valid is None:
    is_valid = jnp.ones(rollouts.rewards.shape, bool)
  update = _compiled(
    parts.logprobs_fn, loss_fn, normalizer_fn, num_microbatches
  )
  return update(learner.init(params, _OPTIMIZER), rollouts, is_valid)


def _gradient(state):
  return state.opt_state[0].trace


def _distance(tree, reference):
  difference = jax.tree.map(jnp.subtract, tree, reference)
  return float(optax.tree.norm(difference) / optax.tree.norm(reference))


class UpdateTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.parts = _parts()
    self.params = self.parts.init_params_fn(jax.random.key(0))
    self.rollouts = _rollouts(self.parts, 8)

  @parameterized.parameters(
    (_CLIPPED, losses.token_mean),
    (_CLIPPED, losses.sequence_mean),
    (
      functools.partial(losses.gspo, clip_low=0.5, clip_high=0.5),
      functools.partial(losses.constant, tokens_per_row=4.0),
    ),
  )
  def test_any_split_into_microbatches_gives_the_gradient_of_the_batch(
    self, loss_fn, normalizer_fn
  ):
    update = functools.partial(
      _update, loss_fn=loss_fn, normalizer_fn=normalizer_fn
    )
    whole, seen = update(self.parts, self.params, self.rollouts)
    for num_microbatches in (2, 4, 8):
      split, seen_split = update(
        self.parts,
        self.params,
        self.rollouts,
        num_microbatches=num_microbatches,
      )
      distance = _distance(_gradient(split), _gradient(whole))
      self.assertLess(distance, 1e-6)
      chex.assert_trees_all_close(seen_split, seen, rtol=1e-5, atol=1e-6)

  def test_rows_that_are_not_valid_have_no_part(self):
    is_valid = jnp.arange(8) % 2 == 0
    masked, seen = _update(self.parts, self.params, self.rollouts, is_valid)
    half = jax.tree.map(lambda leaf: leaf[::2], self.rollouts)
    alone, seen_alone = _update(self.parts, self.params, half)
    distance = _distance(_gradient(masked), _gradient(alone))
    self.assertLess(distance, 1e-6)
    self.assertAlmostEqual(float(seen.loss), float(seen_alone.loss), places=6)

  def test_without_a_valid_row_nothing_is_learned(self):
    state, seen = _update(
      self.parts, self.params, self.rollouts, jnp.zeros(8, bool)
    )
    chex.assert_trees_all_equal(state.params, self.params)
    self.assertEqual(float(seen.loss), 0.0)
    self.assertEqual(int(state.step), 1)

  def test_reports_the_loss_and_the_norms_by_the_formula(self):
    state, seen = _update(self.parts, self.params, self.rollouts)
    chex.assert_trees_all_close(
      state.params,
      jax.tree.map(jnp.subtract, self.params, _gradient(state)),
      atol=1e-7,
    )
    logprobs, _ = jax.jit(self.parts.logprobs_fn)(
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
    gradient = _gradient(state)
    np.testing.assert_allclose(
      seen.grad_norm, optax.tree.norm(gradient), rtol=1e-4
    )

  @parameterized.parameters(True, False)
  def test_the_output_projection_norm_leaves_out_the_input_embedding(
    self, tied
  ):
    parts = _parts(tied)
    params = parts.init_params_fn(jax.random.key(0))
    state, seen = _update(parts, params, self.rollouts)
    gradient = _gradient(state)
    if not tied:
      expected = optax.tree.norm(gradient['unembedding'])
      np.testing.assert_allclose(
        seen.output_projection_grad_norm, expected, rtol=1e-4
      )
      return
    # The rows of tokens that are no input, 12 and more, get no other gradient;
    # the whole norm lies between theirs and that of the embedding.
    found = float(seen.output_projection_grad_norm)
    self.assertGreater(
      found, float(jnp.linalg.norm(gradient['embedding'][12:]))
    )
    untied = dict(params, unembedding=params['embedding'])
    apart = _parts(tied=False)
    _, seen_apart = _update(apart, untied, self.rollouts)
    np.testing.assert_allclose(
      found, seen_apart.output_projection_grad_norm, rtol=1e-5
    )
    self.assertNotAlmostEqual(
      found, float(optax.tree.norm(gradient['embedding'])), places=3
    )

  def test_one_microbatch_is_scored_at_a_time(self):
    for num_microbatches in (1, 2, 4, 8):
      num_rows = set()

      def logprobs_fn(params, tokens, num_rows=num_rows):
        num_rows.add(tokens.shape[0])
        return self.parts.logprobs_fn(params, tokens)

      jax.eval_shape(
        functools.partial(
          learner.update,
          logprobs_fn=logprobs_fn,
          loss_fn=_CLIPPED,
          normalizer_fn=losses.token_mean,
          optimizer=_OPTIMIZER,
          num_microbatches=num_microbatches,
        ),
        learner.init(self.params, _OPTIMIZER),
        self.rollouts,
        jnp.ones(8, bool),
      )
      self.assertEqual(num_rows, {8 // num_microbatches})

  def test_tokens_are_clipped_by_the_rule_and_only_in_valid_rows(self):
    is_valid = np.arange(8) < 5
    state, seen = _update(
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
    update = jax.jit(
      functools.partial(
        learner.update,
        logprobs_fn=self.parts.logprobs_fn,
        loss_fn=_CLIPPED,
        normalizer_fn=losses.token_mean,
        optimizer=optimizer,
        num_microbatches=1,
      )
    )
    is_valid = jnp.ones(8, bool)
    start = learner.init(self.params, optimizer)
    first, seen = update(start, self.rollouts, is_valid)
    plain, _ = _update(self.parts, self.params, self.rollouts)
    norm = optax.tree.norm(_gradient(plain))
    self.assertGreater(float(norm), 1e-2)
    np.testing.assert_allclose(seen.grad_norm, norm, rtol=1e-4)
    direction = jax.tree.map(
      lambda gradient, weight: gradient * 1e-3 / norm + 0.1 * weight,
      _gradient(plain),
      self.params,
    )
    expected = jax.tree.map(lambda w, d: w - 0.5 * d, self.params, direction)
    chex.assert_trees_all_close(first.params, expected, atol=1e-6)
    # The second update goes about as far, plus nine tenths of the first.
    second, _ = update(first, self.rollouts, is_valid)
    moved = jax.tree.map(jnp.subtract, first.params, second.params)
    self.assertAlmostEqual(
      float(optax.tree.norm(moved) / optax.tree.norm(direction)),
      0.5 * (1 + 0.9),
      delta=0.1,
    )

  def test_refuses_a_split_that_does_not_divide_the_rows(self):
    with self.assertRaisesRegex(ValueError, 'num_microbatches = 3: .* 8 rows'):
      _update(self.parts, self.params, self.rollouts, num_microbatches=3)


if __name__ == '__main__':
  absltest.main()
