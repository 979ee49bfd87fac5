"""Checks keyword constants of public functions against their annotations.

The annotation of a constant has its type and, if only some values are allowed,
an `Interval`:

    def recency(state, step, *, half_life: Annotated[base.Scalar, POSITIVE]):

`check` compares values with the annotations. A config calls it before any
computation, and the decorator `checked` before each call of a function. Arrays
are not checked, because a traced array has no value.
"""

import functools
import inspect
import math
import types
import typing
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple
from typing import TypeVar

import jax
import numpy as np

Function = TypeVar('Function', bound=Callable)
_LONGEST_VALUE = 80  # Characters of a value in a message.


class Interval(NamedTuple):
  """The numbers from `low` to `high`, each end included or not."""

  low: float
  high: float
  has_low: bool
  has_high: bool

  def __contains__(self, value: float) -> bool:
    """Whether an int, or a float rounded to float32, is inside; no NaN is."""
    low, high = self.low, self.high
    if not isinstance(value, int):  # An int of any size compares exactly.
      with np.errstate(over='ignore'):  # A larger number becomes inf.
        value, low, high = np.asarray([value, low, high], np.float32)
    above = value >= low if self.has_low else value > low
    below = value <= high if self.has_high else value < high
    return bool(above and below)

  def __str__(self) -> str:
    """As in mathematics: `(0, 1]` has 1 and not 0."""
    left, right = '(['[self.has_low], ')]'[self.has_high]
    low, high = (
      f'{end}' if isinstance(end, int) else f'{end:g}'
      for end in (self.low, self.high)
    )
    return f'{left}{low}, {high}{right}'


def interval(text: str) -> Interval:
  """Returns the interval that a text such as '[0, inf)' describes."""
  low, high = (
    int(end) if end.strip().isdigit() else float(end)
    for end in text[1:-1].split(',')
  )
  return Interval(low, high, text[0] == '[', text[-1] == ']')


POSITIVE = interval('(0, inf)')
NON_NEGATIVE = interval('[0, inf)')
FRACTION = interval('[0, 1]')
MAX_INT32, MAX_UINT32 = 2**31 - 1, 2**32 - 1
SEED = interval(f'[0, {MAX_UINT32}]')
# Gradients grow with 1 / temperature; beyond, they overflow or vanish.
TEMPERATURE = interval('[0.001, 1000]')


class Constant(NamedTuple):
  """What a signature allows for one keyword constant.

  types: allowed types, such as bool, int, float, str or NoneType; () allows
    all types.
  interval: allowed numbers; None allows all, NaN included.
  is_scalar: whether the annotation allows an array. Then the value is an input
    of the compiled program, otherwise a part of it.
  default: `inspect.Parameter.empty` if a value must be given.
  """

  types: tuple[type, ...]
  interval: Interval | None
  is_scalar: bool
  default: Any


@functools.cache
def of_function(function: Callable) -> Mapping[str, Constant]:
  """Returns the keyword-only arguments of a function, by name.

  Args:
    function: a function, or a `functools.partial` of one.

  Raises:
    ValueError: an annotation cannot be evaluated.
  """
  annotated = function
  while isinstance(annotated, functools.partial):
    annotated = annotated.func
  annotated = inspect.unwrap(annotated)
  try:
    hints = typing.get_type_hints(annotated, include_extras=True)
  except (NameError, TypeError) as error:
    name = getattr(annotated, '__qualname__', type(annotated).__name__)
    raise ValueError(
      f'{name} = {shown(annotated)}: must have annotations that can be '
      f'evaluated ({error})'
    ) from error
  return {
    name: _constant(hints.get(name, Any), parameter.default)
    for name, parameter in inspect.signature(function).parameters.items()
    if parameter.kind is inspect.Parameter.KEYWORD_ONLY
  }


def check(owner: str, function: Callable, values: Mapping[str, Any]) -> None:
  """Raises ValueError if the signature does not allow a value.

  Args:
    owner: start of each name, such as `replay.weights.`.
    function: has the keyword constants.
    values: values of some constants, by name; arrays are not checked.
  """
  known = of_function(function)
  for name, value in values.items():
    if name in known:
      _check_one(f'{owner}{name}', value, known[name])


def checked(function: Function) -> Function:
  """Decorates a function to check its constants at each call."""

  @functools.wraps(function)
  def call(*args, **kwargs):
    check('', function, kwargs)
    return function(*args, **kwargs)

  return typing.cast(Function, call)


def shown(value: Any) -> str:
  """Returns the `repr` of any value, short enough for a message."""
  if isinstance(value, int) and value.bit_length() > 64:
    return f'<int of {value.bit_length()} bits>'
  try:
    text = repr(value)
  except (ValueError, RecursionError):  # Too many digits, or too deep.
    return f'<{type(value).__name__}>'
  if len(text) > _LONGEST_VALUE:
    text = f'{text[: _LONGEST_VALUE - 3]}...'
  return text


def _constant(hint: Any, default: Any) -> Constant:
  parts = tuple(_parts(hint))
  limits = [part for part in parts if isinstance(part, Interval)]
  members = [part for part in parts if not isinstance(part, Interval)]
  plain = [
    typing.get_origin(member) or member
    for member in members
    if member is not jax.Array
  ]
  if any(member is Any or not isinstance(member, type) for member in plain):
    plain = []
  return Constant(
    types=tuple(plain),
    interval=limits[0] if limits else None,
    is_scalar=jax.Array in members,
    default=default,
  )


def _parts(hint: Any) -> Iterator[Any]:
  """Yields the members of a union and the intervals of the annotation."""
  if typing.get_origin(hint) is typing.Annotated:
    hint, *extras = typing.get_args(hint)
    yield from (extra for extra in extras if isinstance(extra, Interval))
    yield from _parts(hint)
  elif typing.get_origin(hint) in (typing.Union, types.UnionType):
    for member in typing.get_args(hint):
      yield from _parts(member)
  else:
    yield hint


def _check_one(name: str, value: Any, constant: Constant) -> None:
  if isinstance(value, (jax.Array, np.ndarray)):
    return
  if isinstance(value, np.generic):
    value = value.item()
  allowed = constant.types
  # An int also fits a float. A bool is an int in Python, but not here.
  fits = isinstance(value, allowed + ((int,) if float in allowed else ()))
  if isinstance(value, bool):
    fits = bool in allowed
  if allowed and not fits:
    names = ' or '.join(
      'None' if kind is types.NoneType else kind.__name__ for kind in allowed
    )
    raise ValueError(f'{name} = {shown(value)}: must be of type {names}')
  if isinstance(value, str) and not _is_text(value):
    raise ValueError(
      f'{name} = {shown(value)}: must be text without NUL and lone surrogates'
    )
  if not isinstance(value, (int, float)) or isinstance(value, bool):
    return
  limits = constant.interval
  # A wide interval marks a number that no program uses, such as bytes.
  is_wide = limits is not None and 2**31 <= limits.high < math.inf
  if not is_wide and not _fits_32_bits(value):
    raise ValueError(f'{name} = {shown(value)}: must fit a 32-bit number')
  if limits is not None and value not in limits:
    raise ValueError(f'{name} = {shown(value)}: must be in {limits}')


def _is_text(value: str) -> bool:
  """Whether a file's content and its name may have this text."""
  try:
    value.encode()
  except UnicodeEncodeError:
    return False
  return '\0' not in value


def _fits_32_bits(value: float) -> bool:
  """Whether a number neither overflows nor is denormal in 32 bits."""
  if isinstance(value, int):
    return -(2**31) <= value < 2**31
  limits = np.finfo(np.float32)
  return (
    value == 0
    or not math.isfinite(value)
    or float(limits.tiny) <= abs(value) <= float(limits.max)
  )
