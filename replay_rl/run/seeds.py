"""Programs over an axis of seeds."""

from collections.abc import Callable
from typing import Any

import jax

from replay_rl import base


def over_seeds(vmap: bool, function: Callable, *args: base.PyTree) -> Any:
  """Maps a function over a leading axis of seeds, as one program.

  Args:
    vmap: whether all seeds go through each operation together, which fills an
      accelerator. Otherwise they go one after the other: each then gives what
      it gives alone, bit for bit, and a CPU is faster.
    function: of the arrays of one seed.
    *args: pytrees of arrays `[S, ...]`.
  """
  num_seeds = jax.tree.leaves(args)[0].shape[0]
  if num_seeds == 1:
    result = function(*jax.tree.map(lambda leaf: leaf[0], args))
    return jax.tree.map(lambda leaf: leaf[None], result)
  if vmap:
    return jax.vmap(function)(*args)
  return jax.lax.map(lambda one: function(*one), args)
