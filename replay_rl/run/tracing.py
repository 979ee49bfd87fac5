"""What a function of a run accepts and reads, without computing it."""

from collections.abc import Callable

import jax

from replay_rl import base


def shapes(
  what: str, function: Callable, *arguments: base.PyTree
) -> base.PyTree:
  """Returns the shapes of what a function returns.

  Raises:
    ValueError: the function does not accept the arguments; names `what`.
  """
  try:
    return jax.eval_shape(function, *arguments)
  except (ValueError, TypeError) as error:
    reason = ' '.join(str(error).split())  # Some of JAX have many lines.
    raise ValueError(f'{what}: must fit the run ({reason})') from error


def reads(function: Callable, record: base.PyTree, field: str) -> bool:
  """Returns whether a function computes with a field of a record of shapes."""
  program = jax.make_jaxpr(function)(record).jaxpr
  read = {id(x) for step in program.eqns for x in step.invars}
  leaves, _ = jax.tree_util.tree_flatten_with_path(record)
  return any(
    path[0].name == field and id(variable) in read
    for (path, _), variable in zip(leaves, program.invars, strict=True)
  )
