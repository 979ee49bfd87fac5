"""Tests of replay_rl.choices."""

import functools
import json
import random
import sys
import types
from typing import Annotated

import jax
import jax.numpy as jnp
from absl.testing import parameterized

from replay_rl import base
from replay_rl import choices
from replay_rl import constants
from replay_rl.rl import advantages
from replay_rl.rl import gates
from replay_rl.rl import losses
from tests import user_functions

MODULE = user_functions.__name__


def recency(
  state, step, *, half_life: Annotated[base.Scalar, constants.POSITIVE]
):
  return state / (step * half_life)


def uniform(state, step):
  return state + 0 * step


def limited(
  state, step, *, limit: int | jax.Array, is_strict: bool, name: str | None
):
  del is_strict, name
  return state * (step < limit)


def composed(state, step, *, weight_rule, batch_size: int, share: float):
  return weight_rule(state, step) * batch_size * share


def multiply(*rules):
  def rule(state, step):
    product = 1
    for factor in rules:
      product = product * factor(state, step)
    return product

  return rule


FUNCTIONS = {'recency': recency, 'uniform': uniform, 'limited': limited}
WEIGHTS = choices.Kind(FUNCTIONS, ('state', 'step'), '*', multiply)
KEEP = choices.Kind(FUNCTIONS, ('state', 'step'))
REWARD = choices.Kind(FUNCTIONS, ('state', 'step'), '+', choices.total)
LIMITED = 'limited(limit=3, is_strict=True, name=None)'


def result(choice, *arguments, **replaced):
  return choice.bind(choice.scalars, **replaced)(*arguments)


class CallsTest(parameterized.TestCase):
  def test_binds_the_constants_that_the_text_gives(self):
    chosen = choices.choose('f', 'recency(half_life=4)', KEEP)
    self.assertEqual(chosen.scalars, {'half_life': 4})
    self.assertEqual(chosen.text, 'recency(half_life=4)')
    self.assertEqual(chosen.record, {'text': chosen.text, 'functions': {}})
    self.assertEqual(result(chosen, 8.0, 1.0), 2.0)
    self.assertEqual(chosen.bind({'half_life': 2})(8.0, 1.0), 4.0)

  def test_only_constants_that_may_be_arrays_are_scalars(self):
    chosen = choices.choose('f', LIMITED, KEEP)
    self.assertEqual(chosen.scalars, {'limit': 3})
    self.assertEqual([result(chosen, 8.0, step) for step in (2, 3)], [8.0, 0.0])

  def test_scalars_may_be_traced(self):
    chosen = choices.choose('f', f'recency(half_life=4) * {LIMITED}', WEIGHTS)
    num_traces = 0

    @jax.jit
    def compute(scalars):
      nonlocal num_traces
      num_traces += 1
      return chosen.bind(scalars)(8.0, 1.0)

    found = [
      float(compute({'recency.half_life': x, 'limited.limit': y}))
      for x, y in [(4.0, 3), (2.0, 3), (2.0, 1)]
    ]
    self.assertEqual((found, num_traces), ([16.0, 32.0, 0.0], 1))

  def test_a_product_names_each_function(self):
    chosen = choices.choose(
      'f',
      'recency(half_life=2) * uniform() * recency(half_life=4) * '
      'recency(half_life=8)',
      WEIGHTS,
    )
    self.assertEqual(
      chosen.scalars,
      {
        'recency.half_life': 2,
        'recency_2.half_life': 4,
        'recency_3.half_life': 8,
      },
    )
    self.assertEqual(result(chosen, 8.0, 1.0), 4.0 * 8.0 * 2.0 * 1.0)
    single = choices.choose('f', 'recency(half_life=2)', WEIGHTS)
    self.assertEqual(single.scalars, {'half_life': 2})
    self.assertEqual(result(single, 8.0, 1.0), 4.0)

  def test_a_sum_adds(self):
    chosen = choices.choose('f', 'recency(half_life=2) + uniform()', REWARD)
    self.assertEqual(chosen.scalars, {'recency.half_life': 2})
    self.assertEqual(result(chosen, 8.0, 1.0), 12.0)

  def test_offered_values_are_taken_and_may_be_replaced(self):
    kind = choices.Kind(
      {'composed': composed, 'uniform': uniform}, ('state', 'step')
    )
    offered = {'weight_rule': uniform, 'batch_size': 2}
    chosen = choices.choose('f', 'composed(share=0.5)', kind, offered)
    self.assertEqual(chosen.takes, {'weight_rule', 'batch_size'})
    self.assertEqual(result(chosen, 8.0, 1.0), 8.0)
    replaced = result(chosen, 8.0, 1.0, weight_rule=lambda state, step: -state)
    self.assertEqual(replaced, -8.0)
    ignoring = choices.choose('f', 'uniform()', kind, offered)
    self.assertEqual(ignoring.takes, set())
    with self.assertRaisesRegex(ValueError, r"batch_size = 1: .* \['share'\]"):
      choices.choose('f', 'composed(share=1.0, batch_size=1)', kind, offered)

  def test_other_scalars_than_those_of_the_choice_raise(self):
    chosen = choices.choose('f', 'recency(half_life=4)', KEEP)
    for scalars in ({}, {'half_life': 1.0, 'limit': 1.0}):
      with self.assertRaisesRegex(ValueError, r"must be \['half_life'\]"):
        chosen.bind(scalars)

  def test_finds_functions_by_the_arguments_they_take(self):
    self.assertEqual(
      set(choices.functions_like(advantages, 'rewards', 'group_id')),
      {
        'group_standardized',
        'group_mean_baseline',
        'group_has_variance',
        'leave_one_out',
      },
    )
    self.assertEqual(
      set(choices.functions_like(gates)),
      {'accept_all', 'ess_scaled_rate', 'gradient_gate'},
    )
    found = choices.functions_like(losses, 'inputs')
    self.assertIn('clipped_surrogate', found)
    self.assertNotIn('_check', found)
    imported = types.ModuleType('imported')
    imported.leave_one_out = advantages.leave_one_out
    self.assertEqual(
      choices.functions_like(imported, 'rewards', 'group_id'), {}
    )

  def test_a_loss_of_a_config(self):
    kind = choices.Kind(choices.functions_like(losses, 'inputs'), ('inputs',))
    text = 'clipped_surrogate(clip_low=0.2, clip_high=0.28, dual_clip=None)'
    chosen = choices.choose('loss.policy', text, kind)
    self.assertEqual(chosen.scalars, {'clip_low': 0.2, 'clip_high': 0.28})
    with self.assertRaisesRegex(ValueError, r'dual_clip = 1: must be in \(1, '):
      choices.choose('loss.policy', text.replace('None', '1'), kind)


class RefusedTest(parameterized.TestCase):
  def message(self, text, kind=WEIGHTS):
    with self.assertRaises(ValueError) as raised:
      choices.choose('replay.weights', text, kind)
    return str(raised.exception)

  def test_a_value_out_of_range_is_shown_with_its_field(self):
    self.assertEqual(
      self.message('recency(half_life=-1)'),
      'replay.weights.half_life = -1: must be in (0, inf)',
    )

  def test_what_is_no_call_is_told_what_is_allowed(self):
    one = 'must be one call with keyword constants'
    some = 'such as name(x=1), of limited, recency, uniform or module:name'
    for text in [
      'recency',
      'recency(3)',
      'recency(*[3])',
      'recency(half_life=3',
      'recency(half_life=3))',
      '(lambda: 1)()()',
      'uniform() + uniform()',
      'uniform() * (uniform() * uniform())',
      'uniform()\nuniform()',
      'uniform() *',
      '(x := uniform())',
      "f'{uniform()}'",
      'uniform()[0]',
      '',
      ':uniform()',
      'recency(half_life=' + '9' * 1900 + ')' * 2,
    ]:
      self.assertIn(
        f': {one}, or several joined by *, {some}', self.message(text)
      )
    self.assertEqual(
      self.message('uniform() * uniform()', KEEP),
      f"replay.weights = 'uniform() * uniform()': {one}, {some}",
    )

  @parameterized.parameters(
    ('volume(x=1)', "'volume(x=1)': must be one call with keyword constants"),
    ('volume(x=1)', 'or module:name, not volume'),
    ('math.sqrt()', 'or module:name, not math.sqrt'),
    ('uniform()()', 'or module:name, not ()'),
    ('(lambda: 1)()', 'or module:name, not ()'),
    ('recency()', 'replay.weights.half_life = None: must be given'),
    (
      'uniform() * recency() * recency(half_life=1)',
      'replay.weights.recency.half_life = None: must be given',
    ),
    ('recency(half_life=1, x=2)', "x = 2: must be named one of ['half_life']"),
    (
      'recency(half_life=1, half_life=2)',
      'must give half_life once, as name=value',
    ),
    ('recency(**{"half_life": 1})', 'must give ** once, as name=value'),
    (
      'recency(half_life=open("x"))',
      'must have a number, bool, string or None as',
    ),
    (
      'recency(half_life={[]: 1})',
      'must have a number, bool, string or None as',
    ),
    (
      'recency(half_life=(y := 1))',
      'must have a number, bool, string or None as',
    ),
    ("recency(half_life=f'1')", 'must have a number, bool, string or None as'),
    ('recency(half_life=1e999)', 'half_life = inf: must be in (0, inf)'),
    ('recency(half_life=inf)', 'half_life = inf: must be in (0, inf)'),
    ('recency(half_life=nan)', 'must have a number, bool, string or None as'),
    ('recency(half_life=1e39)', 'half_life = 1e+39: must fit a 32-bit number'),
    ('recency(half_life=0x' + 'f' * 500 + ')', '<int of 2000 bits>: must fit'),
    ('recency(half_life=True)', 'half_life = True: must be of type float'),
    ('recency(half_life="no")', "half_life = 'no': must be of type float"),
    ('recency(half_life=((1,),))', '= ((1,),): must be of type float'),
    ('recency(half_life=²)', 'must be one call with keyword constants'),
    (LIMITED.replace('3', '3.5'), 'limit = 3.5: must be of type int'),
    (LIMITED.replace('True', '1'), 'is_strict = 1: must be of type bool'),
    (
      'uniform() * ' * 300 + 'uniform()',
      'must have at most 2000 printable characters',
    ),
    ('(' * 10**5, 'must have at most 2000 printable characters'),
    ('(' * 1900, 'must be one call with keyword constants'),
    ('-' * 1900 + '1', 'must be one call with keyword constants'),
    ('uniform' + '()' * 900, 'or module:name, not ()'),
    ('uniform() * ' * 160 + 'x()', 'or module:name, not x'),
    ('uniform(\x00)', 'must have at most 2000 printable characters'),
    ('\ud800', 'must have at most 2000 printable characters'),
    (3, 'replay.weights = 3: must be a call or a Python function'),
    (dict, "<class 'dict'>: must be a call or a Python function"),
  )
  def test_refuses_what_is_not_allowed(self, text, message):
    self.assertIn(message, self.message(text))

  def test_random_texts_raise_nothing_but_value_errors(self):
    rng = random.Random(0)
    words = [
      *'()[]{}:,.=*+-@#\\\'"\n\t ~!;',
      *('recency', 'uniform', 'half_life', 'lambda', 'if', 'else', 'f"', 'b"'),
      *('1', '1e999', '0x', '9' * 400, 'None', 'True', ':=', '**', 'é', '\x00'),
      *('recency(half_life=1)', ' * ', 'no_such_module:rule', '\ud800', '"""'),
    ]
    num_allowed = 0
    for _ in range(5000):
      text = ''.join(rng.choices(words, k=rng.randrange(1, 9)))
      kind = rng.choice([WEIGHTS, KEEP, REWARD])
      try:
        choices.choose('f', text, kind)
        num_allowed += 1
      except ValueError as error:
        self.assertStartsWith(str(error), 'f = ')
    self.assertBetween(num_allowed, 1, 500)


class UserFunctionsTest(parameterized.TestCase):
  def test_a_text_may_import_a_function(self):
    text = f'uniform() * {MODULE}:scaled(scale=2, power=2)'
    chosen = choices.choose('f', text, WEIGHTS)
    self.assertEqual(chosen.scalars, {'scaled.scale': 2})
    self.assertEqual(result(chosen, 3.0, 5.0), 3.0 * 3.0 * 5.0 * 4.0)
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
      'f', 'a_users_module:recency(scale=2) * recency(half_life=1)', WEIGHTS
    )
    self.assertEqual(
      chosen.scalars, {'recency.scale': 2, 'recency_2.half_life': 1}
    )

  def test_a_function_may_be_given_as_such(self):
    rule = functools.partial(user_functions.scaled, scale=2.0)
    chosen = choices.choose('f', rule, WEIGHTS)
    self.assertEqual(chosen.text, f'{MODULE}:scaled(scale=2.0)')
    # The default of a constant is its value, and a text can give another one.
    self.assertEqual(chosen.scalars, {'scale': 2.0})
    self.assertEqual(result(chosen, 3.0, 5.0), 30.0)
    self.assertEqual(chosen.bind({'scale': 4.0})(3.0, 5.0), 60.0)
    text = choices.choose('f', f'{MODULE}:twice(scale=4.0)', WEIGHTS)
    self.assertEqual(result(text, 3.0, 5.0), 60.0)
    compiled = choices.choose('f', f'{MODULE}:compiled(scale=4)', WEIGHTS)
    self.assertEqual((result(compiled, 3.0, 5.0), compiled.scalars), (60.0, {}))

  def test_the_hash_is_that_of_all_that_the_function_computes_with(self):
    def digest(function):
      record = choices.choose('f', function, WEIGHTS).record
      return next(iter(record['functions'].values()))

    made, scaled = user_functions.made, user_functions.scaled
    different = [
      made(3.0),
      made(4.0),
      made(jnp.arange(2000.0)),
      made(jnp.arange(2000.0).at[1000].set(0.5)),  # Its repr leaves this out.
      made(recency),
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
      uniform,
      multiply(uniform),
      multiply(uniform, uniform),
      multiply(uniform, functools.partial(recency, half_life=1.0)),
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

    self.assertLen(choices.choose('f', rule, WEIGHTS).record['functions'], 1)

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
    (functools.partial(uniform, 1, 2, 3), 'has incorrect arguments'),
    (functools.partial(uniform, state=1), 'must take'),
    (functools.partial(recency, half_life=-1), 'half_life = -1: must be in'),
  )
  def test_refuses_what_does_not_fit(self, choice, message):
    with self.assertRaisesRegex(ValueError, f'^f.*{message}'):
      choices.choose('f', choice, WEIGHTS)

  def test_a_module_that_fails_or_exits_is_named(self):
    folder = self.create_tempdir()
    sys.path.insert(0, folder.full_path)
    self.addCleanup(sys.path.remove, folder.full_path)
    for name, line in [('fails', '1 / 0'), ('exits', 'raise SystemExit(3)')]:
      folder.create_file(f'module_that_{name}.py', line)
      with self.assertRaisesRegex(
        ValueError, f'must have an importable module_that_{name}:f '
      ):
        choices.choose('f', f'module_that_{name}:f()', WEIGHTS)

  def test_a_function_without_a_file_raises(self):
    variables = {}
    exec('def rule(state, step): return state', variables)
    with self.assertRaisesRegex(
      ValueError, 'must have the source of rule in a file'
    ):
      choices.choose('f', variables['rule'], WEIGHTS)
