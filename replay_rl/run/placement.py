"""Where the arrays of a run live on a mesh."""

import jax
import optax

from replay_rl import base
from replay_rl.parallel import mesh as mesh_lib
from replay_rl.replay import storage
from replay_rl.run import iteration


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
  run: iteration.RunState,
  param_axes: base.PyTree,
  optimizer: optax.GradientTransformation,
  mesh: jax.sharding.Mesh,
  *,
  buffer_memory: str,
) -> iteration.RunState:
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
  if run.delay_line is None:
    return shardings
  return shardings._replace(
    delay_line=shardings.delay_line._replace(params=split(2))
  )
