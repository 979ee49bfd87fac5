"""The meshes of a run, and the shardings of its arrays."""

import math
from collections.abc import Callable
from collections.abc import Mapping

import jax
import optax

from replay_rl import base
from replay_rl.parallel import host_memory
from replay_rl.parallel import mesh as mesh_lib
from replay_rl.replay import storage
from replay_rl.run import config as config_lib
from replay_rl.run import learner
from replay_rl.run import state


def of_params(
  param_axes: base.PyTree, mesh: jax.sharding.Mesh, *, num_leading_axes: int = 0
) -> base.PyTree:
  """Returns the sharding of each weight, by the rules of `mesh.RULES`.

  Args:
    param_axes: the logical axes of each weight, see `model.logical_axes`.
    mesh: the devices.
    num_leading_axes: axes of seeds and versions before them, which no mesh axis
      splits.
  """
  leading = (None,) * num_leading_axes
  return jax.tree.map(
    lambda axes: jax.sharding.NamedSharding(
      mesh, mesh_lib.spec(leading + axes)
    ),
    param_axes,
    is_leaf=lambda node: isinstance(node, tuple),
  )


def of_run(
  run: state.RunState,
  param_axes: base.PyTree,
  update: learner.UpdateFunctions,
  mesh: jax.sharding.Mesh,
  *,
  buffer_memory: str,
) -> state.RunState:
  """Returns the sharding of each array of a run.

  `mesh.RULES` splits the weights, what the optimizer and the gate keep of each
  weight, and the rows of the buffer. Each device has the whole of all other
  arrays.

  Args:
    run: arrays `[S, ...]` or `jax.ShapeDtypeStruct`s.
    param_axes: the logical axes of each weight, see `model.logical_axes`.
    update: the states of its optimizer and its gate are those of `run.learner`.
    mesh: the devices.
    buffer_memory: 'device' or 'pinned_host', see `host_memory.place`.

  Raises:
    ValueError: the mesh does not divide the capacity of the buffer.
  """
  storage.check_capacity(run.buffer.is_valid.shape[1], mesh)
  whole = mesh_lib.whole(mesh)

  def split(num_leading_axes):
    return of_params(param_axes, mesh, num_leading_axes=num_leading_axes)

  shardings = jax.tree.map(lambda _: whole, run)

  def of_state(
    init: Callable[[base.PyTree], base.PyTree], state: base.PyTree
  ) -> base.PyTree:
    return optax.tree.map_params(
      *(init, lambda _, sharding: sharding, state, split(1)),
      transform_non_params=lambda _: whole,
    )

  rows = jax.sharding.NamedSharding(mesh, mesh_lib.spec([None, 'slots']))
  rollouts = jax.tree.map(
    lambda leaf: (
      host_memory.place(leaf, rows, buffer_memory) if leaf.ndim > 2 else whole
    ),
    run.buffer.rollouts,
  )
  shardings = shardings._replace(
    learner=shardings.learner._replace(
      params=split(1),
      opt_state=of_state(update.optimizer.init, run.learner.opt_state),
      gate_state=(
        of_state(update.gate.init, run.learner.gate_state)
        if update.gate
        else ()
      ),
    ),
    buffer=shardings.buffer._replace(rollouts=rollouts),
  )
  if run.reference_params is not None:
    shardings = shardings._replace(reference_params=split(1))
  if shardings.sampler is None:
    return shardings
  return shardings._replace(sampler=shardings.sampler._replace(params=split(2)))


def meshes_of_run(
  config: config_lib.Config, parts: state.Parts
) -> tuple[jax.sharding.Mesh, jax.sharding.Mesh | None]:
  """Returns the mesh of a run, and the mesh of its sampler or None.

  Args:
    config: the run.
    parts: what `build.experiment` made of it.

  Raises:
    ValueError: a shape does not fit the devices, or does not divide the arrays.
  """
  mesh, sampler_mesh = mesh_lib.make(config.mesh.shape), None
  shape = sampler_shape(config, mesh.shape)
  if shape is not None:
    sampler_mesh = mesh_lib.make(shape, mesh.devices.flatten().tolist())
  check_meshes(config, parts, mesh, sampler_mesh)
  return mesh, sampler_mesh


def sampler_shape(
  config: config_lib.Config, mesh_shape: Mapping[str, int]
) -> dict[str, int] | None:
  """Returns the sizes of `mesh.sampler_shape`, without -1; None if it is None.

  Args:
    config: the run.
    mesh_shape: sizes of the mesh of the run.

  Raises:
    ValueError: it does not use the devices of that mesh.
  """
  shape, name = config.mesh.sampler_shape, 'mesh.sampler_shape'
  if shape is None:
    return None
  num_devices = math.prod(mesh_shape.values())
  sizes = mesh_lib.sizes(shape, num_devices, name)
  if math.prod(sizes.values()) != num_devices:
    raise ValueError(
      f'{name} = {dict(shape)}: must use all {num_devices} devices of '
      f'mesh.shape = {dict(mesh_shape)}'
    )
  return sizes


def check_meshes(
  config: config_lib.Config,
  parts: state.Parts,
  mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh,
  sampler_mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh | None,
) -> None:
  """Raises ValueError if a mesh does not divide an array that it splits.

  Args:
    config: the run.
    parts: what `build.experiment` made of it.
    mesh: the devices of the run.
    sampler_mesh: the devices that generate; None for `mesh`.
  """
  transformer = parts.transformer
  # Name, logical axis and size of what a mesh splits.
  on_both = [
    ('model.num_heads', 'heads', transformer.num_heads),
    ('model.num_kv_heads', 'kv_heads', transformer.num_kv_heads),
    ('model.d_ff', 'mlp', transformer.d_ff),
    ('model.vocab_size', 'vocab', transformer.vocab_size),
    ('model.d_model', 'embed', transformer.d_model),
    ('sampler.num_prompts x sampler.group_size', 'rows', parts.num_fresh),
  ]
  learned = [
    ('replay.capacity', 'slots', parts.capacity),
  ]
  if config.warm_start.num_steps:
    num_rows = config.warm_start.batch_size
    learned.append(('warm_start.batch_size', 'rows', num_rows))
  sampled, num_slots = [], config.sampler.num_slots
  if num_slots is not None:
    sampled.append(('sampler.num_slots', 'rows', num_slots))
  if config.evaluation.is_on:
    num_prompts = config.evaluation.num_prompts
    sampled.append(('evaluation.num_prompts', 'rows', num_prompts))
  mesh_lib.check(mesh, 'mesh.shape', [*on_both, *learned])
  if sampler_mesh is None:
    mesh_lib.check(mesh, 'mesh.shape', sampled)
  else:
    mesh_lib.check(sampler_mesh, 'mesh.sampler_shape', [*on_both, *sampled])
