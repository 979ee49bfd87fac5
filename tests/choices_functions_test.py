"""Tests of choices that are functions of a user's own."""

import functools
import json
import sys
import types

import jax
import jax.numpy as jnp
from absl.testing import parameterized

from replay_rl import choices
from tests import choices_test
from tests import user_functions

MODULE = user_functions.__name__


class UserFunctionsTest(parameterized.TestCase):
  def test_a_text_may_import_a_function(self):
    text = f'uniform() * {MODULE}:scaled(scale=2, power=2)'
    chosen = choices.choose('f', text, choices_test.WEIGHTS)
    self.assertEqual(chosen.scalars, {'scaled.scale': 2})
    self.assertEqual(
      choices_test.result(chosen, 3.0, 5.0), 3.0 * 3.0 * 5.0 * 4.0
    )
    self.assertEqual(chosen.record['text'], text)
    (reference, digest), *others = chosen.record['functions'].items()
    self.assertEqual((reference, others), (f'{MODULE}:scaled', []))
    self.assertRegex(digest, '^[0-9a-f]{64}$')
    self.assertEqual(json.loads(json.dumps(chosen.record)), chosen.record)

  def test_a_function_of_the_same_name_is_another_one(self):
    module = types.ModuleType('a_users_module')
    module.recency = user_functions.scaled
    sys.modules['a_users_module'] = module
    self.addCleanup(sys.modules.pop, 'a_users_module')
    chosen = choices.choose(
      'f',
      'a_users_module:recency(scale=2) * recency(half_life=1)',
      choices_test.WEIGHTS,
    )
    self.assertEqual(
      chosen.scalars, {'recency.scale': 2, 'recency_2.half_life': 1}
    )

  def test_a_function_may_be_given_as_such(self):
    rule = functools.partial(user_functions.scaled, scale=2.0)
    chosen = choices.choose('f', rule, choices_test.WEIGHTS)
    self.assertEqual(chosen.text, f'{MODULE}:scaled(scale=2.0)')
    # The default of a constant is its value, and a text can give another one.
    self.assertEqual(chosen.scalars, {'scale': 2.0})
    self.assertEqual(choices_test.result(chosen, 3.0, 5.0), 30.0)
    self.assertEqual(chosen.bind({'scale': 4.0})(3.0, 5.0), 60.0)
    text = choices.choose(
      'f', f'{MODULE}:twice(scale=4.0)', choices_test.WEIGHTS
    )
    self.assertEqual(choices_test.result(text, 3.0, 5.0), 60.0)
    compiled = choices.choose(
      'f', f'{MODULE}:compiled(scale=4)', choices_test.WEIGHTS
    )
    self.assertEqual(
      (choices_test.result(compiled, 3.0, 5.0), compiled.scalars), (60.0, {})
    )

  def test_the_hash_is_that_of_all_that_the_function_computes_with(self):
    def digest(function):
      record = choices.choose('f', function, choices_test.WEIGHTS).record
      return next(iter(record['functions'].values()))

    made, scaled = user_functions.made, user_functions.scaled
    different = [
      made(3.0),
      made(4.0),
      made(jnp.arange(2000.0)),
      made(jnp.arange(2000.0).at[1000].set(0.5)),  # Its repr leaves this out.
      made(choices_test.recency),
      made([made(1.0)]),
      made([made(2.0)]),
      made({'rule': made(1.0)}),
      made({'rule': made(2.0)}),
      jax.jit(made(3.0)),
      jax.jit(made(4.0)),
      user_functions.made_with_default(1.0),
      user_functions.made_with_default(2.0),
      functools.partial(scaled, scale=1.0),
      functools.partial(scaled, scale=2.0),
      choices_test.uniform,
      choices_test.multiply(choices_test.uniform),
      choices_test.multiply(choices_test.uniform, choices_test.uniform),
      choices_test.multiply(
        choices_test.uniform,
        functools.partial(choices_test.recency, half_life=1.0),
      ),
      functools.partial(user_functions.compiled, scale=1.0),
    ]
    digests = {digest(function) for function in different}
    self.assertLen(digests, len(different))
    self.assertEqual(digest(made(3.0)), digest(made(3.0)))
    # The address of an object is not what it computes.
    self.assertEqual(digest(made(object())), digest(made(object())))

  def test_a_function_that_refers_to_itself_has_a_hash(self):
    def rule(state, step):
      return rule(state, step - 1) if step else state

    self.assertLen(
      choices.choose('f', rule, choices_test.WEIGHTS).record['functions'], 1
    )

  @parameterized.parameters(
    ('no_such_module:rule()', r'an importable .* \(ModuleNotFoundError: '),
    (f'{MODULE}:rule()', r'must have an importable .* \(AttributeError: '),
    (f'{MODULE}:made:rule()', r'an importable .* \(AttributeError: '),
    (f'{MODULE}:base()', ': must be a call or a Python function'),
    ('os:system()', ': must be a call or a Python function'),
    (
      f'{MODULE}:reversed_arguments()',
      r'must take \(state, .*, not \(step, state\)',
    ),
    (
      f'{MODULE}:with_any_keyword()',
      r': must take \(state, step\) and keyword',
    ),
    (f'{MODULE}:made()', r'must take \(state, step\) .*, not \(factor\)'),
    (f'{MODULE}:scaled()', 'scale = None: must be given'),
    (f'{MODULE}:scaled(scale=0)', r'scale = 0: must be in \(0, inf\)'),
    (
      functools.partial(choices_test.uniform, 1, 2, 3),
      'has incorrect arguments',
    ),
    (functools.partial(choices_test.uniform, state=1), 'must take'),
    (
      functools.partial(choices_test.recency, half_life=-1),
      'half_life = -1: must be in',
    ),
  )
  def test_refuses_what_does_not_fit(self, choice, message):
    with self.assertRaisesRegex(ValueError, f'^f.*{message}'):
      choices.choose('f', choice, choices_test.WEIGHTS)

  def test_a_module_that_fails_or_exits_is_named(self):
    folder = self.create_tempdir()
    sys.path.insert(0, folder.full_path)
    self.addCleanup(sys.path.remove, folder.full_path)
    for name, line in [('fails', '1 / 0'), ('exits', 'raise SystemExit(3)')]:
      folder.create_file(f'module_that_{name}.py', line)
      with self.assertRaisesRegex(
        ValueError, f'must have an importable module_that_{name}:f '
      ):
        choices.choose('f', f'module_that_{name}:f()', choices_test.WEIGHTS)

  def test_a_function_without_a_file_raises(self):
    variables = {}
    exec('def rule(state, step): return state', variables)
    with self.assertRaisesRegex(
      ValueError, 'must have the source of rule in a file'
    ):
      choices.choose('f', variables['rule'], choices_test.WEIGHTS)
