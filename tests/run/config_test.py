"""Tests of the checks of a configuration."""

import dataclasses
import functools
import math
from typing import Any

from absl.testing import absltest
from absl.testing import parameterized

from replay_rl import constants
from replay_rl.configs import countdown
from replay_rl.configs import math_llama3_2_3b
from replay_rl.configs import math_qwen2_5_7b
from replay_rl.configs import models
from replay_rl.run import config as config_lib
from replay_rl.run import rules

_ROPE = {
  'factor': 2.0,
  'low_freq_factor': 2.0,
  'high_freq_factor': 4.0,
  'original_max_context': 2,
}


def _changed(config: config_lib.Config, changes) -> config_lib.Config:
  """Returns the config, with `{'section.field': value}` changed."""
  for path, value in changes.items():
    *sections, field = path.split('.')
    owner = functools.reduce(getattr, sections, config)
    assert hasattr(owner, field), path
    setattr(owner, field, value)
  return config


def _sections(settings: Any) -> list[Any]:
  """Returns a config and all dataclasses in it."""
  values = (getattr(settings, f.name) for f in dataclasses.fields(settings))
  inner = [value for value in values if dataclasses.is_dataclass(value)]
  return [settings, *(part for one in inner for part in _sections(one))]


class FieldsTest(parameterized.TestCase):
  @parameterized.parameters(
    ('seed', -1, 'be in [0, 4294967295]'),
    ('seed', 2**32, 'be in [0, 4294967295]'),
    ('warm_start.seed', 99999999999, 'be in [0, 4294967295]'),
    ('evaluation.num_prompts', 10**11, 'fit a 32-bit number'),
    ('checkpoint.keep', 2**31, 'fit a 32-bit number'),
    ('name', 'a\0', 'be text without NUL and lone surrogates'),
    ('cache_dir', '\ud800', 'be text without NUL and lone surrogates'),
    ('num_iterations', 1.5, 'be of type int'),
    ('num_iterations', 0, 'be in [1, inf)'),
    ('name', None, 'be of type str'),
    ('vmap_seeds', 1, 'be of type bool'),
    ('mu', math.nan, 'be in [0, inf)'),
    ('mu', math.inf, 'be in [0, inf)'),
    ('sampler.group_size', 1, 'be in [2, inf)'),
    *(
      ('sampler.temperature', value, 'be in [0.001, 1000]')
      for value in (0, 1e-30, 1001, math.inf, math.nan)
    ),
    ('sampler.temperature', 1e-39, 'fit a 32-bit number'),
    ('sampler.top_k', 'a', 'be of type int or None'),
    ('sampler.top_k', 0, 'be in [1, inf)'),
    ('sampler.top_p', 1.5, 'be in (0, 1]'),
    ('sampler.num_slots', 0, 'be in [1, inf)'),
    ('sampler.num_distinct_prompts', 0, 'be in [1, inf)'),
    ('replay.num_prompts', 0, 'be in [1, inf)'),
    ('replay.batch_size', True, 'be of type int or None'),
    ('replay.updates_per_iteration', 0.0, 'be in (0, inf)'),
    ('replay.updates_per_iteration', 10**400, 'fit a 32-bit number'),
    ('replay.weights', 3, 'be of type str or None'),
    ('optimizer.learning_rate', 1e39, 'fit a 32-bit number'),
    ('optimizer.learning_rate', 1e30, 'be in [0, 100]'),
    ('warm_start.learning_rate', math.inf, 'be in [0, 100]'),
    ('optimizer.max_grad_norm', 0, 'be in [1e-06, inf]'),
    ('optimizer.max_grad_norm', 1e-30, 'be in [1e-06, inf]'),
    ('optimizer.max_grad_norm', math.nan, 'be in [1e-06, inf]'),
    ('logging.histogram_bins', 65537, 'be in [1, 65536]'),
    ('logging.age_buckets', 3, 'be of type tuple or None'),
    *(
      (
        'logging.age_buckets',
        value,
        'be None or at most 32 rising whole numbers from 1 to 2147483647',
      )
      for value in (
        *((0, 1), (2, 1), (1, 1), (1, 2.0), (True, 2), ('1',), (2**31,)),
        tuple(range(1, 34)),
      )
    ),
    ('evaluation.temperature', 0.0, 'be in [0.001, 1000]'),
    ('evaluation.top_p', 0.0, 'be in (0, 1]'),
    ('model.rope_theta', math.nan, 'be in [1, 1e+15]'),
    ('model.rope_theta', 1e-30, 'be in [1, 1e+15]'),
    ('model.norm_eps', 1e-30, 'be in [1e-12, 1]'),
    ('model.norm_eps', 2.0, 'be in [1e-12, 1]'),
    ('model.head_dim', 65538, 'be in [1, 65536]'),
    ('optimizer.logits_chunk', 0, 'be in [1, inf)'),
    ('model.d_model', -8, 'be in [1, inf)'),
    ('model.qk_norm', 1, 'be of type bool or None'),
    ('mesh.shape', None, 'be of type dict'),
    ('sampler', {'num_prompts': 4}, 'be of type Sampler'),
    ('text', 'x', 'be of type Text or None'),
  )
  def test_a_wrong_value_is_answered_with_what_is_allowed(
    self, name, value, allowed
  ):
    config = _changed(countdown.get_config(), {name: value})
    with self.assertRaisesWithLiteralMatch(
      ValueError, f'{name} = {constants.shown(value)}: must {allowed}'
    ):
      rules.validate(config)

  @parameterized.parameters((None,), ((),))
  def test_a_norm_by_age_needs_buckets(self, edges):
    changes = {'logging.age_buckets': edges, 'logging.age_grad_norms': True}
    with self.assertRaisesWithLiteralMatch(
      ValueError,
      'logging.age_grad_norms = True: must be False where logging.age_buckets '
      f'= {edges}',
    ):
      rules.validate(_changed(countdown.get_config(), changes))

  @parameterized.parameters(
    (0, 'in [1, 9e+18]'),
    (2**64, 'in [1, 9e+18]'),
    (10**400, 'in [1, 9e+18]'),
    (1.5, 'of type int'),
    (True, 'of type int'),
  )
  def test_a_limit_of_memory_is_bytes(self, limit, allowed):
    config = math_qwen2_5_7b.get_config()
    config.text.memory_limit = 2**40
    rules.validate(config)
    config.text.memory_limit = limit
    with self.assertRaises(ValueError) as raised:
      rules.validate(config)
    self.assertStartsWith(str(raised.exception), 'text.memory_limit = ')
    self.assertEndsWith(str(raised.exception), f': must be {allowed}')

  def test_a_gradient_may_be_left_as_it_is(self):
    rules.validate(
      _changed(countdown.get_config(), {'optimizer.max_grad_norm': math.inf})
    )

  def test_every_number_has_a_range(self):
    for settings in _sections(math_qwen2_5_7b.get_config()):
      for name, constant in constants.of_function(type(settings)).items():
        self.assertNotEmpty(constant.types, name)  # Else nothing is checked.
        if {int, float} & {*constant.types}:
          self.assertIsNotNone(constant.interval, name)

  def test_has_at_most_71_fields_beside_those_of_model_and_text(self):
    fields = config_lib.flatten(countdown.get_config())
    fields = [name for name in fields if not name.startswith('model.')]
    self.assertLessEqual(len(fields), 71)


class RulesTest(parameterized.TestCase):
  @parameterized.parameters(
    (
      {'replay.capacity': 495},
      'replay.capacity = 495: must be at least 496, the rollouts of an '
      'iteration (sampler.num_prompts = 62 x sampler.group_size = 8)',
    ),
    (
      {'replay.batch_size': 1985},
      'replay.capacity = 1984: must be at least replay.batch_size = 1985',
    ),
    (
      {'replay.num_prompts': 61},
      'replay.num_prompts = 61: must be at least sampler.num_prompts = 62, '
      'those of a generation',
    ),
    (
      {'sampler.weight_lag': 3},
      'sampler.weight_lag = 3: must be 0 or a multiple of '
      'replay.updates_per_iteration = 2, so that it is a whole number of '
      'iterations',
    ),
    (
      {'sampler.weight_lag': 4, 'replay.updates_per_iteration': None},
      'sampler.weight_lag = 4: must be 0 or a multiple of '
      'replay.updates_per_iteration = None',
    ),
    (
      {'sampler.weight_lag': 4, 'replay.updates_per_iteration': 2.5},
      'sampler.weight_lag = 4: must be 0 or a multiple of '
      'replay.updates_per_iteration = 2.5, so that it is a whole number of '
      'iterations',
    ),
    (
      {'warm_start.warmup_steps': 400},
      'warm_start.warmup_steps = 400: must be below warm_start.num_steps = 400',
    ),
    ({'cache_dir': ''}, "cache_dir = '': must name a folder"),
    ({'model.checkpoint': ''}, "model.checkpoint = '': must name a folder"),
    (
      {'mesh.buffer_memory': 'disk'},
      "mesh.buffer_memory = 'disk': must be one of ('device', 'pinned_host')",
    ),
    (
      {'mesh.buffer_memory': 'pinned_host'},
      "mesh.buffer_memory = 'pinned_host': must be 'device' for num_seeds = 4, "
      'because a program over seeds moves the buffer',
    ),
    ({'task': 'problems()'}, "text = None: must be given for task = 'problems"),
    (
      {'model.checkpoint': 'x'},
      "warm_start.num_steps = 400: must be 0 where model.checkpoint = 'x'",
    ),
    (
      {'model.d_ff': None, 'model.qk_norm': None},
      'model.d_ff, model.qk_norm = None: must be given where model.checkpoint '
      '= None',
    ),
    (
      {'model.rope_scaling': {'factor': 2.0}},
      "model.rope_scaling = {'factor': 2.0}: must have numbers in [0.001, "
      '1000000000] for factor, low_freq_factor, high_freq_factor, '
      'original_max_context, and a low_freq_factor below high_freq_factor',
    ),
    (
      {'model.rope_scaling': _ROPE | {'factor': 0.0}},
      "model.rope_scaling = {'factor': 0.0,",
    ),
    (
      {'model.rope_scaling': _ROPE | {'factor': math.nan}},
      "model.rope_scaling = {'factor': nan,",
    ),
    (
      {'model.rope_scaling': _ROPE | {'factor': True}},
      "model.rope_scaling = {'factor': True,",
    ),
    (
      {'model.rope_scaling': _ROPE | {'factor': 10**400}},
      "model.rope_scaling = {'factor': 1000",
    ),
    (
      {'model.rope_scaling': _ROPE | {'high_freq_factor': 2.0}},
      "model.rope_scaling = {'factor': 2.0,",
    ),
    (
      {'seed': 2**32 - 4, 'num_seeds': 5},
      'seed = 4294967292: must be at most 4294967291, because the last of '
      'num_seeds = 5 seeds is a uint32',
    ),
    (
      {'evaluation.num_prompts': 2**28, 'evaluation.num_samples': 8},
      'evaluation.num_prompts = 268435456: must be at most 268435455, so that '
      'with evaluation.num_samples = 8 the responses fit an int32',
    ),
    (
      {'num_iterations': 9, 'replay.updates_per_iteration': 0.1},
      'replay.updates_per_iteration = 0.1: must give 1 to 2147483647 updates '
      'in num_iterations = 9',
    ),
    (
      {'num_iterations': 2**30, 'replay.updates_per_iteration': 2},
      'replay.updates_per_iteration = 2: must give 1 to 2147483647 updates ',
    ),
    (
      {
        'num_iterations': 10**8,
        'replay.updates_per_iteration': 1e-7,
        'sampler.weight_lag': 215,
      },
      'sampler.weight_lag = 215: must be at most 2147483647 iterations of '
      'replay.updates_per_iteration = 1e-07',
    ),
  )
  def test_of_a_run_without_text(self, changes, message):
    with self.assertRaises(ValueError) as raised:
      rules.validate(_changed(countdown.get_config(), changes))
    self.assertStartsWith(str(raised.exception), message)

  @parameterized.parameters(
    ({'task': 'addition()'}, "must be None for task = 'addition()'"),
    (
      {'warm_start.num_steps': 2, 'model.checkpoint': None},
      "warm_start.num_steps = 2: must be 0 for task = 'problems()', which has "
      'no teacher',
    ),
    (
      {'text.evaluation_problems': None},
      'evaluation.every = 50: must be 0 where text.evaluation_problems = None',
    ),
    (
      {'sampler.num_distinct_prompts': 9},
      "sampler.num_distinct_prompts = 9: must be None for task = 'problems()', "
      'whose problems are its training set',
    ),
    ({'text.num_workers': 0}, 'text.num_workers = 0: must be in [1, 1024]'),
    (
      {'text.answer_timeout': 1e6},
      'text.answer_timeout = 1000000.0: must be in [0.001, 86400]',
    ),
    (
      {'text.max_new_tokens': 2**20 + 1},
      'text.max_new_tokens = 1048577: must be in [1, 1048576]',
    ),
  )
  def test_of_a_run_in_text(self, changes, message):
    with self.assertRaises(ValueError) as raised:
      rules.validate(_changed(math_qwen2_5_7b.get_config(), changes))
    self.assertEndsWith(str(raised.exception), message)

  @parameterized.parameters(
    ({'replay.capacity': 496, 'replay.batch_size': 496},),
    ({'replay.batch_size': 1984},),
    ({'sampler.weight_lag': 4},),
    ({'replay.num_prompts': 62},),
    ({'sampler.weight_lag': 5, 'replay.updates_per_iteration': 2.5},),
    # As a float, 0.1 divides neither 1 nor 3.
    ({'sampler.weight_lag': 3, 'replay.updates_per_iteration': 0.1},),
    (
      {
        'sampler.weight_lag': 1,
        'replay.updates_per_iteration': 1e-5,
        'num_iterations': 10**5,
      },
    ),
    ({'seed': 2**32 - 5, 'num_seeds': 5},),
    ({'warm_start.seed': 2**32 - 1},),
    ({'num_iterations': 10, 'replay.updates_per_iteration': 0.1},),
    ({'num_iterations': 2**30 - 1, 'replay.updates_per_iteration': 2},),
    (
      {
        'evaluation.every': 0,
        'evaluation.num_prompts': 2**31 - 1,
        'evaluation.num_samples': 8,
      },
    ),
    ({'sampler.temperature': 0.001, 'optimizer.learning_rate': 100},),
    ({'warm_start.warmup_steps': 399},),
    ({'warm_start.num_steps': 0, 'model.checkpoint': 'x'},),
    ({'mesh.buffer_memory': 'pinned_host', 'num_seeds': 1},),
    ({'model.rope_scaling': _ROPE},),
  )
  def test_what_is_just_allowed(self, changes):
    rules.validate(_changed(countdown.get_config(), changes))

  def test_a_run_in_text_need_not_be_evaluated(self):
    rules.validate(
      _changed(
        math_qwen2_5_7b.get_config(),
        {'evaluation.every': 0, 'text.evaluation_problems': None},
      )
    )


class ModelTest(absltest.TestCase):
  def test_a_checkpoint_alone_gives_the_shape(self):
    config = math_llama3_2_3b.get_config()
    self.assertEmpty(rules.missing_shape(config.model))
    config.model = models.of_checkpoint('folder', compute_dtype='bfloat16')
    rules.validate(config)
    self.assertEqual(config.model.checkpoint, 'folder')
    self.assertEqual(config.model.compute_dtype, 'bfloat16')
    self.assertLen(rules.missing_shape(config.model), 11)

  def test_a_part_of_the_shape_may_be_given_with_a_checkpoint(self):
    model = math_qwen2_5_7b.get_config().model
    model.num_layers = None
    self.assertEqual(rules.missing_shape(model), ['num_layers'])
