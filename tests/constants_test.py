"""Tests of replay_rl.constants."""

import functools
from collections.abc import Callable
from typing import Annotated
from typing import Any
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl import base
from replay_rl import constants


@constants.checked
def _scaled(
  x: base.Array,
  *,
  scale: Annotated[base.Scalar, constants.POSITIVE],
  power: int | jax.Array = 1,
  limit: Annotated[base.Scalar | None, constants.interval('(1, inf)')] = None,
  count: Annotated[int, constants.interval('[1, 8)')] = 1,
  is_on: bool = True,
  label: str = '',
  share: Annotated[float, constants.FRACTION] | None = None,
) -> base.Array:
  del limit, count, is_on, label, share
  return x * scale**power


class IntervalTest(parameterized.TestCase):
  @parameterized.parameters(
    ('(0, inf)', [1e-30, 3e38], [0.0, -1.0, np.inf, np.nan]),
    ('[0, inf]', [0.0, np.inf], [-1e-30, -np.inf, np.nan]),
    ('(0, 1]', [0.5, 1], [0, 1.5]),
    # The float32 next to 0.1 is above it, and that next to 1 - 1e-12 is 1.
    ('[0, 0.1]', [0.1], [0.11]),
    ('[0, 1)', [0.999], [1 - 1e-12]),
    # As float32, these neighbours would be equal.
    ('[0, 4294967295]', [0, 2**32 - 1], [-1, 2**32, 10**400]),
    ('[1, 16777216]', [2**24], [2**24 + 1, 0]),
    ('[0, 9e+18]', [9 * 10**18], [9 * 10**18 + 1]),
    ('[-1e+06, 1e+06]', [-1e6, 10**6], [1e300, -1e7]),
  )
  def test_holds_the_numbers_between_its_ends(self, text, inside, outside):
    limits = constants.interval(text)
    self.assertEqual(str(limits), text)
    self.assertEqual([x in limits for x in inside], [True] * len(inside))
    self.assertEqual([x in limits for x in outside], [False] * len(outside))


class OfFunctionTest(parameterized.TestCase):
  def test_says_what_each_constant_may_be(self):
    known = constants.of_function(_scaled)
    self.assertEqual(
      list(known),
      ['scale', 'power', 'limit', 'count', 'is_on', 'label', 'share'],
    )
    scalars = [name for name, constant in known.items() if constant.is_scalar]
    self.assertEqual(scalars, ['scale', 'power', 'limit'])
    self.assertEqual(known['limit'].types, (float, type(None)))
    self.assertEqual(known['share'].types, (float, type(None)))
    self.assertEqual(known['share'].interval, constants.FRACTION)
    self.assertIsNone(known['power'].interval)
    self.assertEqual(known['count'].default, 1)

  def test_reads_a_partial_of_a_function(self):
    known = constants.of_function(functools.partial(_scaled, scale=2.0))
    self.assertTrue(known['scale'].is_scalar)
    self.assertEqual(known['scale'].default, 2.0)

  def test_an_annotation_that_cannot_be_compared_allows_any_value(self):
    def loose(*, a, b: Any, c: Literal['x'], d: 'Any'):
      del a, b, c, d

    for name in 'abcd':
      constants.check('', loose, {name: object()})

  def test_a_generic_type_is_compared_without_its_arguments(self):
    def typed(*, sizes: tuple[int, ...], rule: Callable[[int], int]):
      del sizes, rule

    constants.check('', typed, {'sizes': (1, 2), 'rule': abs})
    with self.assertRaisesRegex(
      ValueError, '^sizes = 3: must be of type tuple'
    ):
      constants.check('', typed, {'sizes': 3})
    with self.assertRaisesRegex(
      ValueError, "^rule = 'x': must be of type Call"
    ):
      constants.check('', typed, {'rule': 'x'})

  def test_an_annotation_without_a_meaning_raises(self):
    def unknown(*, x: 'Missing'):  # noqa: F821  # pyright: ignore
      del x

    with self.assertRaisesRegex(
      ValueError, "unknown.*'Missing' is not defined"
    ):
      constants.of_function(unknown)


class CheckedTest(parameterized.TestCase):
  @parameterized.parameters(
    {'scale': 2},
    {'scale': 2.0, 'power': 3},
    {'scale': 2.0, 'limit': None, 'share': None},
    {'scale': 1.5e38, 'limit': 1.5, 'count': 7, 'is_on': False},
    {'scale': np.float32(2), 'power': np.int32(2), 'label': 'x', 'share': 1},
  )
  def test_allowed_values_pass(self, **values):
    one = jnp.ones(())
    expected = values['scale'] ** values.get('power', 1)
    np.testing.assert_allclose(_scaled(one, **values), expected, rtol=1e-6)

  @parameterized.parameters(
    ('scale', -1, '-1: must be in (0, inf)'),
    ('scale', 0.0, '0.0: must be in (0, inf)'),
    ('scale', np.inf, 'inf: must be in (0, inf)'),
    ('scale', np.nan, 'nan: must be in (0, inf)'),
    ('scale', np.float32(-1), '-1.0: must be in (0, inf)'),
    ('scale', 1e39, '1e+39: must fit a 32-bit number'),
    ('scale', 1e-40, '1e-40: must fit a 32-bit number'),
    ('scale', 10**400, '<int of 1329 bits>: must fit a 32-bit number'),
    ('scale', -(2**31) - 1, '-2147483649: must fit a 32-bit number'),
    ('scale', 2**31, '2147483648: must fit a 32-bit number'),
    ('scale', True, 'True: must be of type float'),
    ('scale', np.bool_(True), 'True: must be of type float'),
    ('scale', None, 'None: must be of type float'),
    ('scale', 'no', "'no': must be of type float"),
    ('scale', 1j, '1j: must be of type float'),
    ('scale', ((1.0,),), '((1.0,),): must be of type float'),
    ('scale', 'x' * 10**5, f"'{'x' * 76}...: must be of type float"),
    ('power', 1.0, '1.0: must be of type int'),
    ('power', None, 'None: must be of type int'),
    ('limit', 1, '1: must be in (1, inf)'),
    ('limit', False, 'False: must be of type float or None'),
    ('count', 8, '8: must be in [1, 8)'),
    ('is_on', 'no', "'no': must be of type bool"),
    ('is_on', 1, '1: must be of type bool'),
    ('label', 1, '1: must be of type str'),
    ('label', 'a\0', "'a\\x00': must be text without NUL and lone surrogates"),
    (
      'label',
      '\udc80',
      "'\\udc80': must be text without NUL and lone surrogates",
    ),
    ('share', 2, '2: must be in [0, 1]'),
  )
  def test_other_values_raise(self, name, value, message):
    with self.assertRaises(ValueError) as raised:
      _scaled(jnp.ones(()), **{'scale': 1.0, name: value})
    self.assertEqual(str(raised.exception), f'{name} = {message}')

  def test_values_that_cannot_be_shown_raise_the_same_error(self):
    nested = ()
    for _ in range(100_000):
      nested = (nested,)
    for name, value, message in [
      ('scale', nested, '<tuple>: must be of type float'),
      ('scale', (10**5000,), '<tuple>: must be of type float'),
      ('count', 10**9999, '<int of 33216 bits>: must fit a 32-bit number'),
    ]:
      with self.assertRaises(ValueError) as raised:
        _scaled(jnp.ones(()), **{'scale': 1.0, name: value})
      self.assertEqual(str(raised.exception), f'{name} = {message}')

  @parameterized.parameters(jnp.asarray, np.asarray)
  def test_arrays_pass_unread(self, array):
    self.assertEqual(_scaled(jnp.ones(()), scale=array(-2.0)), -2.0)

  def test_traced_constants_pass_and_compile_once(self):
    num_traces = 0

    @jax.jit
    def compute(x, scale):
      nonlocal num_traces
      num_traces += 1
      return _scaled(x, scale=scale)

    actual = [compute(jnp.ones(()), scale) for scale in (2.0, -3.0)]
    self.assertEqual((actual, num_traces), ([2.0, -3.0], 1))

  def test_check_names_the_owner_and_skips_other_arguments(self):
    constants.check('f.', _scaled, {'x': 'no', 'scale': 1.0})
    with self.assertRaisesRegex(ValueError, '^f.scale = -1: must be'):
      constants.check('f.', _scaled, {'x': 'no', 'scale': -1})
