"""Tests of the warm start and of its cache."""

import functools
import importlib
import inspect
import pathlib
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl.run import build
from replay_rl.run import warm_start
from replay_rl.tasks import addition
from replay_rl.tasks import countdown
from tests import tiny
from tests.run import tiny_run


def _weights(config):
  experiment = build.experiment(config, build.planned_shape(config))
  return build.base_weights(config, experiment, build.task(config))


def _is_equal(first, second):
  return all(jax.tree.leaves(jax.tree.map(jnp.array_equal, first, second)))


class LoadOrTrainTest(parameterized.TestCase):
  def _config(self):
    return tiny.config(self.create_tempdir().full_path, warm_start__num_steps=3)

  def test_repeats_bit_for_bit_and_is_read_from_the_cache(self):
    config = self._config()
    weights = _weights(config)
    self.assertTrue(_is_equal(weights, _weights(self._config())))
    with mock.patch.object(
      warm_start.logs, 'say', side_effect=AssertionError('trained again')
    ):
      self.assertTrue(_is_equal(weights, _weights(config)))

  def test_imitates_the_teacher(self):
    config = tiny.config(
      self.create_tempdir().full_path,
      warm_start__num_steps=350,
      task='addition(num_digits=1, forget_probability=0.0)',
    )
    parts, task = tiny_run.parts(), build.task(config)
    tokens, mask = task.teacher_fn(jax.random.key(1), 256)
    random = parts.init_params_fn(jax.random.key(0))
    losses = []
    for params in (random, _weights(config)):
      logprobs, _ = parts.bind(parts.hyper).update.logprobs_fn(params, tokens)
      losses.append(-float(jnp.sum(logprobs * mask) / jnp.sum(mask)))
    self.assertGreater(losses[0], 3.0)
    self.assertLess(losses[1], 1.2)

  def test_another_teacher_is_another_input_of_the_same_program(self):
    programs = []
    for probability in (0.25, 0.75):
      config = self._config()
      config.task = f'addition(num_digits=1, forget_probability={probability})'
      with mock.patch.object(
        warm_start.processes, 'aligned', wraps=warm_start.processes.aligned
      ) as aligned:
        weights = _weights(config)
      (program,) = aligned.call_args.args
      hyper = {
        'warm_start': {'learning_rate': 1e-2, 'max_grad_norm': 1.0},
        'warm_start.transform': {
          name: 0.1 for name in ('b1', 'b2', 'eps', 'weight_decay')
        },
        'task': {'forget_probability': 0.0},
      }
      programs.append(program.lower(weights, hyper).as_text())
    self.assertEqual(*programs)

  def test_a_damaged_cache_is_made_again_with_a_warning(self):
    config = self._config()
    weights = _weights(config)
    (path,) = pathlib.Path(config.cache_dir).rglob('*.npz')
    path.write_bytes(path.read_bytes()[:100])
    with self.assertWarnsRegex(UserWarning, 'is trained again: path = '):
      self.assertTrue(_is_equal(weights, _weights(config)))
    path.write_bytes(b'')
    with self.assertWarnsRegex(UserWarning, 'is trained again: path = '):
      self.assertTrue(_is_equal(weights, _weights(config)))

  def test_a_cache_with_other_values_is_made_again_with_a_warning(self):
    config = self._config()
    weights = _weights(config)
    (path,) = pathlib.Path(config.cache_dir).rglob('*.npz')
    with np.load(path) as stored:
      arrays = dict(stored)
    np.savez(path, **(arrays | {'arr_0': arrays['arr_0'] + 1}))
    with self.assertWarnsRegex(UserWarning, 'is trained again: checksum in '):
      self.assertTrue(_is_equal(weights, _weights(config)))

  def test_a_cache_that_cannot_be_written_is_named(self):
    config = self._config()
    config.cache_dir = self.create_tempfile('file').full_path
    with self.assertRaisesRegex(OSError, '^path = .*: must be writable'):
      _weights(config)


class FingerprintTest(parameterized.TestCase):
  def _fingerprint(self, make=None):
    make = make or functools.partial(
      addition.make, num_digits=1, forget_probability=0.5
    )
    return warm_start.fingerprint({'steps': 3}, make())

  def _with_source_of(self, name):
    """Returns the fingerprint after a change of one module's source."""
    changed = importlib.import_module(name)
    source = inspect.getsource

    def edited(thing):
      return source(thing) + '# x\n' * (thing is changed)

    with mock.patch.object(inspect, 'getsource', side_effect=edited):
      return self._fingerprint()

  @parameterized.parameters(
    'replay_rl.lm.layers',
    'replay_rl.lm.rope',
    'replay_rl.lm.scoring',
    'replay_rl.lm.model',
    'replay_rl.rl.losses',
    'replay_rl.rl.optimizers',
    'replay_rl.run.learner',
    'replay_rl.rng',
    'replay_rl.tasks.addition',
    'replay_rl.tasks.task',
  )
  def test_code_that_the_weights_depend_on_has_a_part(self, name):
    self.assertNotEqual(self._with_source_of(name), self._fingerprint())

  @parameterized.parameters(
    'replay_rl.lm.sampler',
    'replay_rl.replay.buffer',
    'replay_rl.rl.gates',
    'replay_rl.run.events',
    'replay_rl.tasks.countdown',
  )
  def test_other_code_has_none(self, name):
    self.assertEqual(self._with_source_of(name), self._fingerprint())

  def test_the_trainer_the_task_and_the_settings_have_a_part(self):
    first = self._fingerprint()
    self.assertEqual(first, self._fingerprint())
    other = functools.partial(
      countdown.make, num_numbers=3, max_number=8, slip_probability=0.5
    )
    self.assertNotEqual(self._fingerprint(other), first)
    task = addition.make(num_digits=1, forget_probability=0.5)
    self.assertNotEqual(warm_start.fingerprint({'steps': 4}, task), first)
    source = inspect.getsource
    with mock.patch.object(
      inspect,
      'getsource',
      side_effect=lambda x: source(x) + '#' * (x is warm_start.train),
    ):
      self.assertNotEqual(self._fingerprint(), first)

  def test_settings_of_the_run_are_not_read_from_the_cache_anew(self):
    config = tiny.config(
      self.create_tempdir().full_path, warm_start__num_steps=3
    )

    def num_cached(**changes):
      _weights(
        tiny.config(config.cache_dir, warm_start__num_steps=3, **changes)
      )
      return len(list(pathlib.Path(config.cache_dir).rglob('*.npz')))

    self.assertEqual(num_cached(), 1)
    for same in (
      {'seed': 3},
      {'optimizer__learning_rate': 0.3},
      {'optimizer__max_grad_norm': 0.1},
      {'loss__policy': 'reinforce()'},
      {'loss__normalizer': 'sequence_mean()'},
      {'sampler__temperature': 0.5},
      {'replay__capacity': 64},
    ):
      self.assertEqual(num_cached(**same), 1, same)
    for number, other in enumerate(
      (
        {'warm_start__learning_rate': 0.3},
        {'warm_start__batch_size': 16},
        {'warm_start__seed': 1},
        {'task': 'addition(num_digits=1, forget_probability=0.25)'},
      ),
      start=2,
    ):
      self.assertEqual(num_cached(**other), number, other)
