"""The folder of a run: its config, and the lock of the process that trains."""

import contextlib
import fcntl
import json
import os
import pathlib
import platform
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import jax
from flax import traverse_util

CONFIG = 'config.json'
# Sections of the config that may change when a run resumes, because they change
# its results only by rounding.
_MAY_CHANGE = ('mesh.',)
_PACKAGES = (
  'replay_rl',
  'jax',
  'jaxlib',
  'flax',
  'optax',
  'orbax-checkpoint',
  'chex',
  'ml_collections',
  'numpy',
)


@contextlib.contextmanager
def locked(folder: pathlib.Path) -> Iterator[None]:
  """Creates the folder and locks it for this process.

  The operating system frees the lock when the process ends or dies.

  Raises:
    ValueError: the folder cannot be written, or another process holds it.
  """
  try:
    folder.mkdir(parents=True, exist_ok=True)
    lock = open(folder / '.lock', 'w')
  except OSError as error:
    raise ValueError(
      f'workdir = {str(folder)!r}: must be a folder that can be written '
      f'({error})'
    ) from error
  with lock:
    try:
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
      raise ValueError(
        f'workdir = {str(folder)!r}: must not be in use by another process'
      ) from error
    yield


def claim(
  folder: pathlib.Path, config: dict[str, Any], functions: dict[str, Any]
) -> list[str]:
  """Writes the config into a new folder, or checks that the folder has it.

  The mesh may differ: a run can resume with more or fewer devices.

  Args:
    folder: of the run.
    config: all fields of the config, nested, as plain JSON values.
    functions: `build.Experiment.records`.

  Returns:
    Changes of the mesh and of package versions, with which the run may not
    repeat bit for bit.

  Raises:
    ValueError: the folder holds a run with another config or other functions.
  """
  path = folder / CONFIG
  devices = jax.devices()
  record = {
    'config': config,
    'functions': functions,
    'versions': versions(),
    'commit': _commit(),
    'hardware': f'{len(devices)} x {devices[0].device_kind}, '
    f'{os.cpu_count()} CPU cores, {platform.machine()}',
    'command': sys.argv,
  }
  record = json.loads(json.dumps(record))  # Turns tuples into lists.
  if not path.exists():
    partial = path.with_suffix('.partial')
    partial.write_text(json.dumps(record, indent=2) + '\n')
    partial.replace(path)
    return []
  before = json.loads(path.read_text())
  old, new = (
    traverse_util.flatten_dict(one['config'], sep='.')
    for one in (before, record)
  )
  differing = _differing(old, new)
  changed = [name for name in differing if not name.startswith(_MAY_CHANGE)]
  _refuse(folder, 'config', changed, old, new)
  was, now = before.get('functions', {}), record['functions']
  _refuse(folder, 'functions', _differing(was, now), was, now)
  was, now = before['versions'], record['versions']
  old, new = old | was, new | now
  differing += [name for name in now if now[name] != was.get(name)]
  return [
    f'{name} is {new.get(name)} now, was {old.get(name)}' for name in differing
  ]


def _differing(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
  return [
    name
    for name in sorted(old.keys() | new.keys())
    if old.get(name) != new.get(name)
  ]


def _refuse(
  folder: pathlib.Path,
  what: str,
  names: list[str],
  old: dict[str, Any],
  new: dict[str, Any],
) -> None:
  if names:
    changes = '; '.join(
      f'{name} = {new.get(name)!r} (there: {old.get(name)!r})' for name in names
    )
    raise ValueError(
      f'workdir = {str(folder)!r}: must be another folder, or have the {what} '
      f'of the run that it holds; {changes}'
    )


def versions() -> dict[str, str | None]:
  """Returns the versions of Python and of `_PACKAGES`; None if missing."""
  installed = {}
  for name in _PACKAGES:
    try:
      installed[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
      installed[name] = None
  return installed | {'python': platform.python_version()}


def _commit() -> str:
  command = ['git', 'describe', '--always', '--dirty', '--abbrev=40']
  here = pathlib.Path(__file__).parent
  try:
    return subprocess.check_output(
      command, cwd=here, stderr=subprocess.DEVNULL, text=True
    ).strip()
  except (OSError, subprocess.CalledProcessError):
    return 'unknown'
