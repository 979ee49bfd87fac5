"""Tests of the log-probabilities that a run computes for its loss alone."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl import base
from replay_rl.run import events
from tests.run import tiny_run

_GRPO = 'clipped_surrogate(clip_low=0.2, clip_high=0.2, dual_clip=None)'
_DECOUPLED = 'decoupled_ppo(clip_low=0.2, clip_high=0.2, max_ratio=2.0)'


def _of_both(inputs, *, of_reference):
  """Minus a policy's log-probabilities, `of_reference` of the reference's."""
  reference_BT = base.required(inputs, 'reference_logprobs', 'the test')
  proximal_BT = base.required(inputs, 'proximal_logprobs', 'the test')
  mixed_BT = of_reference * reference_BT + (1 - of_reference) * proximal_BT
  # The learner's own log-probabilities add a gradient, and no value.
  own_BT = inputs.logprobs - jax.lax.stop_gradient(inputs.logprobs)
  loss_BT = own_BT * inputs.advantages[:, None] - mixed_BT
  return base.TokenLoss(
    jnp.where(inputs.loss_mask, loss_BT, 0.0), inputs.loss_mask & False
  )


@functools.cache
def _history(of_reference):
  """Returns parts, and the states and losses of three cycles of two updates."""
  experiment = tiny_run.experiment(
    {'loss': functools.partial(_of_both, of_reference=of_reference)},
    replay__compose='fresh_only()',
    replay__batch_size=None,
    replay__weights=None,
    replay__draw=None,
    replay__updates_per_iteration=2,
    optimizer__learning_rate=0.05,
    optimizer__warmup_steps=0,
    optimizer__microbatch_rows=5,
  )
  parts = experiment.parts
  actions = events.in_jax(parts, tiny_run.task())
  cycle = jax.jit(
    functools.partial(events.cycle, actions=actions), static_argnums=1
  )
  run, runs, losses = tiny_run.started(parts, seed=3), [], []
  for iteration in range(3):
    run, measured = cycle(run, experiment.schedule(iteration))
    runs.append(run)
    losses.append(tiny_run.numbers(measured)['loss'])
  return parts, runs, losses


def _scored(parts, params, rollouts):
  logprobs_fn = parts.bind(parts.hyper).update.logprobs_fn
  logprobs, _ = logprobs_fn(params, rollouts.tokens)
  return np.where(rollouts.loss_mask, logprobs, 0.0)


def _latest(run, parts):
  """Returns the rollouts of the latest iteration."""
  ids = run.buffer.rollouts.rollout_id
  slots = np.flatnonzero(
    np.asarray(run.buffer.is_valid)
    & (np.asarray(ids) >= int(run.clock.num_rollouts) - parts.num_fresh)
  )
  return jax.tree.map(lambda leaf: leaf[slots], run.buffer.rollouts)


class LossReadsTest(parameterized.TestCase):
  @parameterized.parameters(
    (_GRPO, None, ()),
    (_DECOUPLED, None, ('proximal_logprobs',)),
    (f'{_GRPO} + reference_kl(coefficient=0.1)', None, ('reference_logprobs',)),
    (
      f'{_DECOUPLED} + reference_kl(coefficient=0.1)',
      None,
      ('proximal_logprobs', 'reference_logprobs'),
    ),
    ('tba(beta=0.1)', 'mean_reference_log_ratio()', ('reference_logprobs',)),
  )
  def test_a_run_computes_what_its_loss_asks_for(
    self, policy, statistics, fields
  ):
    experiment = tiny_run.experiment(
      loss__policy=policy,
      loss__statistics=statistics,
      loss__advantage='group_mean_baseline()',
    )
    parts = experiment.parts
    self.assertEqual(parts.loss_reads, frozenset(fields))
    run = jax.eval_shape(lambda: tiny_run.started(parts, seed=0))
    has_reference = 'reference_logprobs' in fields
    self.assertEqual(run.reference_params is not None, has_reference)
    stored = run.buffer.rollouts.reference_logprobs
    self.assertEqual(stored is not None, has_reference)

  def test_reference_logprobs_are_those_of_the_first_weights(self):
    parts, runs, losses = _history(1.0)
    first = tiny_run.started(parts, seed=3).learner.params
    for run, loss in zip(runs, losses, strict=True):
      chex.assert_trees_all_equal(run.reference_params, first)
      rollouts = _latest(run, parts)
      expected = _scored(parts, first, rollouts)
      np.testing.assert_allclose(
        rollouts.reference_logprobs, expected, atol=1e-5
      )
      mean = -expected.sum() / np.sum(rollouts.loss_mask)
      np.testing.assert_allclose(loss, mean, rtol=1e-5)
    # The weights have moved since: the sampler's log-probs are others.
    gap = np.abs(rollouts.reference_logprobs - rollouts.behavior_logprobs)
    self.assertGreater(gap.max(), 0.01)

  def test_proximal_logprobs_are_those_before_the_first_update_of_an_event(
    self,
  ):
    parts, runs, losses = _history(0.0)
    starts = [tiny_run.started(parts, seed=3), *runs[:-1]]
    for before, run, loss in zip(starts, runs, losses, strict=True):
      rollouts = _latest(run, parts)
      # Both updates have the same rows, so their losses are equal.
      expected = _scored(parts, before.learner.params, rollouts)
      mean = -expected.sum() / np.sum(rollouts.loss_mask)
      np.testing.assert_allclose(loss, mean, rtol=1e-5)
      moved = _scored(parts, run.learner.params, rollouts)
      self.assertGreater(np.abs(moved - expected).max(), 0.01)
