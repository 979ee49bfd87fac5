"""Tests of the gradients of single rollouts, and of what is read of a run."""

import json
import pathlib
from unittest import mock

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from replay_rl import base
from replay_rl import train
from replay_rl.plan import run_noise
from replay_rl.run import build
from replay_rl.run import learner as learner_lib
from replay_rl.run import recorded
from replay_rl.run import state
from replay_rl.run import workdir
from tests import tiny
from tests.plan import measured_run
from tests.run import tiny_run

_SETTINGS = run_noise.FitSettings(
  step=None,
  loss=None,
  num_fresh=150,
  num_directions=4,
  rows_at_once=8,
  num_timings=2,
  seed=0,
)


def _rollouts(num_rows, shape):
  """Returns rollouts with responses of several lengths, and older log-probs."""
  rng = np.random.default_rng(0)
  places = np.arange(shape.num_tokens)[None, :]
  ends = rng.integers(1, shape.max_new_tokens + 1, size=(num_rows, 1))
  mask = (places >= shape.prompt_length) & (places < shape.prompt_length + ends)
  numbers = np.arange(num_rows, dtype=np.int32)
  return base.Rollout(
    tokens=rng.integers(shape.vocab_size, size=mask.shape).astype(np.int32),
    loss_mask=mask,
    behavior_logprobs=np.where(mask, -2.5, 0.0).astype(np.float32),
    rewards=np.zeros(num_rows, np.float32),
    advantages=rng.normal(size=num_rows).astype(np.float32),
    group_id=numbers,
    prompt_id=numbers.astype(np.uint32),
    rollout_id=numbers.astype(np.uint32),
    policy_version=numbers,
  )


class RowGradientTest(parameterized.TestCase):
  @parameterized.parameters(
    ('token_mean()', tiny.config().loss.policy),
    # This loss has another part for rows that are not fresh.
    ('sequence_mean()', 'exgrpo(clip_low=0.2, clip_high=0.2, beta=0.1)'),
  )
  def test_the_mean_over_rows_is_the_gradient_of_an_update(
    self, normalizer, policy
  ):
    parts = tiny_run.experiment(
      loss__normalizer=normalizer, loss__policy=policy
    ).parts
    learner = tiny_run.started(parts, 0).learner
    functions = parts.bind(state.as_arrays(parts.hyper)).update
    rows = _rollouts(6, parts.shape)
    weights_nT = functions.normalizer_fn(jnp.asarray(rows.loss_mask)) * 6
    is_fresh = jnp.arange(6) < 3
    gradients = jax.jit(
      jax.vmap(lambda *row: run_noise.row_gradient(learner, functions, *row))
    )(rows, is_fresh, weights_nT)

    def judge(_, proposal):
      accepted = jnp.ones((), bool)
      return base.Verdict(accepted, ~accepted, jnp.ones(())), proposal.gradients

    batch = learner_lib.fresh_batch(
      jax.tree.map(jnp.asarray, rows),
      jnp.arange(6, dtype=jnp.int32),
      jnp.ones(6, bool),
    )._replace(is_fresh=is_fresh)
    updated, outcome, _ = jax.jit(
      lambda learner: learner_lib.update(
        learner,
        batch,
        functions=functions._replace(gate=base.Gate(tuple, judge)),
        num_updates_since_fresh=0,
        num_microbatches=2,
      )
    )(learner._replace(gate_state=learner.params))
    self.assertTrue(np.any(outcome.is_clipped))  # So the loss is the run's.
    chex.assert_trees_all_close(
      jax.tree.map(lambda leaf: leaf.mean(axis=0), gradients),
      updated.gate_state,
      rtol=1e-4,
      atol=1e-6,
    )

  def test_is_the_derivative_of_the_loss(self):
    parts = tiny_run.experiment(loss__policy='reinforce()').parts
    learner = tiny_run.started(parts, 0).learner
    functions = parts.bind(state.as_arrays(parts.hyper)).update
    row = jax.tree.map(lambda leaf: leaf[2], _rollouts(3, parts.shape))
    weights_T = jnp.linspace(1, 2, parts.shape.num_tokens)

    def loss(params):
      logprobs, _ = functions.logprobs_fn(params, row.tokens[None])
      weights = jnp.where(row.loss_mask, weights_T, 0.0)
      return -row.advantages * jnp.sum(weights * logprobs[0])

    chex.assert_trees_all_close(
      jax.jit(
        lambda row: run_noise.row_gradient(
          learner, functions, row, jnp.array(True), weights_T
        )
      )(row),
      jax.jit(jax.grad(loss))(learner.params),
      rtol=1e-4,
      atol=1e-6,
    )


class MeasureTest(absltest.TestCase):
  def test_what_a_run_holds(self):
    folder = measured_run.folder()
    before = _files(folder)
    run = run_noise.measure(folder, _SETTINGS)
    self.assertEqual(_files(folder), before)
    self.assertEqual(run.config, measured_run.CONFIG)
    self.assertEqual(run.iteration, 3)
    # 16 rollouts in a generation and two updates.
    self.assertEqual(run.fresh_per_update, 8)
    self.assertEqual([x.seed for x in run.seeds], [0, 1])
    for one in run.seeds:
      self.assertEqual(one.learner_step, 6)
      # Ten generations of 16 are 150 at least; the newest weights made them.
      self.assertEqual(set(one.fresh.ages), {0})
      self.assertEqual(set(one.fresh.sizes), {4})
      self.assertEqual((one.fresh.sizes.sum(), one.num_dropped), (160, 0))
      # The weights that sampled were those of an iteration of two updates ago.
      self.assertEqual(set(one.stored.ages), {4, 6})
      self.assertEqual(set(one.stored.sizes), {4})
    self.assertNotEqual(
      run.seeds[0].fresh.squares.tolist(), run.seeds[1].fresh.squares.tolist()
    )
    times = run.times
    for seconds in times.generate, times.remember, times.learn:
      self.assertEqual(seconds.shape, (2,))
      self.assertGreater(seconds.min(), 0)
    self.assertEqual((times.num_generated, times.num_trained), (16, 8))
    own = run.seeds[0]
    with mock.patch.object(run_noise, '_fresh', _without_first_group):
      other = run_noise.measure(
        folder, _SETTINGS._replace(loss='reinforce()')
      ).seeds[0]
    self.assertEqual((other.fresh.sizes.sum(), other.num_dropped), (156, 4))
    # Fresh rollouts have ratio 1, where the two losses have one gradient.
    np.testing.assert_allclose(
      own.fresh.sums[1:], other.fresh.sums, rtol=1e-3, atol=1e-3
    )
    self.assertGreater(np.abs(own.fresh.sums).max(), 0.1)
    self.assertFalse(
      np.allclose(own.stored.sums, other.stored.sums, rtol=1e-2, atol=1e-2)
    )


_FRESH = run_noise._fresh


def _without_first_group(*args):
  """Returns `_fresh` of a run that would not store the first group."""
  run, (rollouts, is_valid) = _FRESH(*args)
  first = rollouts.group_id == rollouts.group_id.min(axis=1, keepdims=True)
  return run, (rollouts, is_valid & ~first)


class RefusalTest(parameterized.TestCase):
  def _recorded(self, functions=None, **changes):
    """Returns a folder with the record of a run, which has not been trained."""
    config = tiny.config(**changes)
    task = build.task(config)
    experiment = build.experiment(config, task.shape, functions)
    made_of = train.record(config, experiment, task)
    folder = pathlib.Path(self.create_tempdir().full_path)
    (folder / workdir.CONFIG).write_text(json.dumps(made_of))
    return folder

  @parameterized.parameters(
    (
      'loss.statistics',
      {
        'loss__policy': 'm2po()',
        'loss__statistics': 'second_moment_cutoff(limit=0.04)',
      },
    ),
    (
      'loss.row_weights',
      {'loss__row_weights': 'per_importance_weights(exponent=0.4)'},
    ),
    (
      'loss.batch_advantage',
      {'loss__batch_advantage': 'joint(eps=1e-6)'},
    ),
  )
  def test_a_gradient_of_the_batch(self, field, changes):
    folder = self._recorded(**changes)
    with self.assertRaisesRegex(ValueError, f'^{field} = .*: must be None'):
      run_noise.measure(folder, _SETTINGS)

  def test_functions_that_the_config_does_not_name(self):
    folder = self._recorded(
      {'advantage': lambda rewards, group_id: rewards - 0.5}
    )
    with self.assertRaisesRegex(ValueError, 'must be those that the config'):
      run_noise.measure(folder, _SETTINGS)

  def test_no_checkpoint(self):
    with self.assertRaisesRegex(ValueError, 'must hold a run with checkpoints'):
      run_noise.measure(self._recorded(), _SETTINGS)

  def test_a_config_of_other_code(self):
    path = self._recorded() / workdir.CONFIG
    made_of = json.loads(path.read_text())
    made_of['config']['sampler']['beams'] = 2
    del made_of['config']['mu']
    for expected in (r"\['mu'\]", r"\['sampler.beams'\]"):
      path.write_text(json.dumps(made_of))
      with self.assertRaisesRegex(ValueError, f'config = {expected}: must be'):
        recorded.read_config(path.parent)
      made_of['config']['mu'] = 2.0


def _files(folder):
  return {x: x.read_bytes() for x in folder.rglob('*') if x.is_file()}


if __name__ == '__main__':
  absltest.main()
