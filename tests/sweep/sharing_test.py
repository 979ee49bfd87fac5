"""Tests that cells share programs exactly where these are the same."""

import contextlib
import functools

import jax
import jax.numpy as jnp
import optax
from absl.testing import absltest
from absl.testing import parameterized

from replay_rl import base
from replay_rl.rl import losses
from replay_rl.run import build
from replay_rl.run import maker as maker_lib
from replay_rl.run import placement
from replay_rl.run import programs
from replay_rl.run import state
from replay_rl.sweep import sharing
from tests import tiny


def _experiment(**changes):
  config = tiny.config(**changes)
  return config, build.experiment(config, build.planned_shape(config))


@contextlib.contextmanager
def _programs(config, experiment):
  """Builds the programs of a config, and enters its mesh."""
  mesh, sampler_mesh = placement.meshes_of_run(config, experiment.parts)
  with jax.set_mesh(mesh):
    yield programs.build(
      experiment.parts,
      build.task(config),
      maker_lib.settings_of(config, mesh=mesh, sampler_mesh=sampler_mesh),
    )


def _compiled(**changes) -> str:
  """Returns the text of the programs of a config, before compilation."""
  config, experiment = _experiment(**changes)
  with _programs(config, experiment) as made:
    run = state.shapes_of_run(experiment.parts, config.num_seeds)
    params = jax.tree.map(
      lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype),
      run.learner.params,
    )
    texts = [
      made.jitted['init'].lower(params, run.seed, run.hyper).as_text(),
      made.jitted['cycle'].lower(run, experiment.schedule(0)).as_text(),
      made.jitted['samples'].lower(run).as_text(),
    ]
  return '\n'.join(texts)


@functools.cache
def _unchanged() -> str:
  return _compiled()


class KeyTest(parameterized.TestCase):
  @parameterized.parameters(
    {
      'optimizer__learning_rate': 1e-3,
      'optimizer__max_grad_norm': 2.0,
      'optimizer__warmup_steps': 7,
    },
    {'sampler__temperature': 0.5, 'evaluation__temperature': 0.5},
    {
      'loss__policy': 'clipped_surrogate(clip_low=0.1, clip_high=0.3, '
      'dual_clip=None)'
    },
    {
      **{'seed': 5, 'name': 'other', 'mu': 9.0, 'num_iterations': 9},
      **{'stop': 'max_updates(updates=3)', 'checkpoint__every': 2},
      **{'warm_start__num_steps': 7, 'warm_start__learning_rate': 1e-4},
      **{'logging__samples_every': 3, 'evaluation__every': 2},
    },
  )
  def test_the_same_programs_are_shared(self, **changes):
    self.assertEqual(
      sharing.key(*_experiment(**changes)), sharing.key(*_experiment())
    )
    self.assertEqual(_compiled(**changes), _unchanged())

  @parameterized.parameters(
    {'replay__capacity': 64},
    {'replay__batch_size': 16},
    {'replay__weights': 'recency(half_life=8)'},
    {'replay__draw': 'gumbel_top_k()'},
    {'replay__drop_zero_variance': True},
    {'sampler__num_prompts': 2},
    {'sampler__top_p': 1.0},
    {'evaluation__top_p': 0.5},
    {'sampler__top_k': 3, 'loss__policy': 'reinforce()'},
    {'sampler__weight_lag': 2},
    {'model__d_ff': 16},
    {
      'loss__policy': 'clipped_surrogate(clip_low=0.2, clip_high=0.2, '
      'dual_clip=3.0)'
    },
    {'loss__normalizer': 'constant(tokens_per_row=7)'},
    {'optimizer__microbatch_rows': 4},
    {'optimizer__remat': True},
    {'task': 'addition(num_digits=1, forget_probability=0.1)'},
    {'reward': 'correctness() + truncation_penalty(weight=0.5)'},
    {'num_seeds': 2},
    {'logging__histogram_bins': 5},
    {'logging__age_buckets': (1, 2)},
    {'logging__age_buckets': (1,), 'logging__age_grad_norms': True},
    {'logging__num_samples': 3},
  )
  def test_other_programs_are_not(self, **changes):
    self.assertNotEqual(
      sharing.key(*_experiment(**changes)), sharing.key(*_experiment())
    )

  def test_a_number_that_an_optimizer_starts_from_is_an_input(self):
    def started(learning_rate, *, start: base.Scalar):
      def init(params):
        return {'start': jnp.asarray(start, jnp.float32)}

      def update(updates, state, params=None):
        del params
        return jax.tree.map(lambda x: -state['start'] * x, updates), state

      return optax.GradientTransformation(init, update)

    def states(start):
      config = tiny.config()
      experiment = build.experiment(
        config,
        build.planned_shape(config),
        {'optimizer': functools.partial(started, start=start)},
      )
      with _programs(config, experiment) as made:
        params = experiment.parts.init_params_fn(jax.random.key(0))
        for hyper in (
          experiment.parts.hyper,
          self._with_start(experiment, 9.0),
        ):
          run = made.init(
            params, jnp.zeros((1,), jnp.uint32), state.of_seeds(hyper, 1)
          )
          yield [
            float(leaf[0])
            for leaf in jax.tree.leaves(run.learner.opt_state)
            if leaf.dtype == jnp.float32 and leaf.ndim == 1
          ]

    first, second = states(1.0)
    self.assertIn(1.0, first)
    self.assertIn(9.0, second)

  def _with_start(self, experiment, start):
    hyper = {name: dict(x) for name, x in experiment.parts.hyper.items()}
    hyper['optimizer.transform']['start'] = start
    return hyper

  def test_a_function_of_the_user_is_its_own(self):
    def key(loss):
      config = tiny.config()
      experiment = build.experiment(
        config, build.planned_shape(config), {'loss': loss}
      )
      return sharing.key(config, experiment)

    def one(inputs):
      return losses.reinforce(inputs)

    def other(inputs):
      return losses.reinforce(inputs._replace(logprobs=2 * inputs.logprobs))

    self.assertEqual(key(one), key(one))
    self.assertNotEqual(key(one), key(other))


if __name__ == '__main__':
  absltest.main()
