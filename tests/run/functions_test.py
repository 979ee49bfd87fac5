"""Tests of the functions of a run and of their numbers."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl.run import schedule
from replay_rl.run import state
from tests.run import tiny_run


def _second_half_only(state, step):
  del step
  return (jnp.arange(state.is_valid.shape[0]) >= 16).astype(jnp.float32)


def _one_update(iteration):
  del iteration
  return schedule.Generate(), schedule.Remember(), schedule.Learn(1)


def _reads_versions_of_tokens(inputs):
  return inputs.token_versions + 1


def _adamw(*, weight_decay):
  return f'adamw(b1=0.9, b2=0.98, eps=1e-8, weight_decay={weight_decay})'


def _refuses_in_two_lines(inputs):
  raise ValueError('one line\n  and another')


class ChooseTest(parameterized.TestCase):
  @parameterized.parameters(
    (
      {'replay__weights': 'max_age(limit=-1)'},
      r'^replay.weights.limit = -1: must be in \[0',
    ),
    (
      {'replay__keep': 'positive_bias(fraction=1.5)'},
      r'^replay.keep.fraction = 1.5: must be in \[0, 1\]',
    ),
    (
      {'loss__policy': 'token_mean()'},
      '^loss.policy = .*: must be .*, not token_mean$',
    ),
    (
      {'schedule': 'never()'},
      '^schedule = .*: must be one call .*, not never$',
    ),
    (
      {'task': 'addition(num_digits=0, forget_probability=0.0)'},
      '^task.num_digits = 0: must be in',
    ),
    # What the batch needs, or ignores.
    (
      {'replay__compose': 'fresh_only()', 'replay__batch_size': None},
      r"^replay.weights = 'uniform\(\)': must be None, because replay.compose "
      r"ignores it \(replay.compose = 'fresh_only\(\)'\)",
    ),
    (
      {
        'replay__compose': 'fresh_only()',
        'replay__batch_size': None,
        'replay__weights': None,
      },
      '^replay.draw = .*: must be None, because replay.compose ignores it',
    ),
    (
      {
        'replay__compose': 'fresh_only()',
        'replay__draw': None,
        'replay__weights': None,
      },
      '^replay.batch_size = 8: must be None, because replay.compose ignores it',
    ),
    (
      {'replay__batch_size': None},
      '^replay.batch_size = None: must be given, because replay.compose needs',
    ),
    (
      {'replay__weights': None},
      '^replay.weights = None: must be given, because replay.compose needs it',
    ),
    (
      {'replay__updates_per_iteration': None},
      '^replay.updates_per_iteration = None: must be given, because schedule '
      'needs it',
    ),
    (
      {'loss__statistics': 'second_moment_cutoff(limit=0.04)'},
      r"^loss.statistics = 'second_moment_cutoff.*': must be None, because "
      r"loss.policy ignores it \(loss.policy = 'clipped_surrogate",
    ),
    # Functions with the arguments of a rule or an advantage that are neither.
    (
      {'replay__weights': 'age()'},
      '^replay.weights = .*: must be .*, not age$',
    ),
    (
      {'loss__advantage': 'group_has_variance()'},
      '^loss.advantage = .*: must be .*, not group_has_variance$',
    ),
    # What only a trace tells.
    (
      {
        'replay__compose': (
          'fresh_anchored(replay_fraction=9.0, warmup_steps=0)'
        ),
        'replay__batch_size': None,
      },
      '^replay.compose = .*, replay.weights = .*, replay.draw = .*: must fit '
      r'the run \(replay_fraction = 9.0: must give at most',
    ),
    (
      {'sampler__top_k': 99},
      r'^sampler: must fit the run \(top_k = 99: must be at',
    ),
    (
      {'model__num_kv_heads': 3},
      '^model.num_heads = 2: must be a multiple of num_kv_heads = 3$',
    ),
    ({'model__head_dim': 7}, '^model.head_dim = 7: must be even'),
    (
      {'warm_start__transform': 'adam()'},
      '^warm_start.transform = .*: must be one call',
    ),
    # Sums of tokens are int32.
    (
      {'replay__capacity': 2**30, 'sampler__num_prompts': 2**26},
      '^sampler.num_prompts x sampler.group_size = 268435456: must be at most '
      '268435455, because the tokens of all rows, 8 each, ',
    ),
    (
      {'replay__capacity': 2**30, 'replay__batch_size': 2**28},
      '^rows of an update = 268435456: must be at most 268435455, because',
    ),
    (
      {'warm_start__batch_size': 2**28},
      '^warm_start.batch_size = 268435456: must be at most 268435455, because',
    ),
    # What would make weights grow, instead of shrink.
    (
      {
        'optimizer__learning_rate': 2.0,
        'optimizer__transform': _adamw(weight_decay=0.6),
      },
      '^optimizer.transform.weight_decay = 0.6: must be at most 1 / '
      'optimizer.learning_rate = 0.5, the decay of all of a weight',
    ),
    (
      {
        'warm_start__learning_rate': 0.25,
        'warm_start__transform': _adamw(weight_decay=5.0),
      },
      '^warm_start.transform.weight_decay = 5.0: must be at most 1 / '
      'warm_start.learning_rate = 4',
    ),
    *(
      (
        {'replay__weights': f'uniform() * {choice}'},
        rf'replay.weights = .*: must fit the run \(replay.num_prompts = None: '
        rf'must be given for {choice.partition("(")[0]}\)$',
      )
      for choice in ('unsolved()', 'pass_rate(center=0.5, width=0.2)')
    ),
    (
      {'replay__weights': 'max_age_batches(limit=1, num_fresh=16)'},
      r"^replay.weights.num_fresh = 16: must be named one of \['limit'\]$",
    ),
    *(
      ({field: choice}, rf'^{name} = {value}: must be in \[')
      for field, choice, name, value in (
        (
          'loss__normalizer',
          'constant(tokens_per_row=1e-30)',
          'loss.normalizer.tokens_per_row',
          '1e-30',
        ),
        (
          'loss__policy',
          'asymre(delta_v=1e30)',
          'loss.policy.delta_v',
          r'1e\+30',
        ),
        (
          'loss__policy',
          'truncated_importance_sampling(max_ratio=1e-30)',
          'loss.policy.max_ratio',
          '1e-30',
        ),
        (
          'loss__advantage',
          'group_standardized(eps=1e30)',
          'loss.advantage.eps',
          r'1e\+30',
        ),
        (
          'replay__weights',
          'advantage_magnitude(exponent=7)',
          'replay.weights.exponent',
          '7',
        ),
        (
          'replay__compose',
          'collected(max_batches=10)',
          'replay.compose.max_batches',
          '10',
        ),
        (
          'task',
          'addition(num_digits=1001, forget_probability=0.5)',
          'task.num_digits',
          '1001',
        ),
        (
          'task',
          'countdown(num_numbers=1000000000, max_number=2, '
          'slip_probability=0.1)',
          'task.num_numbers',
          '1000000000',
        ),
        (
          'optimizer__transform',
          'adamw(b1=0.9, b2=0.9, eps=1e-30, weight_decay=0.0)',
          'optimizer.transform.eps',
          '1e-30',
        ),
      )
    ),
  )
  def test_names_field_value_and_what_is_allowed(self, changes, message):
    with self.assertRaisesRegex(ValueError, message):
      tiny_run.experiment(**changes)

  def test_names_the_fields_of_an_update_that_cannot_be_traced(self):
    with self.assertRaisesRegex(
      ValueError, '^loss.policy = .*_reads_versions.*, loss.normalizer = .*: '
    ):
      tiny_run.experiment({'loss': _reads_versions_of_tokens})

  def test_what_a_trace_says_is_one_line(self):
    with self.assertRaisesRegex(ValueError, r' \(one line and another\)$'):
      tiny_run.experiment({'loss': _refuses_in_two_lines})

  def test_what_is_just_allowed(self):
    tiny_run.experiment(
      optimizer__learning_rate=2.0,
      optimizer__transform=_adamw(weight_decay=0.5),
    )
    tiny_run.experiment(
      replay__num_prompts=4,
      replay__weights='pass_rate(center=0.5, width=0.2) * unsolved() * '
      'max_age_batches(limit=3)',
    )
    # What does not train needs no optimizer, and no rate has no decay.
    tiny_run.experiment(
      warm_start__num_steps=0,
      warm_start__transform='adam()',
      optimizer__learning_rate=0,
      optimizer__transform=_adamw(weight_decay=1e6),
    )

  def test_a_schedule_may_leave_the_number_of_updates_to_no_field(self):
    changes = {'sampler__weight_lag': 0, 'replay__updates_per_iteration': None}
    actual = tiny_run.experiment({'schedule': _one_update}, **changes).schedule(
      5
    )
    self.assertEqual(schedule.num_updates(actual), 1)
    with self.assertRaisesRegex(
      ValueError,
      '^replay.updates_per_iteration = 2: must be None, because schedule '
      r'ignores it \(schedule = .*_one_update',
    ):
      tiny_run.experiment({'schedule': _one_update})

  def test_a_loss_may_read_statistics(self):
    tiny_run.experiment(
      loss__policy='m2po()',
      loss__statistics='second_moment_cutoff(limit=0.04)',
    )

  def test_an_unknown_kind_is_refused(self):
    with self.assertRaisesRegex(
      ValueError, "^function = 'weight': must be one of"
    ):
      tiny_run.experiment({'weight': _second_half_only})

  def test_a_rule_can_be_passed_in(self):
    experiment = tiny_run.experiment({'weights': _second_half_only})
    bound = experiment.parts.bind(experiment.parts.hyper)
    rule = bound.compose_fn.keywords['weight_rule']
    run = tiny_run.started(experiment.parts, 0)
    np.testing.assert_array_equal(
      rule(run.buffer, run.learner.step), np.arange(32) >= 16
    )
    record = experiment.records['replay.weights']
    self.assertIn('_second_half_only', record['text'])
    (name,) = record['functions']
    self.assertEqual(name, f'{__name__}:_second_half_only')

  def test_what_is_none_or_a_ring_is_no_function(self):
    parts = tiny_run.parts()
    bound = parts.bind(parts.hyper)
    self.assertIsNone(bound.batch_advantage_fn)
    self.assertIsNone(bound.keep_rule)
    self.assertIsNone(bound.feedback_fn)
    for name in 'statistics_fn', 'row_weight_fn', 'gate':
      self.assertIsNone(getattr(bound.update, name), name)
    given = tiny_run.experiment(
      replay__keep='fifo()',
      replay__feedback='reweighted_advantage_magnitude()',
      loss__row_weights='per_importance_weights(exponent=0.4)',
      optimizer__gate='accept_all()',
    ).parts
    bound = given.bind(given.hyper)
    self.assertIsNotNone(bound.keep_rule)
    self.assertIsNotNone(bound.feedback_fn)
    self.assertIsNotNone(bound.update.row_weight_fn)
    self.assertIsNotNone(bound.update.gate)


class NumbersTest(parameterized.TestCase):
  CHANGES = {
    'sampler__temperature': 1,
    'sampler__top_p': 1,
    'replay__weights': 'recency(half_life=8) * newest(count=16)',
    'replay__keep': 'positive_bias(fraction=0)',
    'optimizer__learning_rate': 1,
    'optimizer__warmup_steps': 3,
    'optimizer__max_grad_norm': 2,
  }

  def test_they_are_all_that_sets_no_shape_and_say_where_they_are_from(self):
    self.assertEqual(
      tiny_run.experiment(**self.CHANGES).parts.hyper,
      {
        'sampler': {'temperature': 1.0, 'top_p': 1.0},
        'evaluation': {'temperature': 1.0},
        'optimizer': {
          'learning_rate': 1.0,
          'warmup_steps': 3,
          'max_grad_norm': 2.0,
        },
        'replay.weights': {'recency.half_life': 8.0, 'newest.count': 16},
        'replay.keep': {'fraction': 0.0},
        'loss.policy': {'clip_low': 0.2, 'clip_high': 0.2},
        'optimizer.transform': {
          'b1': 0.9,
          'b2': 0.98,
          'eps': 1e-8,
          'weight_decay': 0.0,
        },
      },
    )
    self.assertNotIn('top_p', tiny_run.parts().hyper['sampler'])

  def test_each_has_one_type_however_it_is_written(self):
    arrays = state.as_arrays(tiny_run.experiment(**self.CHANGES).parts.hyper)
    integers = {
      (field, name)
      for field, names in arrays.items()
      for name, array in names.items()
      if array.dtype != jnp.float32
    }
    self.assertEqual(
      integers,
      {('optimizer', 'warmup_steps'), ('replay.weights', 'newest.count')},
    )

  def test_arrays_bind_as_the_numbers_themselves(self):
    parts = tiny_run.experiment(
      replay__weights='recency(half_life=8)',
      replay__keep='positive_bias(fraction=0.25)',
      optimizer__warmup_steps=2,
    ).parts
    run = tiny_run.started(parts, 0)
    stored = run.buffer._replace(is_valid=jnp.ones(32, bool))

    def seen(hyper):
      bound = parts.bind(hyper)
      rule = bound.compose_fn.keywords['weight_rule']
      gradients = jax.tree.map(jnp.ones_like, run.learner.params)
      changes, _ = bound.update.optimizer.update(
        gradients, run.learner.opt_state, run.learner.params
      )
      step = jnp.int32(4)
      return rule(stored, step), bound.keep_rule(stored, step), changes

    of_numbers = seen(parts.hyper)
    of_arrays = jax.jit(seen)(state.as_arrays(parts.hyper))
    chex.assert_trees_all_close(of_arrays, of_numbers, rtol=1e-6)
    np.testing.assert_allclose(of_numbers[0], 2 ** (-4 / 8), rtol=1e-6)
