"""The folder of a run: its configuration, and the lock of the process in it."""

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

CONFIG = 'config.json'
# Sections of the config that another process of the same run may change: what
# is computed stays the same but for rounding.
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
  """Makes the folder and holds it for this process alone.

  The system frees the lock when the process ends, however it ends.

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
        f'workdir = {str(folder)!r}: another process is training in it'
      ) from error
    yield


def claim(
  folder: pathlib.Path, config: dict[str, Any], functions: dict[str, Any]
) -> list[str]:
  """Writes the resolved configuration, or checks that it is the same.

  The mesh may be another one: a run may go on with more or fewer devices.

  Args:
    folder: of the run.
    config: every field of the run, nested, as plain JSON values.
    functions: what the fields of the config name, with a hash of the source of
      each function that is not of this package.

  Returns:
    Warnings: packages whose version is not that of the run's beginning, or
    another mesh, so that the run may not repeat bit for bit.

  Raises:
    ValueError: the folder holds a run of another configuration, or of other
      functions.
  """
  path = folder / CONFIG
  # Through JSON, so that a tuple and a list are the same.
  record = json.loads(
    json.dumps({'config': config, 'functions': functions} | _provenance())
  )
  if not path.exists():
    partial = path.with_suffix('.partial')
    partial.write_text(json.dumps(record, indent=2) + '\n')
    partial.replace(path)
    return []
  before = json.loads(path.read_text())
  old, new = _flat(before['config']), _flat(record['config'])
  differing = _differing(old, new)
  changed = [name for name in differing if not name.startswith(_MAY_CHANGE)]
  _refuse(folder, 'config', changed, old, new)
  old_functions = before.get('functions', {})
  _refuse(
    folder,
    'functions',
    _differing(old_functions, record['functions']),
    old_functions,
    record['functions'],
  )
  return [
    f'{name} is {new.get(name)} now, was {old.get(name)}' for name in differing
  ] + [
    f'{name} is {version} now, was {before["versions"].get(name)}'
    for name, version in record['versions'].items()
    if version != before['versions'].get(name)
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
  """Returns the versions of the packages that a run computes with."""
  return {name: _version(name) for name in _PACKAGES} | {
    'python': platform.python_version()
  }


def _provenance() -> dict[str, Any]:
  devices = jax.devices()
  return {
    'versions': versions(),
    'commit': _commit(),
    'hardware': f'{len(devices)} x {devices[0].device_kind}, '
    f'{os.cpu_count()} CPU cores, {platform.machine()}',
    'command': sys.argv,
  }


def _version(package: str) -> str | None:
  try:
    return metadata.version(package)
  except metadata.PackageNotFoundError:
    return None


def _commit() -> str:
  here = pathlib.Path(__file__).parent
  try:
    return subprocess.run(
      ['git', 'describe', '--always', '--dirty', '--abbrev=40'],
      cwd=here,
      check=True,
      capture_output=True,
      text=True,
    ).stdout.strip()
  except (OSError, subprocess.CalledProcessError):
    return 'unknown'


def _flat(tree: dict[str, Any], prefix: str = '') -> dict[str, Any]:
  flat = {}
  for name, value in tree.items():
    if isinstance(value, dict):
      flat |= _flat(value, f'{prefix}{name}.')
    else:
      flat[prefix + name] = value
  return flat
