"""Prefill: the prompt of a group is read once, for all its responses."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from replay_rl import base
from replay_rl.lm import architecture
from replay_rl.lm import cache as cache_lib
from replay_rl.lm import model
from replay_rl.parallel import mesh as mesh_lib


class Prefix(NamedTuple):
  """What prefill leaves of U prompts.

  hidden: `[U, D]`, of the last token of each prompt.
  cache: U rows of L columns.
  """

  hidden: base.Array
  cache: cache_lib.Cache


def prompt_reads(num_prompts: int, group_size: int, num_parts: int) -> int:
  """Returns how often prefill reads each prompt: on how many devices.

  It is the least number with which the parts of a mesh can split the prompts.
  If the parts can split the rows, it divides the size of a group.
  """
  return math.gcd(num_parts // math.gcd(num_prompts, num_parts), group_size)


def read(
  graphdef: nnx.GraphDef,
  config: architecture.TransformerConfig,
  params: base.PyTree,
  prompts: base.Prompts,
  *,
  group_size: int,
) -> Prefix:
  """Reads each prompt once, or once on each device that has rows of it.

  Args:
    graphdef: from `model.init`.
    config: of the model.
    params: from `model.init`.
    prompts: `[P]`.
    group_size: G, responses to each prompt.
  """
  num_prompts, num_columns = prompts.tokens.shape
  num_reads = prompt_reads(
    num_prompts, group_size, mesh_lib.num_current_parts('rows')
  )
  prompts = repeat(prompts, num_reads)
  # The gap after a short prompt stays masked, so that responses grow in the
  # same column of all rows.
  num_rows = prompts.lengths.shape[0]
  x_ULD, cache = model.extend(
    graphdef,
    params,
    prompts.tokens,
    cache_lib.init(config, batch_size=num_rows, num_columns=num_columns),
    is_valid=jnp.arange(num_columns)[None, :] < prompts.lengths[:, None],
  )
  last_U11 = prompts.lengths[:, None, None] - 1
  last_UD = jnp.take_along_axis(x_ULD, last_U11, axis=1)[:, 0]
  return Prefix(last_UD, cache)


def repeat(prompts: base.Prompts, count: int) -> base.Prompts:
  """Returns each prompt `count` times, side by side, without references."""
  return mesh_lib.split_rows(
    jax.tree.map(
      lambda leaf: jnp.repeat(leaf, count, axis=0),
      prompts._replace(references=()),
    )
  )
