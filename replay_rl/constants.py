"""What the keyword constants of a public function may be, from its signature.

A constant is annotated with its type and, if not all values make sense, with an
`Interval`:

    def recency(state, step, *, half_life: Annotated[base.Scalar, POSITIVE]):

`check` compares values with the annotations. It serves both callers: a config
that names the function, before anything is computed, and a direct call of a
function that is decorated with `checked`. Arrays pass unread, since a traced
one has no value.
"""

import functools
import inspect
import math
import types
import typing
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import jax


class Interval(NamedTuple):
  """The numbers from `low` to `high`, each end included or not."""

  low: float
  high: float
  has_low: bool
  has_high: bool

  def __contains__(self, value: float) -> bool:
    """Whether a number is inside; a NaN never is."""
    above = value >= self.low if self.has_low else value > self.low
    below = value <= self.high if self.has_high else value < self.high
    return above and below

  def __str__(self) -> str:
    """As in mathematics: `(0, 1]` has 1 and not 0."""
    left, right = '(['[self.has_low], ')]'[self.has_high]
    return f'{left}{self.low:g}, {self.high:g}{right}'


def interval(text: str) -> Interval:
  """Returns the interval that a text such as '[0, inf)' describes."""
  low, high = (float(end) for end in text[1:-1].split(','))
  return Interval(low, high, text[0] == '[', text[-1] == ']')


POSITIVE = interval('(0, inf)')
NON_NEGATIVE = interval('[0, inf)')
FRACTION = interval('[0, 1]')
FINITE = interval('(-inf, inf)')


class Constant(NamedTuple):
  """What a signature says of one keyword constant.

  name: of the argument.
  types: that a value may have, of bool, int, float, str and NoneType, or any
    class; () if the annotation says nothing.
  interval: of numbers; None for all, NaN included.
  is_scalar: the annotation admits an array, so that the value is an input of
    the compiled program and not part of it.
  """

  name: str
  types: tuple[type, ...]
  interval: Interval | None
  is_scalar: bool


@functools.cache
def of_function(function: Callable) -> Mapping[str, Constant]:
  """Returns the keyword-only arguments of a function, by name."""
  hints = typing.get_type_hints(function, include_extras=True)
  return {
    name: _constant(name, hints.get(name, Any))
    for name, parameter in inspect.signature(function).parameters.items()
    if parameter.kind is inspect.Parameter.KEYWORD_ONLY
  }


def check(owner: str, function: Callable, values: Mapping[str, Any]) -> None:
  """Raises ValueError if a value is not what the signature allows.

  Args:
    owner: what the values were given to, for the message.
    function: whose keyword constants they are.
    values: of some of them, by name. Arrays are not looked at.
  """
  known = of_function(function)
  for name, value in values.items():
    if name in known:
      _check_one(f'{owner}{name}', value, known[name])


def checked(function: Callable) -> Callable:
  """Returns the function, which then checks its constants at each call."""

  @functools.wraps(function)
  def call(*args, **kwargs):
    check('', function, kwargs)
    return function(*args, **kwargs)

  return call


def _constant(name: str, hint: Any) -> Constant:
  limits = None
  if typing.get_origin(hint) is typing.Annotated:
    hint, *extras = typing.get_args(hint)
    limits = next((x for x in extras if isinstance(x, Interval)), None)
  is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
  members = typing.get_args(hint) if is_union else (hint,)
  plain = tuple(
    typing.get_origin(member) or member
    for member in members
    if member is not jax.Array
  )
  if any(not isinstance(member, type) for member in plain):
    plain = ()  # Such as a callable type, whose values cannot be compared.
  return Constant(name, plain, limits, jax.Array in members)


def _check_one(name: str, value: Any, constant: Constant) -> None:
  if isinstance(value, jax.Array):
    return
  allowed = constant.types
  # An int is a number, and so fits a float. A bool is an int to Python, but is
  # never meant as a number.
  fits = isinstance(value, allowed + ((int,) if float in allowed else ()))
  if isinstance(value, bool):
    fits = bool in allowed
  if allowed and not fits:
    names = ' or '.join(
      'None' if kind is types.NoneType else kind.__name__ for kind in allowed
    )
    raise ValueError(f'{name} = {value!r}: must be of type {names}')
  if not isinstance(value, (int, float)) or isinstance(value, bool):
    return
  if not _is_float32(value):
    raise ValueError(f'{name} = {value!r}: must fit a 32-bit number')
  if constant.interval is not None and value not in constant.interval:
    raise ValueError(f'{name} = {value!r}: must be in {constant.interval}')


def _is_float32(value: float) -> bool:
  """Whether a number does not overflow a float32 or an int32."""
  if isinstance(value, int):
    return -(2**31) <= value < 2**31
  return not math.isfinite(value) or abs(value) < 3.4e38
