"""Tests of the gradients of single rollouts, and of what is read of a run."""

import json
import pathlib

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from replay_rl import base
from replay_rl import train
from replay_rl.plan import run_noise
from replay_rl.run import learner as learner_lib
from replay_rl.run import state
from tests import tiny
from tests.run import tiny_run

_SETTINGS = run_noise.FitSettings(
  step=None,
  loss=None,
  num_fresh=20,
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
  @parameterized.parameters('token_mean()', 'sequence_mean()')
  def test_the_mean_over_rows_is_the_gradient_of_an_update(self, normalizer):
    parts = tiny_run.experiment(loss__normalizer=normalizer).parts
    learner = tiny_run.started(parts, 0).learner
    functions = parts.bind(state.as_arrays(parts.hyper)).update
    rows = _rollouts(6, parts.shape)
    weights_nT = functions.normalizer_fn(jnp.asarray(rows.loss_mask)) * 6
    gradients = jax.jit(
      jax.vmap(
        lambda row, weights: run_noise.row_gradient(
          learner, functions, row, weights
        )
      )
    )(rows, weights_nT)

    def judge(_, proposal):
      accepted = jnp.ones((), bool)
      return base.Verdict(accepted, ~accepted, jnp.ones(())), proposal.gradients

    batch = learner_lib.fresh_batch(
      jax.tree.map(jnp.asarray, rows),
      jnp.arange(6, dtype=jnp.int32),
      jnp.ones(6, bool),
    )
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
        lambda row: run_noise.row_gradient(learner, functions, row, weights_T)
      )(row),
      jax.jit(jax.grad(loss))(learner.params),
      rtol=1e-4,
      atol=1e-6,
    )


class MeasureTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.folder = pathlib.Path(tiny.CACHE) / 'a run [to] measure'
    cls.config = tiny.config(
      num_seeds=2, num_iterations=3, sampler__weight_lag=2
    )
    train.train(cls.config, cls.folder)

  def _files(self):
    return {x: x.read_bytes() for x in self.folder.rglob('*') if x.is_file()}

  def test_what_a_run_holds(self):
    before = self._files()
    run = run_noise.measure(self.folder, _SETTINGS)
    self.assertEqual(self._files(), before)
    self.assertEqual(run.config, self.config)
    self.assertEqual(run.iteration, 3)
    # 16 rollouts in a generation and two updates.
    self.assertEqual(run.fresh_per_update, 8)
    self.assertEqual([x.seed for x in run.seeds], [0, 1])
    for one in run.seeds:
      self.assertEqual(one.learner_step, 6)
      # Two generations of 16 are 20 at least; the newest weights made them.
      np.testing.assert_array_equal(one.fresh.sizes, [4] * 8)
      np.testing.assert_array_equal(one.fresh.ages, [0] * 8)
      # The last two iterations, of weights that were two updates old.
      self.assertEqual(sorted(one.stored.ages), [4] * 4 + [6] * 4)
      self.assertEqual(one.num_dropped, 0)
    self.assertNotEqual(
      run.seeds[0].fresh.sums.tolist(), run.seeds[1].fresh.sums.tolist()
    )
    times = run.times
    for seconds in times.generate, times.remember, times.learn:
      self.assertEqual(seconds.shape, (2,))
      self.assertGreater(seconds.min(), 0)
    self.assertEqual((times.num_generated, times.num_trained), (16, 8))

  def test_an_older_checkpoint_and_another_loss(self):
    own, other = (
      run_noise.measure(
        self.folder, _SETTINGS._replace(step=2, loss=loss)
      ).seeds[0]
      for loss in (None, 'reinforce()')
    )
    self.assertEqual((own.learner_step, other.learner_step), (4, 4))
    # Fresh rollouts have ratio 1, where the two losses have one gradient.
    np.testing.assert_allclose(
      own.fresh.sums, other.fresh.sums, rtol=1e-3, atol=1e-4
    )
    self.assertFalse(
      np.allclose(own.stored.sums, other.stored.sums, rtol=1e-2, atol=1e-3)
    )

  def test_groups_that_are_dropped_are_no_noise(self):
    folder = pathlib.Path(self.create_tempdir().full_path)
    train.train(
      tiny.config(num_iterations=2, replay__drop_zero_variance=True), folder
    )
    (one,) = run_noise.measure(folder, _SETTINGS._replace(num_fresh=64)).seeds
    self.assertGreater(one.num_dropped, 0)
    self.assertEqual(one.fresh.sizes.sum() + one.num_dropped, 64)

  def test_a_gradient_of_the_batch_is_refused(self):
    for name, config in (
      (
        'statistics',
        {
          'loss__policy': 'm2po()',
          'loss__statistics': 'second_moment_cutoff(limit=0.04)',
        },
      ),
      (
        'row_weights',
        {'loss__row_weights': 'per_importance_weights(exponent=0.4)'},
      ),
    ):
      folder = pathlib.Path(self.create_tempdir().full_path)
      train.train(tiny.config(num_iterations=1, **config), folder)
      with self.assertRaisesRegex(ValueError, f'^loss.{name} = .*be None'):
        run_noise.measure(folder, _SETTINGS)

  def test_functions_that_the_config_does_not_name_are_refused(self):
    folder = pathlib.Path(self.create_tempdir().full_path)
    train.train(
      tiny.config(num_iterations=1), folder, advantage=lambda r, g: r - 0.5
    )
    with self.assertRaisesRegex(ValueError, 'must be those that the config'):
      run_noise.measure(folder, _SETTINGS)

  def test_a_config_of_other_code_is_refused(self):
    folder = pathlib.Path(self.create_tempdir().full_path)
    made_of = json.loads((self.folder / 'config.json').read_text())
    made_of['config']['sampler']['beams'] = 2
    del made_of['config']['mu']
    for expected in (r"\['mu'\]", r"\['sampler.beams'\]"):
      (folder / 'config.json').write_text(json.dumps(made_of))
      with self.assertRaisesRegex(ValueError, f'config = {expected}: must be'):
        run_noise.read_config(folder)
      made_of['config']['mu'] = 2.0


if __name__ == '__main__':
  absltest.main()
