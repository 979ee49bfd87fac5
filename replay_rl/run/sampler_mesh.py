"""Generation as programs of its own, on the mesh of the run or on another.

A learner wants its weights spread thin, over `fsdp`; a sampler reads all of
them for every token, and so wants them near, over `tensor` or whole. Another
mesh is another shape over the same devices: weights go there before, and what
was generated comes back after.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax

from replay_rl import base
from replay_rl.lm import model
from replay_rl.parallel import mesh as mesh_lib
from replay_rl.run import iteration
from replay_rl.run import placement
from replay_rl.run import schedule

# (run, prompts) -> (run, generation), with a leading axis of seeds
ActFn = Callable[
  [iteration.RunState, base.Prompts],
  tuple[iteration.RunState, iteration.Generation],
]


def act_fn(
  parts: iteration.Parts,
  *,
  over_seeds: Callable,
  shardings: iteration.RunState,
  mesh: jax.sharding.Mesh,
  sampler_mesh: jax.sharding.Mesh | None,
) -> ActFn:
  """Returns `iteration.act`, of arrays with a leading axis `[S]` of seeds.

  The run is donated. What is generated has its rows split over the run's mesh.

  Args:
    parts: what an iteration is made of.
    over_seeds: maps a function over seeds, as `seeds.over_seeds`.
    shardings: where the arrays of a run live.
    mesh: the devices of the run.
    sampler_mesh: where to generate; None for the mesh of the run.
  """
  rows = jax.sharding.NamedSharding(mesh, mesh_lib.spec((None, 'rows')))
  # All but the version of the weights have rows.
  split = iteration.Generation(rows, rows, rows, mesh_lib.whole(mesh))  # pyright: ignore
  act = functools.partial(iteration.act, parts=parts)
  if sampler_mesh is None:
    return jax.jit(
      lambda run, prompts: over_seeds(act, run, prompts),
      donate_argnums=0,
      out_shardings=(shardings, split),
    )
  behavior = jax.jit(
    lambda *args: over_seeds(schedule.behavior, *args),
    donate_argnums=0,
    out_shardings=(
      shardings.learner.params,
      shardings.learner.step,
      shardings.delay_line,
    ),
  )
  generate = moved(
    jax.jit(
      lambda run, prompts: over_seeds(
        lambda run, prompts: act(run, prompts)[1], run, prompts
      )
    ),
    parts,
    mesh=sampler_mesh,
    out_shardings=split,
  )

  def act_elsewhere(run, prompts):
    if run.delay_line is None:
      return run, generate(run, prompts)
    params, version, delay_line = behavior(
      run.delay_line, run.learner, run.iteration
    )
    lagged = base.LearnerState(params, None, version)
    generation = generate(run._replace(learner=lagged), prompts)
    return run._replace(delay_line=delay_line), generation

  return act_elsewhere


def moved(
  program: Callable,
  parts: iteration.Parts,
  *,
  mesh: jax.sharding.Mesh,
  out_shardings: Any,
) -> Callable:
  """Returns a program of a run and more that is computed on another mesh.

  The program gets a run without buffer, optimizer, delay line and ledger.

  Args:
    program: jitted; of a run `[S, ...]` and other arrays.
    parts: what an iteration is made of.
    mesh: where to compute: the weights are split by the table, all else is
      whole on every device.
    out_shardings: where to put what it returns.
  """
  whole = mesh_lib.whole(mesh)
  weights = placement.of_params(
    model.logical_axes(parts.transformer), mesh, num_leading_axes=1
  )

  def call(run, *rest):
    # None leaves no array behind, and so needs no place.
    seen = iteration.RunState(
      seed=run.seed,
      iteration=run.iteration,
      learner=base.LearnerState(run.learner.params, None, run.learner.step),
      buffer=None,  # pyright: ignore
      delay_line=None,
      ledger=None,  # pyright: ignore
    )
    places = jax.tree.map(lambda _: whole, seen)
    places = places._replace(learner=places.learner._replace(params=weights))
    seen = jax.device_put(seen, places)
    rest = jax.device_put(rest, whole)
    with jax.set_mesh(mesh):
      result = program(seen, *rest)
    return jax.device_put(result, out_shardings)

  return call
