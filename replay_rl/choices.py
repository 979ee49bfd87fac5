"""Choices written as calls: `recency(half_life=8) * max_age(limit=16)`.

The text has the name of a function, its keyword constants as literals, and `*`
or `+` between calls if the kind of the choice allows it. `ast` parses it, and
nothing evaluates it. `my_module:my_rule(x=1)` imports the function. A choice
may also be a function itself, or a `functools.partial` of one.
"""

import ast
import functools
import hashlib
import importlib
import inspect
import io
import math
import re
import tokenize
import types
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import jax
import numpy as np

from replay_rl import base
from replay_rl import constants

_LONGEST_TEXT = 2000  # Characters; a longer one could exhaust the parser.
_COLON = '__colon__'  # Stands for the colon of `module:name`, for `ast`.
_OPERATORS = {'*': ast.Mult, '+': ast.Add}
_PARSE_ERRORS = (
  SyntaxError,
  ValueError,
  TypeError,
  MemoryError,
  RecursionError,
  tokenize.TokenError,
)


class Kind(NamedTuple):
  """What may be chosen for a field.

  functions: functions that a text may name without a module, by name.
  positionals: names of the positional arguments of each function.
  operator: '*' or '+' if a text may join several calls, else ''.
  join: (functions) -> the function that joins them; None without an operator.
  """

  functions: Mapping[str, Callable]
  positionals: tuple[str, ...]
  operator: str = ''
  join: Callable[..., Callable] | None = None


class Choice(NamedTuple):
  """A choice whose names and constants are allowed.

  text: the choice as a call.
  scalars: values of the constants that may be arrays, with keys such as
    `half_life`; with several functions `recency.half_life`, and
    `recency_2.half_life` for the second `recency`.
  bind: (scalars) -> the function with these and its other constants bound;
    keywords replace offered values.
  takes: names of the offered values that the functions take.
  program: all that is compiled of it: the calls, without values of `scalars`.
  record: for config.json: the text, and by `module:name` a hash of the source
    of each function that is not in `Kind.functions`.
  users: those functions, without what is bound to them.
  """

  text: str
  scalars: dict[str, float | int]
  bind: Callable[..., Callable]
  takes: frozenset[str]
  program: tuple
  record: dict[str, Any]
  users: tuple[types.FunctionType, ...]


class _Call(NamedTuple):
  """One function of a choice.

  function: has the constants bound that are part of the program.
  scalars: values of the other constants, by (name, key in `Choice.scalars`).
  takes: names of the offered values that it takes.
  """

  function: functools.partial
  scalars: dict[tuple[str, str], float | int]
  takes: list[str]


def functions_like(
  module: types.ModuleType, *positionals: str
) -> dict[str, Callable]:
  """Returns the public functions of a module that take these positionals."""
  return {
    name: function
    for name, function in inspect.getmembers(module, inspect.isfunction)
    if function.__module__ == module.__name__
    and not name.startswith('_')
    and _positionals(function) == positionals
  }


def total(*functions: Callable) -> Callable:
  """Returns the sum of functions: the `Kind.join` of '+'."""
  return lambda *arguments: sum(function(*arguments) for function in functions)


def choose(
  field: str,
  choice: str | Callable,
  kind: Kind,
  offered: Mapping[str, Any] | None = None,
) -> Choice:
  """Returns the functions that a choice names, and their constants.

  Args:
    field: name of the config field, for messages.
    choice: a call such as `group_standardized(eps=1e-6)`, or a function.
    kind: what may be chosen.
    offered: values for keyword constants that the choice must not give.

  Raises:
    ValueError: the choice is not a call; or its function does not exist or has
      other arguments than the kind; or its constants are unknown, missing,
      repeated or not what their annotations allow.
  """
  offered = offered or {}
  if isinstance(choice, str):
    text, complaint = choice, f'{field} = {constants.shown(choice)}: '
    parsed = [
      _parse_call(complaint, node, kind)
      for node in _operands(complaint, choice, kind)
    ]
  else:
    text = _called(f'{field} = {constants.shown(choice)}: ', choice)
    complaint = f'{field} = {constants.shown(text)}: '
    parsed = [(text.partition('(')[0], choice, {})]
  names, calls, hashes, users = [], [], {}, []
  for reference, function, values in parsed:
    if function is not kind.functions.get(reference):
      _check_arguments(complaint, function, kind)
      source = _source(complaint, function, set())
      users.append(_innermost(complaint, function))
      hashes[reference] = hashlib.sha256(source.encode()).hexdigest()
    short = re.split('[.:]', reference)[-1]
    number = sum(name == short for name in names) + 1
    names.append(short)
    prefix = ''
    if len(parsed) > 1:
      prefix = f'{short}.' if number == 1 else f'{short}_{number}.'
    calls.append(_call(f'{field}.{prefix}', prefix, function, values, offered))
  return Choice(
    text=text,
    scalars={
      key: value for call in calls for (_, key), value in call.scalars.items()
    },
    bind=functools.partial(_bind, calls, kind, offered),
    takes=frozenset(name for call in calls for name in call.takes),
    program=tuple(
      (reference, hashes.get(reference), *_constants(call))
      for (reference, _, _), call in zip(parsed, calls, strict=True)
    ),
    record={'text': text, 'functions': hashes},
    users=tuple(users),
  )


def _bind(
  calls: list[_Call],
  kind: Kind,
  offered: Mapping[str, Any],
  scalars: Mapping[str, base.Array | float],
  **replaced: Any,
) -> Callable:
  keys = {key for call in calls for _, key in call.scalars}
  if set(scalars) != keys:
    raise ValueError(f'scalars = {sorted(scalars)}: must be {sorted(keys)}')
  values = {**offered, **replaced}
  bound = [
    functools.partial(
      call.function,
      **{name: scalars[key] for name, key in call.scalars},
      **{name: values[name] for name in call.takes},
    )
    for call in calls
  ]
  return bound[0] if kind.join is None else kind.join(*bound)


def _operands(complaint: str, text: str, kind: Kind) -> list[ast.expr]:
  """Returns the calls that the operator joins, from left to right."""
  if len(text) > _LONGEST_TEXT or not text.replace('\n', ' ').isprintable():
    raise ValueError(
      f'{complaint}must have at most {_LONGEST_TEXT} printable characters'
    )
  try:
    parts, depth = [], 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
      depth += (token.string in list('([{')) - (token.string in list(')]}'))
      is_colon = token.string == ':' and depth == 0
      parts.append(f'.{_COLON}.' if is_colon else token.string)
    node = ast.parse(' '.join(parts).strip(), mode='eval').body
  except _PARSE_ERRORS as error:
    raise ValueError(f'{complaint}{_must(kind)}') from error
  operands = []
  joint = _OPERATORS.get(kind.operator)
  while joint and isinstance(node, ast.BinOp) and isinstance(node.op, joint):
    operands.insert(0, node.right)
    node = node.left
  return [node, *operands]


def _must(kind: Kind) -> str:
  several = f', or several joined by {kind.operator}' * bool(kind.operator)
  return (
    f'must be one call with keyword constants{several}, such as name(x=1), of '
    f'{", ".join(sorted(kind.functions))} or module:name'
  )


def _parse_call(
  complaint: str, node: ast.expr, kind: Kind
) -> tuple[str, Callable, dict[str, Any]]:
  """Returns the reference to a function, the function and its constants."""
  if not isinstance(node, ast.Call) or node.args:
    raise ValueError(f'{complaint}{_must(kind)}')
  names, leaf = [], node.func
  while isinstance(leaf, ast.Attribute):
    names.insert(0, leaf.attr)
    leaf = leaf.value
  names.insert(0, leaf.id if isinstance(leaf, ast.Name) else '()')
  reference = '.'.join(names).replace(f'.{_COLON}.', ':')
  values = {}
  for keyword in node.keywords:
    name = keyword.arg or '**'
    if name == '**' or name in values:
      raise ValueError(f'{complaint}must give {name} once, as name=value')
    try:
      is_inf = isinstance(keyword.value, ast.Name) and keyword.value.id == 'inf'
      values[name] = math.inf if is_inf else ast.literal_eval(keyword.value)
    except _PARSE_ERRORS as error:
      raise ValueError(
        f'{complaint}must have a number, bool, string or None as {name}'
      ) from error
    if not is_inf and values[name] in (math.inf, -math.inf):  # Such as 1e400.
      raise ValueError(f'{complaint}must have a finite {name}, or inf')
  if reference in kind.functions:
    return reference, kind.functions[reference], values
  module, colon, name = reference.partition(':')
  if not colon:
    raise ValueError(f'{complaint}{_must(kind)}, not {reference}')
  try:
    return reference, getattr(importlib.import_module(module), name), values
  except (Exception, SystemExit) as error:  # The module may raise anything.
    raise ValueError(
      f'{complaint}must have an importable {reference} '
      f'({type(error).__name__}: {error})'
    ) from error


def _call(
  owner: str,
  prefix: str,
  function: Callable,
  values: dict[str, Any],
  offered: Mapping[str, Any],
) -> _Call:
  """Returns a function with its constants, `values` and defaults, checked."""
  known = constants.of_function(function)
  allowed = [name for name in known if name not in offered]
  for name in values:
    if name not in allowed:
      raise ValueError(
        f'{owner}{name} = {constants.shown(values[name])}: must be named one '
        f'of {allowed}'
      )
  values = {name: known[name].default for name in allowed} | values
  missing = ', '.join(
    name for name in allowed if values[name] is inspect.Parameter.empty
  )
  if missing:
    raise ValueError(f'{owner}{missing} = None: must be given')
  constants.check(owner, function, values)
  # An int becomes a float, because a program has one type for the constant.
  scalars = {
    name: float(value) if float in known[name].types else value
    for name, value in values.items()
    if known[name].is_scalar and isinstance(value, (int, float))
  }
  static = {name: values[name] for name in allowed if name not in scalars}
  return _Call(
    function=functools.partial(function, **static),
    scalars={(name, prefix + name): scalars[name] for name in scalars},
    takes=[name for name in known if name in offered],
  )


def _constants(call: _Call) -> tuple[list, list]:
  """Returns the constants in a program, and names and types of its inputs."""
  types_of = [(key, type(x).__name__) for (_, key), x in call.scalars.items()]
  return sorted(call.function.keywords.items()), sorted(types_of)


def _innermost(complaint: str, function: Callable) -> types.FunctionType:
  """Returns the Python function under partials, `jax.jit` and wrappers."""
  inner = function
  while isinstance(inner, functools.partial):
    inner = inner.func
  inner = inspect.unwrap(inner)
  if not isinstance(inner, types.FunctionType):
    raise ValueError(f'{complaint}must be a call or a Python function')
  return inner


def _called(complaint: str, function: Callable) -> str:
  """Returns the text of a call of a function, with the constants it binds."""
  inner = _innermost(complaint, function)
  bound = []
  while isinstance(function, functools.partial):
    bound = [
      *(constants.shown(value) for value in function.args),
      *(f'{x}={constants.shown(y)}' for x, y in function.keywords.items()),
      *bound,
    ]
    function = function.func
  return f'{inner.__module__}:{inner.__qualname__}({", ".join(bound)})'


def _check_arguments(complaint: str, function: Callable, kind: Kind) -> None:
  """Raises ValueError if a function has other arguments than the kind."""
  _innermost(complaint, function)
  try:
    signature = inspect.signature(function)
  except (TypeError, ValueError) as error:  # A partial with too many arguments.
    raise ValueError(
      f'{complaint}must be a call or a Python function ({error})'
    ) from error
  arguments = list(kind.positionals)
  keywords = [
    x for x in signature.parameters.values() if x.kind is x.KEYWORD_ONLY
  ]
  if list(signature.parameters) != arguments + [x.name for x in keywords]:
    raise ValueError(
      f'{complaint}must take ({", ".join(arguments)}) and keyword constants '
      f'after a *, not {signature}'
    )


def _positionals(function: Callable) -> tuple[str, ...]:
  return tuple(
    parameter.name
    for parameter in inspect.signature(function).parameters.values()
    if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
  )


def _source(complaint: str, value: Any, seen: set[int]) -> str:
  """Returns the source of a function, of its defaults and of its closure.

  Follows partials and containers, but not global variables.

  Args:
    complaint: start of a message.
    value: a function, or a value that a function holds.
    seen: ids of functions that are already in the text.
  """
  text, parts = '', []
  if isinstance(value, functools.partial):
    parts = [value.func, value.args, value.keywords]
  elif isinstance(value, types.FunctionType):
    if id(value) in seen:
      return value.__qualname__
    seen.add(id(value))
    parts = [value.__defaults__, value.__kwdefaults__]
    try:
      text = inspect.getsource(value.__code__)
      parts += [cell.cell_contents for cell in value.__closure__ or ()]
    except (OSError, ValueError) as error:
      raise ValueError(
        f'{complaint}must have the source of {value.__qualname__} in a file, '
        'so that it can be recorded'
      ) from error
  elif isinstance(value, (list, tuple)):
    parts = value
  elif isinstance(value, dict):
    parts = value.items()
  elif isinstance(value, (jax.Array, np.ndarray)):
    array = np.asarray(value)
    text = f'{array.dtype}{array.shape}{array.tobytes().hex()}'
  elif hasattr(value, '__wrapped__'):  # Such as a function under `jax.jit`.
    parts = [value.__wrapped__]
  else:
    text = re.sub(' at 0x[0-9a-f]+', '', repr(value))
  return '\n'.join([text, *(_source(complaint, part, seen) for part in parts)])
