"""The folder of a run: what the run is made of, and the lock of its process."""

import contextlib
import fcntl
import json
import pathlib
import sys
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

from flax import traverse_util

from replay_rl import json_files
from replay_rl.disk import durable
from replay_rl.provenance import environment
from replay_rl.provenance import sources

CONFIG = 'config.json'
# Sections of the config that may change when a run resumes, because they change
# its results only by rounding, or not at all.
_MAY_CHANGE = (
  *('mesh.', 'cache_dir', 'stop'),
  *('text.num_workers', 'text.judge_every'),
)
# Those of them, and of the limits, that do not change a result in any case.
_EXACT = (
  *('num_iterations', 'stop', 'cache_dir', 'text.num_workers'),
  *('checkpoint.every', 'checkpoint.keep'),
)
# Limits that may rise: what a run did below them stays as it is.
_MAY_RISE = (
  'num_iterations',
  'checkpoint.every',
  'checkpoint.keep',
  'text.answer_timeout',
  'text.max_answer_chars',
  'text.memory_limit',
)
# Parts of the record -> what a difference means.
OF_CODE = ('functions', 'sources', 'versions')
ALLOW_CODE = '--allow_code_change goes on, and records it'
_OF_MACHINE = ('environment', 'hardware')
_NUM_SHOWN = 5  # Differences in a message.
ADVICE = 'restore it, or train in another folder'


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


def record(
  config: dict[str, Any],
  *,
  functions: Mapping[str, Any],
  modules: Mapping[str, str],
  data: Mapping[str, str],
  is_in_text: bool,
) -> dict[str, Any]:
  """Returns what a run is made of, as plain JSON.

  Args:
    config: all fields of the config, nested, as plain JSON values.
    functions: `build.Experiment.records`.
    modules: `sources.of_users` of its functions.
    data: hashes of the contents that it reads, such as those of its problems.
    is_in_text: see `environment.versions`.
  """
  made_of = {
    'config': config,
    'functions': functions,
    'sources': {**sources.of_package(), **modules},
    'data': data,
    'versions': environment.versions(is_in_text=is_in_text),
    'environment': environment.numerics(),
    'hardware': environment.hardware(),
    'commit': environment.commit(),
    'command': sys.argv,
    'ancestry': [],
    'changes': [],
  }
  return json.loads(json.dumps(made_of))  # Turns tuples into lists.


def claim(
  folder: pathlib.Path,
  made_of: dict[str, Any],
  *,
  allow_code_change: bool,
) -> list[str]:
  """Writes the record of a run into a new folder, or compares it.

  Some settings may change, see `_MAY_CHANGE` and `_MAY_RISE`. The record then
  holds the new ones, and what they were is added to its 'changes'.

  Args:
    folder: of the run.
    made_of: see `record`.
    allow_code_change: whether the code and the packages may differ.

  Returns:
    Changes with which the run may not repeat bit for bit.

  Raises:
    ValueError: the folder holds a run with another config, other code or other
      data, or its record cannot be read.
    durable.WriteError: the record cannot be written.
  """
  path = folder / CONFIG
  if not path.exists():
    _write(path, made_of)
    return []
  before = read(folder, made_of, advice=ADVICE)
  changes = compare(folder, made_of, allow_code_change=allow_code_change)
  if not changes:
    return []
  change = {'newest_checkpoint': max(steps(folder), default=0)} | changes
  _write(path, made_of | {'changes': [*before['changes'], change]})
  return [
    f'{name} is {now!r} now, was {was!r}'
    for pairs in changes.values()
    for name, (was, now) in [
      pair for pair in pairs.items() if pair[0] not in _EXACT
    ][:_NUM_SHOWN]
  ]


def compare(
  folder: pathlib.Path,
  made_of: dict[str, Any],
  *,
  allow_code_change: bool,
) -> dict[str, dict[str, tuple[Any, Any]]]:
  """Returns what differs from the record of a folder and may differ.

  Args:
    folder: of the run.
    made_of: see `record`.
    allow_code_change: whether the code and the packages may differ.

  Returns:
    By part of the record and by name, what was and what is now.

  Raises:
    ValueError: see `claim`.
  """
  differences = differing(read(folder, made_of, advice=ADVICE), made_of)
  _refuse(folder, 'config', _refused(differences['config']))
  _refuse(folder, 'data', differences['data'])
  for part in OF_CODE * (not allow_code_change):
    _refuse(folder, part, differences[part], f'; {ALLOW_CODE}')
  return {part: pairs for part, pairs in differences.items() if pairs}


def steps(folder: pathlib.Path) -> list[int]:
  """Returns the iterations done at the checkpoints of a run, in order."""
  names = [path.name for path in folder.glob('checkpoints/*')]
  return sorted(int(name) for name in names if name.isdigit())


def _write(path: pathlib.Path, made_of: dict[str, Any]) -> None:
  durable.write(path, (json.dumps(made_of, indent=2) + '\n').encode())


def read(
  folder: pathlib.Path, like: dict[str, Any], *, advice: str
) -> dict[str, Any]:
  """Returns the record of a folder.

  Args:
    folder: of the run.
    like: a record, whose parts it must have.
    advice: what a user can do if they are not there.

  Raises:
    ValueError: the record cannot be read, or lacks a part.
  """
  path = folder / CONFIG
  # A record of code that could not fork has no such part.
  before = {'ancestry': []} | json_files.read_object(path, advice=advice)
  lacking = [
    name
    for name, value in like.items()
    if not isinstance(before.get(name), type(value))
  ]
  if lacking:
    raise ValueError(
      f'parts that {path} lacks = {lacking}: must be none; {advice}'
    )
  return before


def differing(
  before: dict[str, Any], now: dict[str, Any]
) -> dict[str, dict[str, tuple[Any, Any]]]:
  """Returns for each part of two records, by name, what was and what is."""
  differences = {}
  for part in ('config', 'data', *OF_CODE, *_OF_MACHINE):
    old, new = before[part], now[part]
    if not isinstance(old, dict):
      old, new = {part: old}, {part: new}
    elif part == 'config':
      old, new = (
        traverse_util.flatten_dict(x, keep_empty_nodes=True, sep='.')
        for x in (old, new)
      )
    differences[part] = {
      name: (old.get(name), new.get(name))
      for name in sorted(old.keys() | new.keys())
      if old.get(name) != new.get(name)
    }
  return differences


def _refused(pairs: dict[str, tuple[Any, Any]]) -> dict[str, tuple[Any, Any]]:
  """Returns the changes of the config that may not be."""
  return {
    name: (was, now)
    for name, (was, now) in pairs.items()
    if not name.startswith(_MAY_CHANGE)
    and not (name in _MAY_RISE and None not in (was, now) and now > was)
  }


def _refuse(
  folder: pathlib.Path,
  what: str,
  pairs: dict[str, tuple[Any, Any]],
  advice: str = '',
) -> None:
  if pairs:
    raise ValueError(
      f'workdir = {str(folder)!r}: must be another folder, or have the {what} '
      f'of the run that it holds; {shown(pairs)}{advice}'
    )


def shown(pairs: Mapping[str, tuple[Any, Any]]) -> str:
  """Returns the first differences of a part, for a message."""
  changes = [
    f'{name} = {now!r} (there: {was!r})' for name, (was, now) in pairs.items()
  ]
  more = len(changes) - _NUM_SHOWN
  return '; '.join(changes[:_NUM_SHOWN]) + f'; and {more} more' * (more > 0)
