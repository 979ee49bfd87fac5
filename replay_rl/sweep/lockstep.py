"""Runs several cells of a sweep in lockstep, with their cycles as one program.

Each cell is a run of its own, with its folder, log, checkpoints and end. Only
the cycles run together, as more seeds of one program, because one small run
leaves most of an accelerator idle. A cell that ends makes room for the next.
"""

import collections
import contextlib
import functools
import time
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Generator
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp

from replay_rl import base
from replay_rl import train
from replay_rl.fit import machine
from replay_rl.run import config as config_lib
from replay_rl.run import maker as maker_lib
from replay_rl.run import placement
from replay_rl.run import programs as programs_lib
from replay_rl.run import remote
from replay_rl.run import session as session_lib
from replay_rl.run import state
from replay_rl.run import stopping
from replay_rl.sweep import planning
from replay_rl.tasks import task as task_lib

_Loop = Generator[session_lib.Asked, session_lib.Cycled, None]
_Step = Callable[[_Loop], session_lib.Asked]


class _Running(NamedTuple):
  """A cell that waits for a cycle.

  planned: the cell.
  loop: its run; see `_cell`.
  began: when it began, in seconds.
  asked: the cycle.
  since: when it asked for that, in seconds.
  """

  planned: planning.PlannedCell
  loop: _Loop
  began: float
  asked: session_lib.Asked
  since: float


class _Programs:
  """The programs of one cell, and those of `num_cells` cells together."""

  def __init__(self, num_cells: int):
    self.num_cells = num_cells
    self._made: list[programs_lib.Programs] = []
    self._mesh: jax.sharding.Mesh | None = None

  def make(
    self,
    parts: state.Parts,
    task: task_lib.Task | task_lib.TextTask,
    settings: maker_lib.Settings,
  ) -> programs_lib.Programs:
    """Returns the programs of one cell; see `train.MakePrograms`."""
    if not self._made:
      self._mesh = settings.mesh
      self._made = [
        programs_lib.build(
          parts, task, settings._replace(num_seeds=number * settings.num_seeds)
        )
        for number in (1, self.num_cells)
      ]
    return self._made[0]

  def mesh(self) -> contextlib.AbstractContextManager:
    """Makes the mesh of the cells JAX's current one, once a cell has it."""
    return jax.set_mesh(self._mesh) if self._mesh else contextlib.nullcontext()

  def cycle(self, cells: Sequence[_Running]) -> list[tuple[_Running, _Step]]:
    """Runs a cycle of up to `num_cells` cells, which have the same events.

    The first of them fills the places of cells that are missing, so that no
    other program has to be compiled.

    Returns:
      Each cell, with the step that brings it to its next cycle.
    """
    started = time.perf_counter()
    try:
      with self.mesh():
        results, seconds = self._cycle([one.asked for one in cells])
    except Exception as raised:  # Such as an exhausted memory.
      error = raised
      return [(one, lambda loop: loop.throw(error)) for one in cells]
    share = (time.perf_counter() - started) / len(cells)
    of_events = {name: of_all / len(cells) for name, of_all in seconds.items()}

    def send(one, run, measured):
      def step(loop):
        others = time.perf_counter() - one.since - share
        return loop.send(session_lib.Cycled(run, measured, of_events, others))

      return step

    return [
      (one, send(one, *result))
      for one, result in zip(cells, results, strict=True)
    ]

  def _cycle(
    self, asked: Sequence[session_lib.Asked]
  ) -> tuple[list[tuple[state.RunState, Any]], dict[str, float]]:
    """Returns state and metrics of each cell, and the seconds by event."""
    runs, events = [one.run for one in asked], asked[0].events
    alone, together = self._made
    if len(runs) == 1:
      result = jax.block_until_ready(alone.cycle(runs[0], events))
      return [result], alone.seconds()
    joined = _joined(*runs, *[runs[0]] * (self.num_cells - len(runs)))
    for leaf in jax.tree.leaves(runs):
      leaf.delete()  # A cycle of one cell donates it, too.
    result = jax.block_until_ready(together.cycle(joined, events))
    return _parted(result, self.num_cells)[: len(runs)], together.seconds()


@jax.jit
def _joined(*runs: base.PyTree) -> base.PyTree:
  """Returns cells of `[S, ...]` as one of `[number of cells * S, ...]`."""
  return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *runs)


@functools.partial(jax.jit, static_argnums=1)
def _parted(joined: base.PyTree, number: int) -> list[base.PyTree]:
  """Inverts `_joined`."""
  leaves, structure = jax.tree.flatten(joined)
  parts = [jnp.split(leaf, number) for leaf in leaves]
  return [structure.unflatten(part) for part in zip(*parts, strict=True)]


def check(work: planning.Work, *, num_cells: int) -> None:
  """Raises ValueError if the cells of a group cannot run together.

  Args:
    work, num_cells: see `run`.
  """
  for one in work.planned:
    config = one.cell.config
    for field, value, needed in (
      ('vmap_seeds', config.vmap_seeds, True),
      ('mesh.buffer_memory', config.mesh.buffer_memory, 'device'),
    ):
      if value != needed:
        raise ValueError(
          f'cell {one.cell.name!r}: {field} = {value!r}: must be {needed!r} '
          'for --lockstep'
        )
  # Cells with the same programs need the same memory.
  config = work.planned[0].cell.config
  num_seeds = config.num_seeds * min(num_cells, len(work.planned))
  with planning.built(config) as (_, experiment):
    machine.check(
      config_lib.changed(config, {'num_seeds': num_seeds}),
      experiment.parts,
      *placement.meshes_of_run(config, experiment.parts),
      allow_memory=False,
    )


def run(work: planning.Work, *, num_cells: int) -> Iterator[planning.Ended]:
  """Yields each cell when it ends.

  Args:
    work: its cells have the same programs, and none has finished.
    num_cells: the number of cells that run at a time.

  Raises:
    SystemExit: after a signal, when the cells that run have saved a checkpoint.
  """
  waiting = collections.deque(work.planned)
  programs = _Programs(min(num_cells, len(waiting)))
  running: list[_Running] = []
  exits: list[SystemExit] = []
  with contextlib.ExitStack() as stack:
    received = stack.enter_context(stopping.signals())
    stack.callback(lambda: [one.loop.close() for one in running])
    while running or (waiting and not exits):
      while waiting and len(running) < programs.num_cells and not exits:
        planned = waiting.popleft()
        loop = _cell(planned, work, programs, received)
        begun = _advanced(planned, loop, time.perf_counter(), next)
        if isinstance(begun, planning.Ended):
          yield begun
        else:
          running.append(begun)
      cycled = []
      for cells in _alike(running):
        cycled += programs.cycle(cells)
      still = []
      for one, step in cycled:
        try:
          with programs.mesh():
            after = _advanced(one.planned, one.loop, one.began, step)
        except SystemExit as raised:
          exits.append(raised)
          continue
        if isinstance(after, planning.Ended):
          yield after
        else:
          still.append(after)
      running = still
  if exits:
    raise exits[0]


def _advanced(
  planned: planning.PlannedCell, loop: _Loop, began: float, step: _Step
) -> _Running | planning.Ended:
  """Returns a cell at its next cycle, or how it ended.

  Args:
    planned: the cell.
    loop: its run.
    began: when it began, in seconds.
    step: brings the run to its next cycle.

  Raises:
    SystemExit: after a signal.
  """
  error = None
  try:
    asked = step(loop)
    return _Running(planned, loop, began, asked, time.perf_counter())
  except StopIteration:
    pass
  except Exception as raised:  # A user's function or a device may raise any.
    error = planning.reason(raised)
  seconds = time.perf_counter() - began
  return planning.Ended(planned.cell.name, error, False, seconds)


def _alike(running: Sequence[_Running]) -> list[list[_Running]]:
  """Returns the cells by the events of their next cycles.

  They differ where a schedule does not repeat and cells began at other times.
  """
  groups: dict[Any, list[_Running]] = {}
  for one in running:
    groups.setdefault(one.asked.events, []).append(one)
  return list(groups.values())


def _cell(
  planned: planning.PlannedCell,
  work: planning.Work,
  programs: _Programs,
  received: Collection[int],
) -> _Loop:
  """Trains a cell and marks it as finished; see `session.iterations`."""
  cell = planned.cell
  folder = work.out / cell.name
  with contextlib.ExitStack() as stack:
    session = train.opened(
      cell.config,
      folder,
      stack,
      staging=remote.DEFAULT,
      ancestor=None,
      allow_code_change=work.allow_code_change,
      allow_memory=False,
      make_programs=programs.make,
    )
    if session.restored.run.in_flight is not None:
      raise ValueError(
        f'workdir = {str(folder)!r}: must be continued without --lockstep, '
        'because it stopped within a generation'
      )
    yield from session_lib.iterations(session, received, stop_after=None)
  planning.mark_finished(cell, folder)
