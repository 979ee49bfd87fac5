"""Tests of what is built from a configuration."""

import dataclasses
import functools
import pathlib

import jax
import jax.numpy as jnp
from absl.testing import absltest
from absl.testing import parameterized

from replay_rl.run import build
from tests import tiny


class ChoicesTest(parameterized.TestCase):
  @parameterized.parameters(
    ({'replay__weights': 'max_age(limit=-1)'}, 'max_age.*limit=-1 must be'),
    ({'replay__weights': 'newest()'}, 'replay.weights.*newest is not one of'),
    (
      {'replay__keep': 'positive_bias(fraction=1.5)'},
      r'replay.keep.*fraction=1.5 must be in \[0, 1\]',
    ),
    ({'loss__policy': 'token_mean()'}, 'loss.policy.*token_mean is not one of'),
    ({'task': 'addition(num_digits=0, forget_probability=0)'}, 'num_digits'),
    ({'model__num_kv_heads': 3}, 'num_kv_heads=3'),
    (
      {'optimizer__num_microbatches': 3},
      'num_microbatches = 3: must divide the 8',
    ),
  )
  def test_names_field_value_and_what_is_allowed(self, changes, message):
    with self.assertRaisesRegex(ValueError, message):
      build.parts(tiny.config(**changes))


class PartsTest(parameterized.TestCase):
  def test_a_rule_can_be_passed_in(self):
    def second_half_only(state, step):
      del step
      return (jnp.arange(state.is_valid.shape[0]) >= 16).astype(jnp.float32)

    parts = build.parts(tiny.config(), weight_rule=second_half_only)
    rule = parts.compose_fn.keywords['weight_rule']
    self.assertIs(rule, second_half_only)

  def test_the_learning_rate_rises_linearly_and_then_stays(self):
    settings = tiny.config(
      optimizer__learning_rate=0.4, optimizer__warmup_steps=3
    ).optimizer
    rates = [float(build.warmed_up(settings)(step)) for step in range(6)]
    self.assertSequenceAlmostEqual(rates, [0.1, 0.2, 0.3, 0.4, 0.4, 0.4])

  def test_the_base_weights_are_those_of_their_own_seed(self):
    config = tiny.config(
      self.create_tempdir().full_path, warm_start__num_steps=3
    )
    parts = build.parts(config)
    first = build.base_weights(config, parts)
    config.seed = 5
    second = build.base_weights(config, parts)
    self.assertTrue(_equal(first, second))
    config.warm_start.seed = 1
    self.assertFalse(_equal(first, build.base_weights(config, parts)))


def _equal(first, second) -> bool:
  same = jax.tree.map(lambda x, y: bool(jnp.all(x == y)), first, second)
  return functools.reduce(lambda x, y: x and y, jax.tree.leaves(same))


class WarmStartTest(parameterized.TestCase):
  def test_repeats_bit_for_bit_and_is_read_from_the_cache(self):
    cached = tiny.config(
      self.create_tempdir().full_path, warm_start__num_steps=3
    )
    again = dataclasses.replace(
      cached, cache_dir=self.create_tempdir().full_path
    )
    parts = build.parts(cached)
    weights = build.base_weights(cached, parts)
    self.assertTrue(_equal(weights, build.base_weights(again, parts)))
    # Weights that training would not give show that the cache was read.
    broken = parts._replace(logprobs_fn=None)
    self.assertTrue(_equal(weights, build.base_weights(cached, broken)))

  def test_imitates_the_teacher(self):
    config = tiny.config(
      self.create_tempdir().full_path,
      warm_start__num_steps=350,
      task='addition(num_digits=1, forget_probability=0.0)',
    )
    parts = build.parts(config)
    tokens, mask = parts.task.teacher_fn(jax.random.key(1), 256)
    random = parts.init_params_fn(jax.random.key(0))
    losses = []
    for params in (random, build.base_weights(config, parts)):
      logprobs, _ = parts.logprobs_fn(params, tokens)
      losses.append(-float(jnp.sum(logprobs * mask) / jnp.sum(mask)))
    self.assertGreater(losses[0], 3.0)
    self.assertLess(losses[1], 1.2)

  def test_a_damaged_cache_is_made_again_with_a_warning(self):
    folder = self.create_tempdir()
    config = tiny.config(folder.full_path, warm_start__num_steps=3)
    parts = build.parts(config)
    weights = build.base_weights(config, parts)
    (path,) = pathlib.Path(folder.full_path).rglob('*.npz')
    path.write_bytes(path.read_bytes()[:100])
    with self.assertWarnsRegex(UserWarning, 'cannot be read'):
      self.assertTrue(_equal(weights, build.base_weights(config, parts)))

  def test_a_cache_that_cannot_be_written_is_named(self):
    file = self.create_tempfile('file')
    config = tiny.config(file.full_path, warm_start__num_steps=3)
    with self.assertRaisesRegex(ValueError, 'cache_dir = '):
      build.base_weights(config, build.parts(config))


if __name__ == '__main__':
  absltest.main()
