"""The meshes of a run: of its devices, and able to split what it computes."""

import jax

from replay_rl.fit import budget
from replay_rl.lm import architecture
from replay_rl.parallel import mesh as mesh_lib
from replay_rl.run import config as config_lib
from replay_rl.run import iteration

# Name, logical axis and size of what a mesh splits.
_Sizes = list[tuple[str, str, int]]


def of_run(
  config: config_lib.Config, parts: iteration.Parts
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
    check(config, parts, mesh, None)
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
  check(config, parts, mesh, sampler_mesh)
  return mesh, sampler_mesh


def check(
  config: config_lib.Config,
  parts: iteration.Parts,
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
    parts.num_prompts * parts.group_size,
  )
  run = budget.shapes_of_run(parts, 1)
  num_rows = budget.rows_of_update(parts, run)
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
