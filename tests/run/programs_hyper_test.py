"""Tests that other numbers of a config need no other program."""

import functools
import hashlib

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl.run import programs
from replay_rl.run import state
from tests.run import tiny_run

SEEDS = [4, 9, 0, 1]
EVERYTHING = {
  'sampler__top_p': 1.0,
  'replay__compose': 'pure_buffer(rows_in_use=8)',
  'replay__weights': (
    'recency(half_life=8) * max_age(limit=16) * newest(count=32) '
    '* proportional(exponent=0.5)'
  ),
  'replay__keep': 'positive_bias(fraction=0.5)',
  'replay__feedback': 'reweighted_advantage_magnitude()',
  'optimizer__warmup_steps': 2,
  'optimizer__gate': 'gradient_gate(threshold=1e9, window=2, squared=False)',
  'loss__policy': (
    'clipped_surrogate(clip_low=0.2, clip_high=0.2, dual_clip=None)'
  ),
}


# A field of the config, a constant of it, and another value that matters.
CASES = (
  ('sampler', 'temperature', 0.7),
  ('sampler', 'top_p', 0.5),
  ('optimizer', 'learning_rate', 2e-2),
  ('optimizer', 'warmup_steps', 5),
  ('optimizer', 'max_grad_norm', 0.01),
  ('optimizer.transform', 'b1', 0.5),
  ('optimizer.transform', 'b2', 0.5),
  ('optimizer.transform', 'eps', 0.1),
  ('optimizer.transform', 'weight_decay', 0.1),
  ('optimizer.gate', 'threshold', 0.0),
  ('loss.policy', 'clip_low', 0.001),
  ('loss.policy', 'clip_high', 0.001),
  ('replay.compose', 'rows_in_use', 3),
  ('replay.weights', 'recency.half_life', 0.5),
  ('replay.weights', 'max_age.limit', 1.0),
  ('replay.weights', 'newest.count', 10),
  ('replay.weights', 'proportional.exponent', 3.0),
  ('replay.keep', 'fraction', 0.0),
)


def _plus_or_minus(rewards, group_id):
  """Advantages that are never 0, and priorities that are not all the same."""
  del group_id
  return 2.0 * rewards - 0.7


@functools.cache
def _built():
  experiment = tiny_run.experiment({'advantage': _plus_or_minus}, **EVERYTHING)
  settings = tiny_run.settings(num_seeds=len(SEEDS))
  built = programs.build(experiment.parts, tiny_run.task(), settings)
  return experiment, built


def _cycle(hyper, num_iterations=4):
  """Returns the run of all seeds after some cycles."""
  experiment, built = _built()
  run = built.init(
    experiment.parts.init_params_fn(jax.random.key(1)),
    jnp.array(SEEDS, jnp.uint32),
    hyper,
  )
  for iteration in range(num_iterations):
    run, _ = built.cycle(run, experiment.schedule(iteration))
  assert built.jitted['cycle']._cache_size() == 1
  assert built.jitted['init']._cache_size() == 1
  return jax.device_get(run)


def _with(field, name, values):
  """Returns the numbers of all seeds, some of them replaced."""
  hyper = state.of_seeds(_built()[0].parts.hyper, len(SEEDS))
  old = hyper[field][name]
  new = jnp.broadcast_to(jnp.asarray(values, old.dtype), old.shape)
  return {**hyper, field: {**hyper[field], name: new}}


def _seed(tree, index):
  leaves = [leaf[index].tobytes() for leaf in jax.tree.leaves(tree)]
  return hashlib.sha256(b''.join(leaves)).hexdigest()


@functools.cache
def _plain():
  return _cycle(state.of_seeds(_built()[0].parts.hyper, len(SEEDS)))


class HyperTest(parameterized.TestCase):
  def test_three_rates_by_three_half_lives_of_four_seeds_are_one_program(self):
    actual = set()
    for rate in (1e-3, 1e-2, 3e-2):
      for half_life in (0.5, 2.0, 8.0):
        hyper = _with('optimizer', 'learning_rate', rate)
        name = 'recency.half_life'
        weights = hyper['replay.weights']
        weights = {**weights, name: jnp.full_like(weights[name], half_life)}
        run = _cycle({**hyper, 'replay.weights': weights})
        for index in range(len(SEEDS)):
          actual.add(_seed(run.learner.params, index))
    self.assertLen(actual, 9 * len(SEEDS))

  @parameterized.parameters(*CASES)
  def test_each_number_is_an_input_that_matters_to_its_own_seed(
    self, field, name, value
  ):
    plain = _plain()
    old = plain.hyper[field][name]
    # The other seeds keep their number, and so their run, bit for bit.
    run = _cycle(_with(field, name, [value, *old[1:]]))
    self.assertEqual(
      _seed(run._replace(hyper=None), 1), _seed(plain._replace(hyper=None), 1)
    )
    self.assertNotEqual(
      _seed((run.learner.params, run.buffer), 0),
      _seed((plain.learner.params, plain.buffer), 0),
    )

  def test_sampler_and_learner_score_at_the_same_temperature(self):
    experiment, built = _built()
    hyper = _with('sampler', 'temperature', [0.5, 2.0, 0.5, 2.0])
    sampler = {**hyper['sampler'], 'top_p': jnp.ones(len(SEEDS))}
    run = built.init(
      experiment.parts.init_params_fn(jax.random.key(1)),
      jnp.array(SEEDS, jnp.uint32),
      {**hyper, 'sampler': sampler},
    )
    _, measured = built.cycle(run, experiment.schedule(0))
    gap = tiny_run.numbers(measured)['sampler_learner_gap']
    self.assertLess(gap.max(), 1e-5)

  def test_no_number_of_the_config_is_left_out(self):
    hyper = _built()[0].parts.hyper
    self.assertEqual(
      {(field, name) for field, names in hyper.items() for name in names},
      # Those of an evaluation, which changes no run: evaluation_test.py.
      {(field, name) for field, name, _ in CASES}
      | {('evaluation', 'temperature')},
    )

  def test_they_are_the_numbers_that_the_config_would_bind(self):
    # The run of a config that has the number is the run that is given it.
    changes = EVERYTHING | {'optimizer__learning_rate': 3e-2}
    parts = tiny_run.experiment({'advantage': _plus_or_minus}, **changes).parts
    self.assertEqual(parts.hyper['optimizer']['learning_rate'], 3e-2)
    given = _with('optimizer', 'learning_rate', 3e-2)
    for one, other in zip(
      jax.tree.leaves(state.of_seeds(parts.hyper, len(SEEDS))),
      jax.tree.leaves(given),
      strict=True,
    ):
      np.testing.assert_array_equal(one, other)
      self.assertEqual(one.dtype, other.dtype)
