"""A run that is open, and the iterations that bring it to its end."""

import contextlib
import functools
import pathlib
import time
from collections.abc import Collection
from collections.abc import Generator
from collections.abc import Mapping
from typing import NamedTuple

import jax

from replay_rl.parallel import processes
from replay_rl.run import budget
from replay_rl.run import build
from replay_rl.run import checkpoint
from replay_rl.run import config as config_lib
from replay_rl.run import evaluation
from replay_rl.run import events
from replay_rl.run import judged_beside
from replay_rl.run import logs
from replay_rl.run import profiling
from replay_rl.run import programs as programs_lib
from replay_rl.run import samples
from replay_rl.run import state
from replay_rl.run import stopping
from replay_rl.run import timing
from replay_rl.run import writers
from replay_rl.tasks import task as task_lib


class Session(NamedTuple):
  """A run whose folder is locked and whose state is in memory.

  config: the run.
  workdir: its folder.
  experiment, task: what was built from the config.
  mesh: the devices; it has to be JAX's current mesh during the iterations.
  programs: the compiled programs.
  checkpoints: of the folder.
  stopped: where a run is saved that stops within a generation; None if it only
    stops between cycles.
  restored: where the run begins.
  """

  config: config_lib.Config
  workdir: pathlib.Path
  experiment: build.Experiment
  task: task_lib.Task | task_lib.TextTask
  mesh: jax.sharding.Mesh
  programs: programs_lib.Programs
  checkpoints: checkpoint.Checkpoints
  stopped: checkpoint.Checkpoints | None
  restored: checkpoint.Restored


class Asked(NamedTuple):
  """A cycle to run: its number, the state to donate, and its events."""

  iteration: int
  run: state.RunState
  events: programs_lib.Events


class Cycled(NamedTuple):
  """What became of a cycle.

  run: the state after it.
  measured: its metrics.
  seconds_of_events: see `Programs.seconds`.
  seconds_of_others: how long the run waited for other runs.
  """

  run: state.RunState
  measured: events.Measured
  seconds_of_events: Mapping[str, float]
  seconds_of_others: float


def run(
  session: Session,
  received: Collection[int],
  *,
  stop_after: int | None,
  profile: profiling.Traced | None,
) -> state.RunState:
  """Brings a run to its end, and returns its state.

  Args:
    session, received, stop_after: see `iterations`.
    profile: the iterations to trace; None for none.

  Raises:
    ValueError: the run has not all iterations of `profile` before it.
    Exception: see `iterations`.
  """
  profiling.check(profile, *_span(session, stop_after))
  loop = iterations(session, received, stop_after=stop_after)
  programs = session.programs
  tracer = profiling.Tracer(profile, session.workdir)
  if session.stopped is not None:
    # A folder without a checkpoint would count as one that was not begun.
    programs.watch.is_to_stop = lambda: bool(
      received and session.checkpoints.steps()
    )
  with contextlib.closing(loop), tracer:
    cycled = None
    while True:
      try:
        asked = next(loop) if cycled is None else loop.send(cycled)
      except StopIteration as ended:
        return ended.value
      tracer.begin(asked.iteration)
      try:
        run, measured = programs.cycle(asked.run, asked.events)
      except judged_beside.Interrupted as interrupted:
        loop.throw(interrupted)
        raise  # Which it did.
      cycled = Cycled(run, measured, programs.seconds(), 0.0)


def iterations(
  session: Session, received: Collection[int], *, stop_after: int | None
) -> Generator[Asked, Cycled, state.RunState]:
  """Yields each cycle that the run needs, and is sent what became of it.

  Everything else of an iteration happens here: metrics, evaluation, samples,
  log and checkpoint.

  Args:
    session: the run.
    received: the signals of `stopping.signals`.
    stop_after: number of iterations of the run after which to save and return;
      None for all.

  Returns:
    The state of the run at its end.

  Raises:
    Exception: see `train.train`.
  """
  config, workdir = session.config, session.workdir
  experiment, programs = session.experiment, session.programs
  checkpoints = session.checkpoints
  run, marks = session.restored
  first, end = _span(session, stop_after)
  if first:
    num_all = config.num_iterations
    logs.say(f'{workdir}: {first} of {num_all} iterations are done')
  with contextlib.ExitStack() as stack:
    log = None
    with processes.together('opening the log'):
      if processes.is_main():
        log = stack.enter_context(
          logs.open_all(
            workdir,
            name=config.name,
            num_iterations=config.num_iterations,
            iteration=first,
            marks=marks,
            open_writers=functools.partial(
              writers.make(config),
              writers.Opening(
                folder=workdir,
                config=config,
                iteration=first,
                read=functools.partial(logs.read, workdir),
              ),
            ),
            samples=config.logging.samples_every > 0,
          )
        )
    progress: budget.Progress = {}
    if first:
      progress = budget.after({}, logs.read(workdir), experiment.stop)
    for iteration in range(first, end):
      if budget.is_over(progress):
        logs.say(f'{workdir}: stop ended it after {iteration} iterations')
        break
      started = time.perf_counter()
      try:
        cycled = yield Asked(iteration, run, experiment.schedule(iteration))
      except judged_beside.Interrupted as interrupted:
        _save_stopped(session, interrupted.run, log)
        number = stopping.first_signal(received)
        assert number is not None
        raise SystemExit(128 + number) from None
      run, measured = cycled.run, cycled.measured
      lines = logs.lines(run, measured, experiment.parts.transformer, config.mu)
      of_events = timing.fields(cycled.seconds_of_events, progress, lines)
      due = budget.seeds_due(progress, lines, config.evaluation)
      if due:
        greedy, sampled = jax.device_get(programs.evaluate(run))
        lines = [
          line | evaluation.summarize(*scores, config.evaluation)
          if line['seed'] in due
          else line
          for line, *scores in zip(lines, greedy, sampled, strict=True)
        ]
      if log is not None:
        seconds = time.perf_counter() - started - cycled.seconds_of_others
        log.write(lines, seconds, of_events)
      if _is_due(config.logging.samples_every, iteration):
        shown = programs.samples(run)
        if log is not None:
          log.write_samples(samples.lines(shown, session.task))
      progress = budget.after(progress, lines, experiment.stop)
      stopping.check_finite(lines, checkpoints)
      stopping.check_not_empty(run, config, experiment)
      number = stopping.first_signal(received)
      is_last = iteration + 1 == end or budget.is_over(progress)
      stops = is_last or number is not None
      if stops or _is_due(config.checkpoint.every, iteration):
        stopping.check_weights(programs.is_finite(run), lines, checkpoints)
        checkpoints.save(run, {} if log is None else log.marks())
      if number is not None:
        checkpoints.wait()
        raise SystemExit(128 + number)
    checkpoints.wait()
    if session.stopped is not None:
      session.stopped.clear()  # It was before the last checkpoint.
  return run


def _save_stopped(
  session: Session, run: state.RunState, log: logs.Log | None
) -> None:
  """Saves a run that stops within a generation."""
  assert session.stopped is not None
  session.checkpoints.wait()
  # Of the same iteration, if it has stopped there before.
  session.stopped.clear()
  session.stopped.save(run, {} if log is None else log.marks())
  session.stopped.wait()


def _span(session: Session, stop_after: int | None) -> tuple[int, int]:
  """Returns the next iteration of a run, and the one at which it ends."""
  first = int(jax.device_get(session.restored.run.clock.iteration)[0])
  end = session.config.num_iterations
  return first, end if stop_after is None else min(end, stop_after)


def _is_due(every: int, iteration: int) -> bool:
  return every > 0 and (iteration + 1) % every == 0
