"""Runs the groups of a sweep as tasks of Ray: --executor=ray.

    python -m replay_rl.sweep ... --executor=ray -- --workers=2 --max_crashes=3
    python -m replay_rl.sweep ... --executor=ray -- --address=auto --cpus=8 \\
      --gpus=1 --max_crashes=3

A task runs the cells of a group in its own worker process, as `local` does. If
the worker dies, Ray starts the task again, and the cells continue from their
checkpoints. Without an address, the cluster is on this machine, and ends with
the sweep. All machines of a cluster must have this package and its environment
variables, and see the folder of the sweep under the same path.
"""

import os
import pathlib
import socket
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from absl import flags

from replay_rl.sweep import cells as cells_lib
from replay_rl.sweep import local
from replay_rl.sweep import planning
from replay_rl.sweep import progress as progress_lib

_SECONDS = 30.0  # Between lines of the whole sweep.
_TIMEOUT = 10.0  # Seconds in which a cluster has to answer.
_STORE = 80 * 2**20  # Bytes; Ray takes no less, and results are small.


class SavedError(RuntimeError):
  """A signal ended the process of a group, which has saved a checkpoint."""


def _settings(arguments: Sequence[str]) -> flags.FlagValues:
  own = flags.FlagValues()
  flags.DEFINE_integer(
    'workers', None, 'Groups at a time.', lower_bound=1, flag_values=own
  )
  flags.DEFINE_string(
    'address', None, 'Of a Ray cluster; auto for that here.', flag_values=own
  )
  flags.DEFINE_integer(
    'cpus', 1, 'CPUs that a group asks for.', lower_bound=1, flag_values=own
  )
  flags.DEFINE_integer(
    'gpus', 0, 'GPUs that a group asks for.', lower_bound=0, flag_values=own
  )
  flags.DEFINE_integer(
    'max_crashes',
    None,
    'How often a group may start again after its worker died.',
    lower_bound=0,
    flag_values=own,
  )
  try:
    rest = own(['ray', *arguments])[1:]
  except flags.Error as error:
    raise ValueError(str(error)) from error
  if rest:
    raise ValueError(f'arguments = {rest}: must be flags')
  if (own['workers'].value is None) == (own['address'].value is None):
    raise ValueError(
      '--workers, --address: exactly one must be given, after --'
    )
  if own['max_crashes'].value is None:
    raise ValueError('--max_crashes = None: must be given, after --')
  return own


def execute(work: planning.Work) -> list[planning.Ended]:
  """Runs the cells on a Ray cluster; see `planning.Executor`.

  Raises:
    ValueError: a setting is wrong, Ray is not installed, or no cluster is at
      the address.
  """
  settings = _settings(work.settings)
  progress = progress_lib.Progress(work.planned, work.out, work.say)
  for one in local.check(work):
    progress.add(one)
  groups = planning.unfinished_groups(work.planned)
  if groups:
    ray = _connected(settings)
    try:
      _run_groups(ray, settings, work, list(groups.values()), progress)
    finally:
      ray.shutdown()
  return progress.ended


def _connected(settings: flags.FlagValues) -> Any:
  """Returns the module `ray` after it has joined or started a cluster."""
  # Else Ray reports to its makers.
  os.environ['RAY_USAGE_STATS_ENABLED'] = '0'
  # Else Ray warns that it will hide GPUs no more from tasks that ask for none.
  os.environ.setdefault('RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO', '0')
  try:
    import ray
  except ImportError as error:
    raise ValueError(
      "--executor = 'ray': must have Ray installed, by pip install "
      "'replay_rl[ray]'"
    ) from error
  quiet = {'log_to_driver': False, 'logging_level': 'ERROR'}
  workers, cpus = settings['workers'].value, settings['cpus'].value
  if workers is not None:
    with warnings.catch_warnings():
      # The processes of the cluster are other programs from their start on, so
      # the threads of JAX here cannot block them.
      warnings.filterwarnings('ignore', r'os\.fork', RuntimeWarning)
      ray.init(
        address='local',
        num_cpus=workers * cpus,
        include_dashboard=False,
        object_store_memory=_STORE,
        **quiet,
      )
    return ray
  address = str(settings['address'].value)
  host, colon, port = address.rpartition('/')[2].rpartition(':')
  try:
    if colon:  # Ray itself would try for ever.
      socket.create_connection((host, int(port)), _TIMEOUT).close()
    ray.init(address=address, **quiet)
  except (OSError, ValueError, RuntimeError) as error:
    raise ValueError(
      f'--address = {address!r}: must be a Ray cluster that runs'
    ) from error
  return ray


def _run_groups(
  ray: Any,
  settings: flags.FlagValues,
  work: planning.Work,
  groups: Sequence[Sequence[planning.PlannedCell]],
  progress: progress_lib.Progress,
) -> None:
  """Adds the cells of all groups to the progress."""
  run_group = ray.remote(_run_group).options(
    num_cpus=settings['cpus'].value,
    num_gpus=settings['gpus'].value,
    max_retries=settings['max_crashes'].value,
    retry_exceptions=[SavedError],
  )
  running = {
    run_group.remote(
      [one.cell for one in group],
      str(work.out),
      str(pathlib.Path.cwd()),
      work.allow_code_change,
    ): group
    for group in groups
  }
  while running:
    ready, _ = ray.wait(list(running), num_returns=1, timeout=_SECONDS)
    for task in ready:
      for one in _ended(ray, task, running.pop(task), work.out):
        progress.add(one)
    if not ready:
      work.say(progress.line())


def _run_group(
  cells: Sequence[cells_lib.Cell],
  out: str,
  folder: str,
  allow_code_change: bool,
) -> list[planning.Ended]:
  """Runs cells in a process of Ray.

  Args:
    cells: those of a group.
    out: folder of the sweep.
    folder: from which relative paths start.
    allow_code_change: see `train.train`.
  """
  os.chdir(folder)
  try:
    return local.run(
      cells,
      pathlib.Path(out),
      say=lambda text: print(text, file=sys.stderr),
      allow_code_change=allow_code_change,
    )
  except SystemExit as error:
    raise SavedError(f'status = {error.code}: must be 0') from error


def _ended(
  ray: Any,
  task: Any,
  group: Sequence[planning.PlannedCell],
  out: pathlib.Path,
) -> list[planning.Ended]:
  """Returns how the cells of a task ended, also if its last worker died."""
  try:
    return ray.get(task)
  except ray.exceptions.RayError as raised:
    lines = str(raised).strip().splitlines()
    error = f'{type(raised).__name__}: {lines[-1] if lines else ""}'
  return [
    planning.Ended(
      one.cell.name,
      None if planning.is_finished(one.cell, out / one.cell.name) else error,
      is_skipped=False,
      seconds=None,
    )
    for one in group
  ]
