"""The meshes of a run, and where its arrays live on them."""

import jax
import optax

from replay_rl import base
from replay_rl.lm import architecture
from replay_rl.parallel import mesh as mesh_lib
from replay_rl.replay import storage
from replay_rl.run import config as config_lib
from replay_rl.run import state

# Name, logical axis and size of what a mesh splits.
_Sizes = list[tuple[str, str, int]]


def of_params(
  param_axes: base.PyTree, mesh: jax.sharding.Mesh, *, num_leading_axes: int = 0
) -> base.PyTree:
  """Returns the sharding of each weight, by the rules of `mesh.RULES`.

  Args:
    param_axes: the logical axes of each weight, as `model.logical_axes` gives.
    mesh: the devices.
    num_leading_axes: axes before these, of seeds or versions, not split.
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
  optimizer: optax.GradientTransformation,
  mesh: jax.sharding.Mesh,
  *,
  buffer_memory: str,
) -> state.RunState:
  """Returns the sharding of each array of a run with a leading axis of seeds.

  Weights, what the optimizer keeps for them, and the rows of the buffer are
  split by the rules of `mesh.RULES`; all else is whole on every device.

  Args:
    run: arrays or `jax.ShapeDtypeStruct`s.
    param_axes: the logical axes of each weight, as `model.logical_axes` gives.
    optimizer: whose state the run holds.
    mesh: the devices.
    buffer_memory: 'device' or 'pinned_host', see `storage.place`.

  Raises:
    ValueError: if the mesh does not divide the capacity of the buffer.
  """
  storage.check_capacity(run.buffer.is_valid.shape[1], mesh)
  whole = mesh_lib.whole(mesh)

  def split(num_leading_axes):
    return of_params(param_axes, mesh, num_leading_axes=num_leading_axes)

  shardings = jax.tree.map(lambda _: whole, run)
  opt_state = optax.tree.map_params(
    optimizer,
    lambda _, sharding: sharding,
    run.learner.opt_state,
    split(1),
    transform_non_params=lambda _: whole,
  )
  rows = jax.sharding.NamedSharding(mesh, mesh_lib.spec([None, 'slots']))
  rollouts = jax.tree.map(
    lambda leaf: (
      storage.place(leaf, rows, buffer_memory) if leaf.ndim > 2 else whole
    ),
    run.buffer.rollouts,
  )
  shardings = shardings._replace(
    learner=shardings.learner._replace(params=split(1), opt_state=opt_state),
    buffer=shardings.buffer._replace(rollouts=rollouts),
  )
  if shardings.sampler is None:
    return shardings
  return shardings._replace(sampler=shardings.sampler._replace(params=split(2)))


def meshes_of_run(
  config: config_lib.Config, parts: state.Parts
) -> tuple[jax.sharding.Mesh, jax.sharding.Mesh | None]:
  """Returns the mesh of a run, and that of its sampler if it has its own.

  Args:
    config: the run.
    parts: what was built from it.

  Raises:
    ValueError: a shape that is not one of these devices, or that does not
      divide what it splits.
  """
  mesh = mesh_lib.make(config.mesh.shape)
  shape = config.mesh.sampler_shape
  if shape is None:
    check_meshes(config, parts, mesh, None)
    return mesh, None
  try:
    sampler_mesh = mesh_lib.make(shape, mesh.devices.flatten().tolist())
  except ValueError as error:
    raise ValueError(f'mesh.sampler_shape, as a {error}') from error
  if sampler_mesh.size != mesh.size:
    raise ValueError(
      f'mesh.sampler_shape = {dict(shape)}: must use all {mesh.size} devices '
      f'of mesh.shape = {dict(mesh.shape)}'
    )
  check_meshes(config, parts, mesh, sampler_mesh)
  return mesh, sampler_mesh


def check_meshes(
  config: config_lib.Config,
  parts: state.Parts,
  mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh,
  sampler_mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh | None,
) -> None:
  """Raises ValueError if a mesh does not divide what it would split.

  Args:
    config: the run.
    parts: what was built from it.
    mesh: its devices.
    sampler_mesh: where it generates; None for the same.
  """
  weights = _weights(parts.transformer)
  generated = (
    'sampler.num_prompts x sampler.group_size',
    'rows',
    parts.num_fresh,
  )
  num_rows = parts.num_rows
  learned: _Sizes = [
    ('rows of an update', 'rows', num_rows),
    (
      f'rows of a microbatch ({num_rows} / optimizer.num_microbatches)',
      'rows',
      num_rows // parts.num_microbatches,
    ),
    ('replay.capacity', 'slots', parts.capacity),
  ]
  if config.warm_start.num_steps:
    learned.append(
      ('warm_start.batch_size', 'rows', config.warm_start.batch_size)
    )
  sampled: _Sizes = []
  if config.evaluation.every:
    sampled.append(
      ('evaluation.num_prompts', 'rows', config.evaluation.num_prompts)
    )
  mesh_lib.check(mesh, 'mesh.shape', [*weights, generated, *learned])
  if sampler_mesh is None:
    mesh_lib.check(mesh, 'mesh.shape', sampled)
  else:
    mesh_lib.check(
      sampler_mesh, 'mesh.sampler_shape', [*weights, generated, *sampled]
    )


def _weights(transformer: architecture.TransformerConfig) -> _Sizes:
  return [
    ('model.num_heads', 'heads', transformer.num_heads),
    ('model.num_kv_heads', 'kv_heads', transformer.num_kv_heads),
    ('model.d_ff', 'mlp', transformer.d_ff),
    ('model.vocab_size', 'vocab', transformer.vocab_size),
    ('model.d_model', 'embed', transformer.d_model),
  ]
