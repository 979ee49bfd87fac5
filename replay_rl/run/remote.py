"""Runs in a bucket: a local folder that the run uses, and its copy there.

The local folder is made equal to the bucket at the start, so that what it held
before does not matter. From then on the bucket follows it, checkpoint by
checkpoint.
"""

import contextlib
import hashlib
import os
import pathlib
import tempfile
import warnings
from collections.abc import Iterator
from typing import NamedTuple

import jax

from replay_rl.bucket import mirror as mirror_lib
from replay_rl.bucket import objects
from replay_rl.disk import durable
from replay_rl.disk import paths
from replay_rl.run import logs
from replay_rl.run import profiling
from replay_rl.run import workdir as workdir_lib

_RUN = 'run'  # The folder of the run in the staging folder.
_ADDRESS = 'address'  # File beside it, which says what it is a copy of.


class Staging(NamedTuple):
  """How a run in a bucket is entered.

  folder: local copy of the run; None for one below the system's temporary
    folder, whose name follows from the address.
  take_over: whether to go on although another process may own the run.
  """

  folder: str | None
  take_over: bool


DEFAULT = Staging(folder=None, take_over=False)


def check(workdir: str | pathlib.Path, staging: Staging) -> None:
  """Raises ValueError if the folder of a run is an address, and a wrong one.

  It connects to nothing.

  Args:
    workdir: the folder of the run, or its address.
    staging: how it is entered.
  """
  if not paths.is_address(workdir):
    if staging != DEFAULT:
      raise ValueError(
        f'--staging = {staging.folder!r}, --take_over = {staging.take_over}: '
        'must be absent, unless --workdir is an address such as gs://BUCKET/RUN'
      )
    return
  objects.parse('workdir', workdir)
  if staging.folder is not None:
    paths.check('--staging', staging.folder)
  if jax.process_count() > 1:
    raise ValueError(
      f'workdir = {str(workdir)!r}: must be a path of a file system that all '
      f'{jax.process_count()} processes share; a bucket takes runs of one'
    )


@contextlib.contextmanager
def opened(
  workdir: str | pathlib.Path, staging: Staging
) -> Iterator[tuple[pathlib.Path, mirror_lib.Mirror]]:
  """Yields the local folder of a run in a bucket, and its copy there.

  The body owns the run. What it saved is in the bucket at its end.

  Args:
    workdir: address of the run.
    staging: how it is entered.

  Raises:
    ValueError: another process owns the run, or uses the local folder; or what
      is in the bucket is damaged.
    objects.BucketError: the bucket cannot be read and written.
    durable.WriteError: a local file cannot be written.
    Exception: of the body; then a failure to let the run go is a warning.
  """
  address = objects.parse('workdir', workdir)
  place = _place(address, staging.folder)
  with workdir_lib.locked(place):
    _check_address(place, address)
    store = objects.connect(address)
    claimed = mirror_lib.claim(store, take_over=staging.take_over)
    folder = place / _RUN
    mirror = mirror_lib.Mirror(
      store, folder, claimed, at_end=[profiling.FOLDER]
    )
    try:
      mirror_lib.prune(folder, claimed)
      mirror_lib.download(store, claimed, folder)
      logs.say(f'{address}: its local copy is {folder}')
      yield folder, mirror
    except Exception:
      try:
        mirror.finish()
      except (OSError, ValueError) as error:
        warnings.warn(
          f'{address}: still has this process as its owner ({error})',
          stacklevel=3,
        )
      raise
    except BaseException:  # A signal, after a checkpoint.
      mirror.finish()
      raise
    mirror.finish()


def _place(address: objects.Address, folder: str | None) -> pathlib.Path:
  """Returns the staging folder; the same address has the same one."""
  if folder is not None:
    return pathlib.Path(folder).expanduser().resolve()
  own = pathlib.Path(tempfile.gettempdir()) / f'replay_rl-{os.getuid()}'
  with durable.refusing(own, num_bytes=None):
    own.mkdir(mode=0o700, exist_ok=True)
  if own.stat().st_uid != os.getuid():
    raise ValueError(
      f'path = {str(own)!r}: must belong to this user; give --staging=FOLDER'
    )
  digest = hashlib.sha256(str(address).encode()).hexdigest()[:16]
  return (own / digest).resolve()


def _check_address(place: pathlib.Path, address: objects.Address) -> None:
  """Writes what a staging folder is a copy of, or compares it.

  Raises:
    ValueError: it is a folder of something else, whose files would go.
    durable.WriteError: it cannot be written.
  """
  path = place / _ADDRESS
  if path.is_file() and path.read_text(errors='replace') == str(address):
    return
  others = sorted(
    x.name
    for x in place.iterdir()
    # A killed process leaves a partial file.
    if x.name != '.lock' and not x.name.endswith('.partial')
  )
  if others:
    raise ValueError(
      f'--staging = {str(place)!r}: must be an empty folder, or a copy of '
      f'{address}; it holds {others[0]!r}'
    )
  durable.write(path, str(address).encode())
