"""Logical time: which weights generate, counted in learner steps.

An asynchronous system trains on while its samplers still run older weights.
Here that lag is explicit: the sampler uses the weights the learner had a fixed
number of iterations ago, so that async effects reproduce bit for bit.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from replay_rl import base


class DelayLine(NamedTuple):
  """The learner's weights at the start of each of the last N iterations.

  params: pytree with a leading axis `[N]`, a ring indexed by iteration.
  version: `[N]` int32, the learner step of each.
  """

  params: base.PyTree
  version: base.Array


def init(params: base.PyTree, lag_iterations: int) -> DelayLine | None:
  """Returns a delay line full of the initial weights; None without a lag."""
  if not lag_iterations:
    return None
  return DelayLine(
    params=jax.tree.map(
      lambda leaf: jnp.repeat(leaf[None], lag_iterations, axis=0), params
    ),
    version=jnp.zeros((lag_iterations,), jnp.int32),
  )


def behavior(
  line: DelayLine | None,
  learner: base.LearnerState,
  iteration: base.Array,
) -> tuple[base.PyTree, base.Array, DelayLine | None]:
  """Exchanges the learner's weights for those the sampler has to use.

  Args:
    line: the delay line; None if the sampler uses the learner's weights.
    learner: whose weights enter the line.
    iteration: `[]` int32; call once per iteration, in order.

  Returns:
    params of the sampler, their version `[]` int32, and the new line. In
    iteration i these are the weights at the start of iteration i - N, or of
    iteration 0 while i < N.
  """
  if line is None:
    return learner.params, learner.step, None
  slot = iteration % line.version.shape[0]
  params = jax.tree.map(lambda ring: ring[slot], line.params)
  version = line.version[slot]
  newest = DelayLine(learner.params, learner.step)
  return params, version, jax.tree.map(_write(slot), line, newest)


def _write(slot: base.Array):
  return lambda ring, leaf: ring.at[slot].set(leaf)
