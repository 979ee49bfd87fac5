"""How a run enters its folder: it locks it, and records what it is made of."""

import contextlib
import pathlib
import warnings
from typing import Any

from replay_rl.disk import paths
from replay_rl.lm.hf import files as hf_files
from replay_rl.parallel import processes
from replay_rl.run import config as config_lib
from replay_rl.run import fork
from replay_rl.run import logs
from replay_rl.run import profiling
from replay_rl.run import wandb_runs
from replay_rl.run import workdir as workdir_lib
from replay_rl.run import writers

# Folder for what a run left that ended before its first checkpoint.
UNBEGUN = 'unbegun'
_FILES = (
  *(logs.METRICS, logs.TIMING, logs.SAMPLES),
  *(writers.BOARD, wandb_runs.FOLDER),
  *('checkpoints', profiling.FOLDER),
  workdir_lib.CONFIG,  # The last: without it, the rest would stay.
)


def resolved(workdir: str | pathlib.Path) -> pathlib.Path:
  """Returns the one path of a folder that processes may spell differently.

  Raises:
    ValueError: it is no path of a file system.
  """
  paths.check('workdir', workdir)
  try:
    return pathlib.Path(workdir).expanduser().resolve()
  except (OSError, RuntimeError) as error:
    raise ValueError(
      f'workdir = {str(workdir)!r}: must be the path of a folder ({error})'
    ) from error


def enter(
  workdir: pathlib.Path,
  made_of: dict[str, Any],
  config: config_lib.Config,
  allow_code_change: bool,
  stack: contextlib.ExitStack,
) -> None:
  """Locks the folder until the stack closes, and records the run.

  A folder whose run ended before its first checkpoint is free for another run;
  what it left is moved below `UNBEGUN`.

  Args:
    workdir: the folder.
    made_of: see `workdir.record`.
    config: the run.
    allow_code_change: see `workdir.claim`.
    stack: frees the lock.

  Raises:
    ValueError: processes differ, or the folder cannot be used.
  """
  for part in ('config', 'functions', 'sources', 'data', 'versions'):
    processes.check_equal(part, made_of[part], 'start all processes alike')
  processes.check_equal(
    'workdir',
    str(workdir),
    f'mount one folder at one path on all hosts; here it is {workdir}',
  )
  with processes.together('entering the workdir'):
    if processes.is_main():
      stack.enter_context(workdir_lib.locked(workdir))
      add_checkpoint(made_of, config)  # One process reads it, for all.
      _free(workdir, made_of, allow_code_change=allow_code_change)
      for note in workdir_lib.claim(
        workdir, made_of, allow_code_change=allow_code_change
      ):
        warnings.warn(
          f'{note}: the run may not repeat bit for bit', stacklevel=3
        )
  path = workdir / workdir_lib.CONFIG
  processes.check_equal(
    'config.json',
    path.read_text() if path.exists() else None,
    'all processes must share the workdir',
  )


def add_checkpoint(made_of: dict[str, Any], config: config_lib.Config) -> None:
  """Adds the hash of the checkpoint that the weights are read from, if any."""
  if config.model.checkpoint is not None:
    made_of['data']['model.checkpoint'] = hf_files.content_hash(
      pathlib.Path(config.model.checkpoint).expanduser()
    )


def _free(
  workdir: pathlib.Path, made_of: dict[str, Any], *, allow_code_change: bool
) -> None:
  """Moves away what another run left that ended before its first checkpoint.

  Raises:
    ValueError: it must have had a checkpoint, or its record cannot be read.
  """
  if not (workdir / workdir_lib.CONFIG).exists() or fork.is_begun(workdir):
    return
  before = workdir_lib.read(workdir, made_of, advice=workdir_lib.ADVICE)
  try:
    workdir_lib.compare(workdir, made_of, allow_code_change=allow_code_change)
    if before['ancestry'] == made_of['ancestry']:
      return
  except ValueError:
    pass  # It is another run.
  settings = before['config']
  logs.check_unstarted(
    workdir,
    first=fork.first_iteration(before),
    lines_per_iteration=settings['num_seeds'],
    every=settings['checkpoint']['every'],
  )
  number = 1
  while (target := workdir / UNBEGUN / str(number)).exists():
    number += 1
  target.mkdir(parents=True)
  for name in _FILES:
    if (workdir / name).exists():
      (workdir / name).rename(target / name)
  logs.say(
    f'{workdir}: held another run, which ended before its first checkpoint; '
    f'it is now in {target}'
  )
