"""Choices written as calls: `recency(half_life=8) * max_age(limit=16)`.

A small grammar, parsed with `ast` and never evaluated: a function's name, its
keyword constants as literals, `*` between slot rules and `+` between rewards.
"""

import ast
import functools
import inspect
import types
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

from replay_rl import base
from replay_rl.replay import rules

Functions = Mapping[str, Callable]


def choose(
  field: str,
  text: str,
  functions: Functions,
  offered: Mapping[str, Any] | None = None,
) -> Callable:
  """Returns the function that `text` names, its constants bound.

  Args:
    field: name of the config field, for error messages.
    text: a call such as `group_standardized(eps=1e-6)`.
    functions: what may be named.
    offered: values for keyword arguments that the text cannot give.

  Raises:
    ValueError: not a call, an unknown name, an unknown or a missing constant.
  """
  return _bind(field, text, _parse(field, text), functions, offered or {})


def product(
  field: str, text: str, offered: Mapping[str, Any] | None = None
) -> base.SlotRule:
  """Returns the product of the slot rules that `text` names, as `choose`."""
  functions = functions_like(rules, 'state', 'step')
  return rules.product(
    *(
      _bind(field, text, factor, functions, offered or {})
      for factor in _operands(_parse(field, text), ast.Mult)
    )
  )


def total(field: str, text: str, functions: Functions) -> Callable:
  """Returns the sum of the functions that `text` names, as `choose`."""
  terms = [
    _bind(field, text, term, functions, {})
    for term in _operands(_parse(field, text), ast.Add)
  ]
  return lambda *arguments: sum(term(*arguments) for term in terms)


def functions_like(
  module: types.ModuleType, *arguments: str
) -> dict[str, Callable]:
  """Returns the public functions of a module that take these positionals."""
  return {
    name: function
    for name, function in inspect.getmembers(module, inspect.isfunction)
    if function.__module__ == module.__name__
    and not name.startswith('_')
    and _names(function, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    == list(arguments)
  }


def _parse(field: str, text: str) -> ast.expr:
  try:
    return ast.parse(text, mode='eval').body
  except SyntaxError as error:
    raise ValueError(
      f'{field} = {text!r}: must be a call such as max_age(limit=10)'
    ) from error


def _operands(node: ast.expr, operator: type[ast.operator]) -> list[ast.expr]:
  """Returns what the operator joins, from left to right."""
  if isinstance(node, ast.BinOp) and isinstance(node.op, operator):
    return [*_operands(node.left, operator), node.right]
  return [node]


def _bind(
  field: str,
  text: str,
  node: ast.expr,
  functions: Functions,
  offered: Mapping[str, Any],
) -> Callable:
  complaint = f'{field} = {text!r}: '
  if (
    not isinstance(node, ast.Call)
    or not isinstance(node.func, ast.Name)
    or node.args
  ):
    raise ValueError(
      complaint + 'must be a call with keyword constants, such as '
      'max_age(limit=10)'
    )
  name = node.func.id
  if name not in functions:
    raise ValueError(
      f'{complaint}{name} is not one of {", ".join(sorted(functions))}'
    )
  keywords = _names(functions[name], inspect.Parameter.KEYWORD_ONLY)
  constants = {key: offered[key] for key in keywords if key in offered}
  allowed = [key for key in keywords if key not in offered]
  for keyword in node.keywords:
    if keyword.arg not in allowed:
      raise ValueError(
        f'{complaint}{name} has no constant {keyword.arg!r}; it has {allowed}'
      )
    try:
      constants[keyword.arg] = ast.literal_eval(keyword.value)
    except ValueError as error:
      raise ValueError(
        f'{complaint}{keyword.arg} must be a number, a bool, a string or None'
      ) from error
  missing = [key for key in keywords if key not in constants]
  if missing:
    raise ValueError(f'{complaint}{name} also needs {missing}')
  return functools.partial(functions[name], **constants)


def _names(function: Callable, kind: Any) -> list[str]:
  parameters = inspect.signature(function).parameters.values()
  return [parameter.name for parameter in parameters if parameter.kind is kind]
