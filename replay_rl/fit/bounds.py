"""Lower bounds of the time of an iteration, and the arithmetic of replay.

A bound is the longer of two times: FLOPs over the peak FLOP/s of the device,
and bytes over its memory bandwidth. Communication, verification and all else
are left out, so a real run takes longer, often several times.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from replay_rl.fit import chips
from replay_rl.lm import architecture
from replay_rl.run import config as config_lib
from replay_rl.run import state


class LowerBounds(NamedTuple):
  """Least seconds per iteration where every response has its full length.

  prefill: reading each prompt once.
  decode: writing the responses, a token of every row at a time.
  learner: all updates of the iteration.
  """

  prefill: float
  decode: float
  learner: float


class ReplayCounts(NamedTuple):
  """What an iteration generates and learns from, after any warm-up.

  fresh_rollouts: F.
  generated_tokens: of F responses of full length, the most there can be.
  updates: U, which may be a fraction.
  trained_rollouts: rows of the U updates.
  trained_tokens: of those rows at full length, without prompts.
  replay_ratio: trained over fresh rollouts.
  cost_units: B per update and mu per fresh rollout, see `ledger.prices`.
  buffer_iterations: iterations that the buffer holds.
  """

  fresh_rollouts: int
  generated_tokens: int
  updates: float
  trained_rollouts: float
  trained_tokens: float
  replay_ratio: float
  cost_units: float
  buffer_iterations: float


def replay(
  parts: state.Parts, *, updates_per_iteration: float, mu: float
) -> ReplayCounts:
  """Returns the arithmetic of an average iteration of one seed.

  Args:
    parts: what the run is made of.
    updates_per_iteration: U.
    mu: cost of generating a rollout in units of training on one.
  """
  fresh = parts.num_fresh
  trained = updates_per_iteration * parts.num_rows
  return ReplayCounts(
    fresh_rollouts=fresh,
    generated_tokens=fresh * parts.shape.max_new_tokens,
    updates=updates_per_iteration,
    trained_rollouts=trained,
    trained_tokens=trained * parts.shape.max_new_tokens,
    replay_ratio=trained / fresh,
    cost_units=trained + mu * fresh,
    buffer_iterations=parts.capacity / fresh,
  )


def times(
  config: config_lib.Config,
  parts: state.Parts,
  mesh: jax.sharding.AbstractMesh,
  device: chips.Device,
  *,
  updates_per_iteration: float,
  cache_bytes: int,
) -> LowerBounds:
  """Returns lower bounds for one iteration of all seeds.

  A decode step reads the whole KV cache, because attention masks columns and
  skips none, and every weight that the device computes with, in the compute
  dtype. Prefill and learner are bound by FLOPs. The forward pass takes 2 N a
  token and attention over every column; the backward pass takes twice as much,
  and three times as much with remat. An update also reads and writes weights,
  gradients and optimizer state.

  Args:
    config: the run.
    parts: what was built from it.
    mesh: the devices that generate.
    device: each of them.
    updates_per_iteration: U.
    cache_bytes: KV cache of one seed on one device.
  """
  transformer, shape = parts.transformer, parts.shape
  columns = shape.num_tokens
  slots = min(config.sampler.num_slots or parts.num_fresh, parts.num_fresh)
  rounds = math.ceil(parts.num_fresh / slots)
  num_params = architecture.num_params(transformer)

  def seconds(*, flops=0.0, num_bytes=0.0):
    return max(flops / device.flops, num_bytes / device.bandwidth)

  def forward(num_tokens, context):
    """FLOPs on one device."""
    of_token = architecture.flops_per_token(transformer)
    of_token += architecture.attention_flops(transformer, context)
    return num_tokens * of_token / mesh.size

  itemsize = jnp.dtype(transformer.compute_dtype).itemsize
  num_tokens = parts.num_prompts * shape.prompt_length
  prefill = seconds(flops=forward(num_tokens, shape.prompt_length))
  step = seconds(
    flops=forward(slots, columns),
    num_bytes=itemsize * num_params / mesh.shape['tensor'] + cache_bytes,
  )
  passes = 4 if config.optimizer.remat else 3
  update = seconds(flops=passes * forward(parts.num_rows * columns, columns))
  # Adam reads weight, gradient and two moments, and writes all but the second.
  update += seconds(num_bytes=7 * 4 * num_params / mesh.size)
  return LowerBounds(
    prefill=config.num_seeds * prefill,
    decode=config.num_seeds * rounds * shape.max_new_tokens * step,
    learner=config.num_seeds * updates_per_iteration * update,
  )
