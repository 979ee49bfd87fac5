"""The compiled programs of a run, each over an axis of seeds."""

import functools
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import jax

from replay_rl import base
from replay_rl.lm import model
from replay_rl.parallel import mesh as mesh_lib
from replay_rl.run import evaluation
from replay_rl.run import events as events_lib
from replay_rl.run import judged_beside
from replay_rl.run import maker
from replay_rl.run import placement
from replay_rl.run import samples as samples_lib
from replay_rl.run import schedule
from replay_rl.run import state
from replay_rl.run import timing
from replay_rl.tasks import task as task_lib

Events = tuple[schedule.Event, ...]


class Programs(NamedTuple):
  """The programs of a run; every array has a leading axis `[S]` of seeds.

  init: (params without that axis, seeds, hyper) -> run.
  cycle: (run, events) -> (run, metrics); the run is donated.
  evaluate: run -> greedy `[S, P, 1]` and sampled `[S, P, n]`, 1 for a right
    answer and 0 for a wrong one, whatever the reward of the learner.
  samples: run -> some rollouts of its buffer.
  is_finite: run -> `[S]` bool, see `evaluation.is_finite`.
  seconds: () -> seconds by event since the last call, of all seeds together; {}
    if the events are not timed.
  watch: says whether to stop within a generation that is judged beside;
    `cycle` then raises `judged_beside.Interrupted`.
  jitted: the compiled functions that the first four call, by name: 'init',
    'samples', 'evaluate', and either 'cycle' or 'generate', 'remember' and
    'learn'.
  """

  init: Callable[[base.PyTree, base.Array, state.Hyper], state.RunState]
  cycle: Callable[
    [state.RunState, Events], tuple[state.RunState, events_lib.Measured]
  ]
  evaluate: Callable[[state.RunState], tuple[base.Array, base.Array]]
  samples: Callable[[state.RunState], samples_lib.Shown]
  is_finite: Callable[[state.RunState], base.Array]
  seconds: Callable[[], dict[str, float]]
  watch: judged_beside.Watch
  jitted: Mapping[str, Any]


def build(
  parts: state.Parts,
  task: task_lib.Task | task_lib.TextTask | None,
  settings: maker.Settings,
) -> Programs:
  """Returns the programs of a run; each compiles at its first call.

  A cycle is one program if the task is in JAX, everything is in one place, each
  generation has one set of weights and the events are not timed. Otherwise its
  events are separate programs, with a verifier or a transfer of weights between
  them. With the buffer on the host, one program reads it and another writes it,
  because in a single program the TPU compiler would move the whole buffer to
  the device.

  Args:
    parts: the functions and sizes of the run.
    task: the task; None for a task in text whose programs are only compiled.
    settings: how to compile the programs.
  """
  make = maker.Maker(parts, settings, _shardings(parts, settings))
  read = functools.partial(
    samples_lib.read, num_samples=settings.num_shown, task=task
  )
  jitted = {'init': make.init(), 'samples': make.program(read)}
  evaluate, jitted['evaluate'] = make.evaluate(task)
  stopwatch, watch = timing.Stopwatch(), judged_beside.Watch()
  is_whole = (
    settings.sampler_mesh is None
    and settings.buffer_memory == 'device'
    and not settings.time_events
    and not parts.num_spans
  )
  if is_whole and isinstance(task, task_lib.Task):
    cycle = jitted['cycle'] = make.cycle(task)
  else:
    actions, separate = make.actions(
      task,
      stopwatch.timed if settings.time_events else lambda _, call: call,
      watch,
    )
    jitted |= separate
    cycle = functools.partial(events_lib.cycle, actions=actions)
  is_finite = make.program(
    functools.partial(
      evaluation.is_finite,
      parts=parts,
      num_rows=mesh_lib.num_parts(settings.mesh, 'rows'),
    )
  )
  return Programs(
    init=jitted['init'],
    cycle=cycle,
    evaluate=evaluate,
    samples=jitted['samples'],
    is_finite=lambda run: is_finite(run.learner, run.hyper),
    seconds=stopwatch.read,
    watch=watch,
    jitted=jitted,
  )


def abstract_run(
  parts: state.Parts, settings: maker.Settings
) -> state.RunState:
  """Returns a run of `jax.ShapeDtypeStruct`s `[S, ...]` with shardings."""
  return jax.tree.map(
    lambda leaf, sharding: jax.ShapeDtypeStruct(
      leaf.shape, leaf.dtype, sharding=sharding
    ),
    state.shapes_of_run(parts, settings.num_seeds),
    _shardings(parts, settings),
  )


def separate_events(
  parts: state.Parts,
  task: task_lib.Task | task_lib.TextTask,
  settings: maker.Settings,
) -> events_lib.Actions:
  """Returns the events of a cycle as separate programs, for any task.

  `remember`, `learn` and `publish` donate the run.

  Args:
    parts, task, settings: see `build`.
  """
  make = maker.Maker(parts, settings, _shardings(parts, settings))
  watch = judged_beside.Watch()
  return make.actions(task, lambda _, call: call, watch)[0]


def _shardings(parts: state.Parts, settings: maker.Settings) -> state.RunState:
  return placement.of_run(
    state.shapes_of_run(parts, settings.num_seeds),
    model.logical_axes(parts.transformer),
    parts.bind(parts.hyper).update,
    settings.mesh,
    buffer_memory=settings.buffer_memory,
  )
