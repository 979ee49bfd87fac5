"""A generation in pieces, whose responses are judged beside it."""

import contextlib
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import jax

from replay_rl.lm import continuous
from replay_rl.lm import model
from replay_rl.parallel import mesh as mesh_lib
from replay_rl.run import generation
from replay_rl.run import placement
from replay_rl.run import state
from replay_rl.run import timing
from replay_rl.tasks import task as task_lib
from replay_rl.tasks.text import beside


class PiecePrograms(NamedTuple):
  """The functions of `generation`, each over an axis of seeds.

  one_set: policy -> policy, once for all pieces.
  begin: (policy, prompts) -> generation in progress.
  advance: (policy, prompts, generation in progress, donated) -> (generation in
    progress, harvested, on all devices).
  complete: (policy, prompts, generation in progress) -> generation.
  """

  one_set: Callable
  begin: Callable
  advance: Callable
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


def action(
  read: Callable,
  programs: PiecePrograms,
  task: task_lib.TextTask | None,
  *,
  num_rows: int,
  timed: Callable[[str, Callable], Callable],
) -> Callable:
  """Returns (run, event) -> (generation, rewards, metrics).

  Args:
    read: (run, event) -> (policy, prompts).
    programs: of the generation.
    task: the task; None if nobody calls the function.
    num_rows: F of each seed.
    timed: takes the name of an event and its function, and may time it.
  """

  def generate(run, event, judging):
    policy, prompts = read(run, event)
    policy = programs.one_set(policy)
    growing = programs.begin(policy, prompts)
    growing, harvested = programs.advance(policy, prompts, growing)
    is_last = False
    while not is_last:
      # The devices go on while the host reads; the one too many does nothing.
      growing, following = programs.advance(policy, prompts, growing)
      *given, is_over = jax.device_get(harvested)
      judging.give(*given)
      is_last, harvested = is_over.all(), following
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
