"""Trains a run.

    python -m replay_rl.train --config=configs/quickstart.py:reuse_4 \\
        --workdir=runs/x --config.replay.updates_per_iteration=8
    python -m replay_rl.train --config=configs/quickstart.py:reuse_4 \\
        --workdir=runs/y --from=runs/x@40

Every field of the config can be given so; replay_rl/run/config.py lists them.
`--config=quickstart:reuse_4` is the config of that name of the package.

`--workdir=gs://BUCKET/RUN` or `s3://BUCKET/RUN` keeps the run in a bucket.

`--from=RUN@ITERATION` starts a new folder with the state of a checkpoint.

The same command continues a run that stopped. Ctrl-C, SIGTERM and SIGHUP save
a checkpoint and end the program with status 130, 143 or 129, so that a launcher
can start it again; a second Ctrl-C ends it at once.

On many hosts, start the same command once on each, with --distributed or with
--coordinator_address, --num_processes and --process_id; see
parallel/processes.py. All processes share the folder. A signal to one
process saves a checkpoint and ends all. If one process dies, all others end
with a status other than 0 and one line each.
"""

import contextlib
import dataclasses
import functools
import pathlib
import shlex
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app
from absl import flags
from absl import logging as absl_logging
from ml_collections import config_flags

from replay_rl import command_line
from replay_rl.disk import paths
from replay_rl.fit import machine
from replay_rl.parallel import processes
from replay_rl.provenance import environment
from replay_rl.provenance import sources
from replay_rl.run import build
from replay_rl.run import checkpoint
from replay_rl.run import config as config_lib
from replay_rl.run import entry
from replay_rl.run import fork
from replay_rl.run import judged_beside
from replay_rl.run import logs
from replay_rl.run import maker as maker_lib
from replay_rl.run import packages
from replay_rl.run import placement
from replay_rl.run import profiling
from replay_rl.run import programs as programs_lib
from replay_rl.run import remote
from replay_rl.run import session as session_lib
from replay_rl.run import state
from replay_rl.run import stopped as stopped_lib
from replay_rl.run import stopping
from replay_rl.run import workdir as workdir_lib
from replay_rl.run import writers
from replay_rl.tasks import task as task_lib

_CONFIG = config_flags.DEFINE_config_file(
  'config', None, 'File of configs/, with --config.field=value to override.'
)
_WORKDIR = flags.DEFINE_string(
  'workdir', None, 'Folder of the run, or gs://BUCKET/RUN or s3://BUCKET/RUN.'
)
_STAGING = flags.DEFINE_string(
  'staging',
  None,
  'Local copy of a run in a bucket; by default a folder below the temporary '
  'folder of the system, which the run names at its start.',
)
_TAKE_OVER = flags.DEFINE_bool(
  'take_over',
  False,
  'Continue a run in a bucket although another process owns it, because that '
  'one is dead. If it lives, it ends at its next checkpoint.',
)
_FROM = flags.DEFINE_string(
  'from',
  None,
  'RUN@ITERATION: folder of a run and iterations done at a checkpoint, with '
  'whose state a new run begins.',
)
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
_ALLOW_CODE_CHANGE = flags.DEFINE_bool(
  'allow_code_change',
  False,
  'Continue a run although the code or the packages have changed since then; '
  'config.json records it.',
)
_ALLOW_MEMORY = flags.DEFINE_bool(
  'allow_memory',
  False,
  'Start a run that needs more memory than there is, with a warning.',
)
_PROFILE = flags.DEFINE_string(
  'profile',
  None,
  'FIRST:END, iterations from 0 to trace for TensorBoard or XProf, such as '
  '3:5 for the two after the first three.',
)
_INITIALIZATION = flags.DEFINE_integer(
  'initialization_timeout',
  60,
  'Seconds in which all processes must start and find each other.',
)
_HEARTBEAT = flags.DEFINE_integer(
  'heartbeat_timeout',
  100,
  'Seconds without a sign of a process, after which all others end.',
)

# (parts, task, settings) -> programs
MakePrograms = Callable[
  [state.Parts, task_lib.Task | task_lib.TextTask, maker_lib.Settings],
  programs_lib.Programs,
]


def train(
  config: config_lib.Config,
  workdir: str | pathlib.Path,
  *,
  staging: remote.Staging = remote.DEFAULT,
  ancestor: fork.Ancestor | None = None,
  stop_after: int | None = None,
  profile: profiling.Traced | None = None,
  allow_code_change: bool = False,
  allow_memory: bool = False,
  make_programs: MakePrograms = programs_lib.build,
  **functions: Callable,
) -> state.RunState:
  """Trains a run to its end, from its newest checkpoint if there is one.

  With many processes, all of them call it with the same arguments.

  Args:
    config: the run.
    workdir: the folder of the run, the same for all processes; or, as a text,
      its address in a bucket.
    staging: how a run in a bucket is entered.
    ancestor: another run with whose state a new one begins; None for none, and
      to continue.
    stop_after: number of iterations of the run after which to save and return;
      None for all.
    profile: the iterations to trace, into `profiling.FOLDER` of the folder.
    allow_code_change: whether to continue a run although the code or the
      packages have changed; the folder records it.
    allow_memory: whether to warn, and go on, where the run needs more memory
      than there is.
    make_programs: builds the programs of the run. A sweep returns here those of
      another run that can share them.
    **functions: replacements for what the config names, such as
      `weights=my_rule`; the keys are those of `functions.KINDS`. The folder
      records a hash of their sources.

  Returns:
    The state of the run, each array `[S, ...]`.

  Raises:
    ValueError: a setting is not allowed, the run does not fit the memory, the
      folder cannot be used, or a package is missing.
    stopping.DivergedError: a reward, loss, gradient or weight is not finite.
    durable.WriteError: a file cannot be written.
    objects.BucketError: a bucket cannot be read or written.
    stopping.EmptyUpdatesError: the first generations gave no valid row.
    SystemExit: after a signal of `stopping.SIGNALS`, with 128 + its number.
  """
  # Before anything is computed; the session knows where a run continues.
  profiling.check(profile, 0, config.num_iterations)
  with contextlib.ExitStack() as stack:
    session = opened(
      config,
      workdir,
      stack,
      staging=staging,
      ancestor=ancestor,
      allow_code_change=allow_code_change,
      allow_memory=allow_memory,
      make_programs=make_programs,
      **functions,
    )
    stack.enter_context(jax.set_mesh(session.mesh))
    received = stack.enter_context(stopping.signals())
    return session_lib.run(
      session, received, stop_after=stop_after, profile=profile
    )


def opened(
  config: config_lib.Config,
  workdir: str | pathlib.Path,
  stack: contextlib.ExitStack,
  *,
  staging: remote.Staging,
  ancestor: fork.Ancestor | None,
  allow_code_change: bool,
  allow_memory: bool,
  make_programs: MakePrograms,
  **functions: Callable,
) -> session_lib.Session:
  """Opens a run at its newest checkpoint, or at its start.

  Args:
    stack: closes the run; its folder is locked until then.
    config, workdir, staging, ancestor, functions: see `train`.
    allow_code_change, allow_memory, make_programs: see `train`.

  Raises:
    ValueError: see `train`.
  """
  with processes.together('reading the config'):
    remote.check(workdir, staging)
    environment.check()
    packages.check(config)
    task = build.task(config, functions)
    stack.callback(task_lib.close, task)
    experiment = build.experiment(config, task.shape, functions)
    mesh, sampler_mesh = placement.meshes_of_run(config, experiment.parts)
    machine.check(
      *(config, experiment.parts, mesh, sampler_mesh),
      allow_memory=allow_memory,
    )
  processes.check_mesh(mesh)
  upload = None
  if paths.is_address(workdir):
    workdir, mirror = stack.enter_context(remote.opened(workdir, staging))
    upload = mirror.upload
  workdir = entry.resolved(workdir)
  cache = pathlib.Path(config.cache_dir).expanduser()
  jax.config.update('jax_compilation_cache_dir', str(cache / 'programs'))
  made_of = record(config, experiment, task)
  with processes.together('reading the ancestor'):
    made_of['ancestry'] = fork.ancestry(
      ancestor,
      workdir,
      made_of,
      config=config,
      experiment=experiment,
      shape=task.shape,
      functions=functions,
      allow_code_change=allow_code_change,
    )
  entry.enter(workdir, made_of, config, allow_code_change, stack)
  attention = build.attention_note(experiment.parts, mesh)
  for note in (*task_lib.notes(task), attention):
    logs.say(note)
  programs = make_programs(
    experiment.parts,
    task,
    maker_lib.settings_of(config, mesh=mesh, sampler_mesh=sampler_mesh),
  )
  seeds = np.uint32(config.seed) + np.arange(config.num_seeds, dtype=np.uint32)
  with jax.set_mesh(mesh):
    run = programs.init(
      build.base_weights(config, experiment, task),
      jnp.asarray(seeds),
      state.of_seeds(experiment.parts.hyper, config.num_seeds),
    )
    checkpoints = stack.enter_context(
      contextlib.closing(
        checkpoint.Checkpoints(
          workdir / 'checkpoints', keep=config.checkpoint.keep, upload=upload
        )
      )
    )
    check_files = functools.partial(logs.check, workdir)
    restored = checkpoints.restore_latest(run, check_files)
    in_flight = None
    if experiment.parts.judges_beside and jax.process_count() == 1:
      in_flight = judged_beside.abstract(
        experiment.parts, config.num_seeds, sampler_mesh or mesh
      )
    stopped, restored = stopped_lib.restore(
      *(workdir, run, restored, stack),
      in_flight=in_flight,
      check_files=check_files,
      upload=upload,
    )
    if restored is None:
      logs.check_unstarted(
        workdir,
        first=fork.first_iteration(made_of),
        lines_per_iteration=config.num_seeds,
        every=config.checkpoint.every,
      )
      restored = checkpoint.Restored(run, {})
      if ancestor is not None:
        restored = fork.begin(ancestor, run, checkpoints, workdir)
  return session_lib.Session(
    config=config,
    workdir=workdir,
    experiment=experiment,
    task=task,
    mesh=mesh,
    programs=programs,
    checkpoints=checkpoints,
    stopped=stopped,
    restored=restored,
  )


def record(
  config: config_lib.Config,
  experiment: build.Experiment,
  task: task_lib.Task | task_lib.TextTask,
) -> dict[str, Any]:
  """Returns what a run is made of, for `workdir.claim`."""
  return workdir_lib.record(
    dataclasses.asdict(config),
    functions=experiment.records,
    modules=sources.of_users([*experiment.users, *task_lib.users(task)]),
    data=task_lib.sources(task),
    is_in_text=config.text is not None,
  )


def ending(config: config_lib.Config, workdir: str) -> str:
  """Returns what the program says at the end: where to look further."""
  folder = shlex.quote(str(workdir))
  report = 'report' if paths.is_address(workdir) else f'{folder}/report'
  seed = f' --seed={config.seed}' if config.num_seeds > 1 else ''
  lines = [
    f'{folder} is done, with metrics.jsonl and checkpoints/. To look further:',
    f'python -m replay_rl.report {folder} --out={report}',
    f'python -m replay_rl.inspect {folder}{seed}',
  ]
  if writers.is_tensorboard(config) and not paths.is_address(workdir):
    lines.append(f'tensorboard --logdir={folder}/{writers.BOARD}')
  return '\n  '.join(lines)


def main(argv: list[str]) -> None:
  """Trains the run that the flags name."""
  if len(argv) > 1:
    raise app.UsageError(f'arguments = {argv[1:]}: must be flags')
  # Orbax prints a traceback before it raises the error.
  absl_logging.set_verbosity(absl_logging.FATAL)
  with command_line.lasting_output(), command_line.one_line():
    if _WORKDIR.value is None or _CONFIG.value is None:
      name = '--config' if _CONFIG.value is None else '--workdir'
      raise ValueError(f'{name} = None: must be given')
    profile = (
      None if _PROFILE.value is None else profiling.parse(_PROFILE.value)
    )
    peers = processes.start(
      from_environment=_DISTRIBUTED.value,
      coordinator_address=_COORDINATOR.value,
      num_processes=_NUM_PROCESSES.value,
      process_id=_PROCESS_ID.value,
      initialization_timeout=_INITIALIZATION.value,
      heartbeat_timeout=_HEARTBEAT.value,
    )
    with processes.ending_all(peers):
      train(
        _CONFIG.value,
        _WORKDIR.value,
        staging=remote.Staging(_STAGING.value, _TAKE_OVER.value),
        ancestor=None if _FROM.value is None else fork.parse(_FROM.value),
        profile=profile,
        allow_code_change=_ALLOW_CODE_CHANGE.value,
        allow_memory=_ALLOW_MEMORY.value,
      )
    if processes.is_main():
      print(ending(_CONFIG.value, _WORKDIR.value))


if __name__ == '__main__':
  app.run(main, flags_parser=command_line.parse)
