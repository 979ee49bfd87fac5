"""Trains a run: `python -m replay_rl.train --config=... --workdir=...`.

The same command continues a run that stopped. SIGTERM saves a checkpoint and
ends the program with status 143, so that a launcher can start it again.

On many hosts, start the same command once on each, with --distributed or with
--coordinator_address, --num_processes and --process_id; see
parallel/processes.py. All processes share the folder. SIGTERM to one process
saves a checkpoint and ends all. If one process dies, all others end with a
status other than 0.
"""

import contextlib
import dataclasses
import math
import pathlib
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from absl import app
from absl import flags
from absl import logging as absl_logging
from ml_collections import config_flags

from replay_rl import command_line
from replay_rl.parallel import processes
from replay_rl.run import build
from replay_rl.run import checkpoint
from replay_rl.run import config as config_lib
from replay_rl.run import evaluation
from replay_rl.run import logs
from replay_rl.run import placement
from replay_rl.run import programs as programs_lib
from replay_rl.run import samples
from replay_rl.run import state
from replay_rl.run import workdir as workdir_lib
from replay_rl.tasks import task as task_lib

TERMINATED = 128 + signal.SIGTERM
MAX_EMPTY_UPDATES = 10  # The run stops after so many in a row.

_CONFIG = config_flags.DEFINE_config_file(
  'config', None, 'File of configs/, with --config.field=value to override.'
)
_WORKDIR = flags.DEFINE_string('workdir', None, 'Folder of the run.')
_DISTRIBUTED = flags.DEFINE_bool(
  'distributed',
  False,
  'Run over the many processes of a TPU pod, SLURM, Open MPI or Kubernetes '
  'job, whose environment describes them.',
)
_COORDINATOR = flags.DEFINE_string(
  'coordinator_address',
  None,
  'HOST:PORT of process 0, to run over many processes elsewhere.',
)
_NUM_PROCESSES = flags.DEFINE_integer(
  'num_processes', None, 'Number of processes; with --coordinator_address.'
)
_PROCESS_ID = flags.DEFINE_integer(
  'process_id',
  None,
  'Number of this process, from 0; with --coordinator_address.',
)
_HEARTBEAT = flags.DEFINE_integer(
  'heartbeat_timeout',
  100,
  'Seconds without a sign of a process, after which all others end.',
)


class DivergedError(ValueError):
  """A loss, gradient or reward is not finite."""


class EmptyUpdatesError(ValueError):
  """`MAX_EMPTY_UPDATES` updates in a row had no valid row."""


def train(
  config: config_lib.Config,
  workdir: str | pathlib.Path,
  *,
  stop_after: int | None = None,
  **functions: Callable,
) -> state.RunState:
  """Trains a run to its last iteration, from its newest checkpoint if any.

  With many processes, all of them call it with the same arguments.

  Args:
    config: the run.
    workdir: the folder of the run, the same for all processes.
    stop_after: number of iterations of the run after which to save and return;
      None for all.
    **functions: replacements for what the config names, such as
      `weights=my_rule`; the keys are those of `functions.KINDS`. The folder
      records a hash of their sources.

  Returns:
    The state of the run, each array `[S, ...]`.

  Raises:
    ValueError: a setting is not allowed, or the folder cannot be used.
    DivergedError: a reward, loss or gradient is not finite.
    EmptyUpdatesError: `MAX_EMPTY_UPDATES` updates in a row had no valid row.
    SystemExit: after SIGTERM, with status `TERMINATED`.
  """
  workdir = pathlib.Path(workdir)
  with contextlib.ExitStack() as stack:
    with processes.together('reading the config'):
      task = build.task(config, functions)
      stack.callback(task_lib.close, task)
      experiment = build.experiment(config, task.shape, functions)
      mesh, sampler_mesh = placement.meshes_of_run(config, experiment.parts)
    processes.check_mesh(mesh)
    cache = pathlib.Path(config.cache_dir).expanduser()
    jax.config.update('jax_compilation_cache_dir', str(cache / 'programs'))
    _enter(workdir, config, experiment.records, stack)
    stack.enter_context(jax.set_mesh(mesh))
    for note in task_lib.notes(task):
      logs.say(note)
    programs = programs_lib.build(
      experiment.parts,
      task,
      programs_lib.settings_of(config, mesh=mesh, sampler_mesh=sampler_mesh),
    )
    seeds = config.seed + jnp.arange(config.num_seeds, dtype=jnp.uint32)
    run = programs.init(
      build.base_weights(config, experiment, task),
      seeds,
      state.of_seeds(experiment.parts.hyper, config.num_seeds),
    )
    manager = checkpoint.open_folder(
      workdir / 'checkpoints', keep=config.checkpoint.keep
    )
    with contextlib.closing(manager):
      run = checkpoint.restore_latest(manager, run) or run
      return _loop(
        run, experiment, task, programs, manager, config, workdir, stop_after
      )


def _enter(
  workdir: pathlib.Path,
  config: config_lib.Config,
  functions: dict[str, Any],
  stack: contextlib.ExitStack,
) -> None:
  """Locks the folder until the stack closes, and records config and functions.

  Raises:
    ValueError: processes differ, or the folder cannot be used.
  """
  record = dataclasses.asdict(config)
  same = 'start all processes alike'
  processes.check_equal('config', record, same)
  processes.check_equal('functions', functions, same)
  processes.check_equal('versions of packages', workdir_lib.versions(), same)
  what = f'workdir = {str(workdir)!r}'
  with processes.together(what):
    if processes.is_main():
      stack.enter_context(workdir_lib.locked(workdir))
      for note in workdir_lib.claim(workdir, record, functions):
        warnings.warn(
          f'{note}: the run may not repeat bit for bit', stacklevel=3
        )
  path = workdir / workdir_lib.CONFIG
  processes.check_equal(
    str(path),
    path.read_text() if path.exists() else None,
    'all processes must share that folder',
  )


def _loop(
  run: state.RunState,
  experiment: build.Experiment,
  task: task_lib.Task | task_lib.TextTask,
  programs: programs_lib.Programs,
  manager: ocp.CheckpointManager,
  config: config_lib.Config,
  workdir: pathlib.Path,
  stop_after: int | None,
) -> state.RunState:
  first = int(jax.device_get(run.clock.iteration)[0])
  end = config.num_iterations
  if first:
    logs.say(f'{workdir}: {first} of {end} iterations are done')
  if stop_after is not None:
    end = min(end, stop_after)
  with contextlib.ExitStack() as stack:
    terminated = stack.enter_context(_sigterm())
    log = None
    with processes.together('opening the log'):
      if processes.is_main():
        log = stack.enter_context(
          logs.open_all(
            workdir,
            name=config.name,
            num_iterations=config.num_iterations,
            iteration=first,
            tensorboard=config.logging.tensorboard,
            samples=config.logging.samples_every > 0,
          )
        )
    for iteration in range(first, end):
      started = time.perf_counter()
      run, measured = programs.cycle(run, experiment.schedule(iteration))
      lines = logs.lines(run, measured, experiment.parts.transformer, config.mu)
      if _is_due(config.evaluation.every, iteration):
        greedy, sampled = jax.device_get(programs.evaluate(run))
        lines = [
          line | evaluation.summarize(*of_seed)
          for line, *of_seed in zip(lines, greedy, sampled, strict=True)
        ]
      if log is not None:
        log.write(lines, time.perf_counter() - started)
      if _is_due(config.logging.samples_every, iteration):
        shown = programs.samples(run)
        if log is not None:
          log.write_samples(samples.lines(shown, task))
      _check_finite(lines, manager)
      _check_not_empty(run, config, experiment)
      is_terminated = processes.any_process(terminated.is_set())
      stops = iteration + 1 == end or is_terminated
      if stops or _is_due(config.checkpoint.every, iteration):
        checkpoint.save(manager, run)
      if is_terminated:
        manager.wait_until_finished()
        raise SystemExit(TERMINATED)
    manager.wait_until_finished()
  return run


def _is_due(every: int, iteration: int) -> bool:
  return every > 0 and (iteration + 1) % every == 0


def _check_not_empty(
  run: state.RunState, config: config_lib.Config, experiment: build.Experiment
) -> None:
  """Raises EmptyUpdatesError if a seed had too many empty updates in a row."""
  num_empty = int(np.max(jax.device_get(run.learner.num_empty_in_a_row)))
  if num_empty >= MAX_EMPTY_UPDATES:
    rule = experiment.chosen.get('replay.weights')
    raise EmptyUpdatesError(
      f'empty updates in a row = {num_empty}: must be below '
      f'{MAX_EMPTY_UPDATES}; replay.weights = {rule and rule.text!r} gives no '
      'stored rollout a positive weight, or replay.drop_zero_variance = '
      f'{config.replay.drop_zero_variance} dropped every group'
    )


def _check_finite(
  lines: list[dict[str, Any]], manager: ocp.CheckpointManager
) -> None:
  for line in lines:
    # Without an update on a valid row, loss and gradient are NaN.
    updates = line.get('updates/applied', 0) + line.get('updates/refused', 0)
    for name in ('reward', 'loss', 'grad_norm') if updates else ('reward',):
      # A cycle that generates nothing has no reward.
      if name in line and not math.isfinite(line[name]):
        manager.wait_until_finished()
        step = manager.latest_step()
        kept = (
          'there is no checkpoint yet'
          if step is None
          else f'the last good checkpoint is {manager.directory / str(step)}'
        )
        raise DivergedError(
          f'{name} = {line[name]} in iteration {line["iteration"]} of seed '
          f'{line["seed"]}: must be finite; {kept}'
        )


@contextlib.contextmanager
def _sigterm() -> Iterator[threading.Event]:
  """Yields an event that SIGTERM sets, where Python allows a handler."""
  event = threading.Event()
  if threading.current_thread() is not threading.main_thread():
    yield event
    return
  before = signal.signal(signal.SIGTERM, lambda *_: event.set())
  try:
    yield event
  finally:
    signal.signal(signal.SIGTERM, before)


def main(argv: list[str]) -> None:
  """Trains the run that the flags name."""
  if len(argv) > 1:
    raise app.UsageError(f'arguments = {argv[1:]}: must be flags')
  absl_logging.set_verbosity(absl_logging.WARNING)  # Hides Orbax's messages.
  try:
    if _WORKDIR.value is None or _CONFIG.value is None:
      name = '--config' if _CONFIG.value is None else '--workdir'
      raise ValueError(f'{name} = None: must be given')
    processes.start(
      from_environment=_DISTRIBUTED.value,
      coordinator_address=_COORDINATOR.value,
      num_processes=_NUM_PROCESSES.value,
      process_id=_PROCESS_ID.value,
      heartbeat_timeout=_HEARTBEAT.value,
    )
    with processes.ending_all():
      train(_CONFIG.value, _WORKDIR.value)
  except ValueError as error:
    sys.exit(f'error: {error}')


if __name__ == '__main__':
  app.run(main, flags_parser=command_line.parse)
