"""Tests of replay_rl.choices."""

import random
import types
from typing import Annotated

import jax
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

    actual = [
      float(compute({'recency.half_life': x, 'limited.limit': y}))
      for x, y in [(4.0, 3), (2.0, 3), (2.0, 1)]
    ]
    self.assertEqual((actual, num_traces), ([16.0, 32.0, 0.0], 1))

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
    actual = choices.functions_like(advantages, 'rewards', 'group_id')
    self.assertContainsSubset(['w_reinforce', 'leave_one_out'], actual)
    self.assertNotIn('_check', actual)
    # `_accept` is private, and `judge` is no function of the module.
    actual = choices.functions_like(gates)
    self.assertContainsSubset(['accept_all', 'gradient_gate'], actual)
    self.assertNotIn('_accept', actual)
    self.assertNotIn('judge', actual)
    actual = choices.functions_like(losses, 'loss_mask')
    self.assertIn('token_mean', actual)
    self.assertNotIn('_check_mask', actual)
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
    ('recency(half_life=1e999)', 'must have a finite half_life, or inf'),
    ('recency(half_life=-1e999)', 'must have a finite half_life, or inf'),
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
