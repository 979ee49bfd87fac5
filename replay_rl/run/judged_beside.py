"""A generation in pieces, whose responses are judged beside it."""

import contextlib
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp

from replay_rl.lm import continuous
from replay_rl.lm import model
from replay_rl.parallel import mesh as mesh_lib
from replay_rl.run import generation
from replay_rl.run import placement
from replay_rl.run import state
from replay_rl.run import timing
from replay_rl.tasks import task as task_lib
from replay_rl.tasks.text import beside


class Interrupted(Exception):  # noqa: N818 - no error, as KeyboardInterrupt.
  """Raised where a run is to stop within a generation.

  run: the state before the cycle, with the generation in `in_flight`.
  """

  def __init__(self, run: state.RunState):
    """Takes the state, whose arrays no program donates any more."""
    super().__init__('within a generation')
    self.run = run


class Watch:
  """Says whether to stop; a generation in pieces asks after each piece."""

  def __init__(self):
    """Never stops, until `is_to_stop` is replaced."""
    self.is_to_stop: Callable[[], bool] = lambda: False


class PiecePrograms(NamedTuple):
  """The functions of `generation`, each over an axis of seeds.

  one_set: policy -> policy, once for all pieces.
  begin: (policy, prompts) -> generation in progress.
  advance: (policy, prompts, generation in progress, donated) -> (generation in
    progress, harvested, on all devices).
  harvested_before: (policy, prompts, generation in progress) -> harvested.
  complete: (policy, prompts, generation in progress) -> generation.
  """

  one_set: Callable
  begin: Callable
  advance: Callable
  harvested_before: Callable
  complete: Callable


def places(
  parts: state.Parts, mesh: jax.sharding.Mesh
) -> tuple[generation.Policy, generation.InFlight]:
  """Returns where the policy and the generation in progress are, `[S, ...]`."""

  def place(axes: tuple[str | None, ...]) -> Any:
    return jax.sharding.NamedSharding(mesh, mesh_lib.spec((None, *axes)))

  weights = placement.of_params(
    model.logical_axes(parts.transformer), mesh, num_leading_axes=1
  )
  whole = place(())
  policy = generation.Policy(
    *(weights, whole, whole, whole, whole),
    spans=whole if parts.num_spans else None,
  )
  return policy, generation.InFlight(continuous.places(place), place(('rows',)))


def abstract(
  parts: state.Parts, num_seeds: int, mesh: jax.sharding.Mesh
) -> generation.InFlight:
  """Returns `jax.ShapeDtypeStruct`s `[S, ...]` with shardings.

  Args:
    parts: of the run.
    num_seeds: S.
    mesh: of the sampler.
  """

  def begin():
    params = parts.init_params_fn(jax.random.key(0))
    run = state.init(parts, params, jnp.uint32(0), parts.hyper)
    # Its shapes do not depend on which weights sample.
    learned = generation.policy(run._replace(sampler=None))
    prompts = state.empty_prompts(parts.shape, parts.num_prompts)
    return generation.begin(generation.one_set(learned, parts), prompts, parts)

  with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
    shapes = jax.eval_shape(begin)

  def of_seeds(sharding, records):
    return jax.tree.map(
      lambda leaf: jax.ShapeDtypeStruct(
        (num_seeds, *leaf.shape), leaf.dtype, sharding=sharding
      ),
      records,
    )

  return jax.tree.map(of_seeds, places(parts, mesh)[1], shapes)


def action(
  read: Callable,
  programs: PiecePrograms,
  task: task_lib.TextTask | None,
  *,
  num_rows: int,
  timed: Callable[[str, Callable], Callable],
  watch: Watch,
) -> Callable:
  """Returns (run, event) -> (generation, rewards, metrics).

  It goes on with the generation in `run.in_flight`, if there is one, and
  donates it. It raises `Interrupted` where it is to stop.

  Args:
    read: (run, event) -> (policy, prompts).
    programs: of the generation.
    task: the task; None if nobody calls the function.
    num_rows: F of each seed.
    timed: takes the name of an event and its function, and may time it.
    watch: says whether to stop.
  """

  def generate(run, event, judging):
    growing, run = run.in_flight, run._replace(in_flight=None)
    policy, prompts = read(run, event)
    policy = programs.one_set(policy)
    if growing is None:
      growing = programs.begin(policy, prompts)
    else:
      before = programs.harvested_before(policy, prompts, growing)
      judging.give(*jax.device_get(before)[:-1])
    growing, harvested = programs.advance(policy, prompts, growing)
    is_last = False
    while not is_last:
      # The devices go on while the host reads; the one too many does nothing.
      growing, following = programs.advance(policy, prompts, growing)
      *given, is_over = jax.device_get(harvested)
      judging.give(*given)
      is_last, harvested = is_over.all(), following
      if watch.is_to_stop() and not is_last:
        raise Interrupted(run._replace(in_flight=growing))
    return programs.complete(policy, prompts, growing)

  sample = timed(timing.GENERATE, generate)
  wait = timed(timing.WAIT, lambda judging: judging.result())

  def generate_and_judge(run, event):
    assert task is not None
    with contextlib.closing(
      beside.Beside(
        task,
        num_seeds=run.seed.shape[0],
        num_rows=num_rows,
        timed=lambda call: timed(timing.JUDGE, call),
      )
    ) as judging:
      return sample(run, event, judging), *wait(judging)

  return generate_and_judge
