"""Reads a run from a folder or from a bucket, where it may be in progress."""

import argparse
import contextlib
import pathlib
import tempfile
from collections.abc import Callable
from collections.abc import Iterator

from replay_rl.bucket import manifest as manifest_lib
from replay_rl.bucket import mirror
from replay_rl.bucket import objects
from replay_rl.disk import paths

_CHECKPOINTS = 'checkpoints'


def text(argument: str) -> str:
  """Returns the folder of a run or its address, for a flag of `argparse`.

  Raises:
    argparse.ArgumentTypeError: it is an address of something else.
  """
  try:
    if paths.is_address(argument):
      objects.parse('path', argument)
  except ValueError as error:
    raise argparse.ArgumentTypeError(str(error)) from error
  return argument


@contextlib.contextmanager
def readable(
  name: str,
  run: str | pathlib.Path,
  *,
  iteration: int | None = None,
  checkpoints: bool = True,
) -> Iterator[pathlib.Path]:
  """Yields the folder of a run to read from, which may still be in progress.

  A run in a bucket is copied to a temporary folder, which goes at the end.

  Args:
    name: of the setting, for messages.
    run: path or address.
    iteration: iterations done at the checkpoint to read; None for the newest.
    checkpoints: whether any checkpoint is read.

  Raises:
    ValueError: there is no run at the address, or a package is missing.
    objects.BucketError: the bucket cannot be read.
    durable.WriteError: a local file cannot be written.
  """
  if not paths.is_address(run):
    yield pathlib.Path(run).expanduser()
    return
  address = objects.parse(name, run)
  store = objects.connect(address)
  manifest = manifest_lib.newest(store)
  with tempfile.TemporaryDirectory(prefix='replay_rl-') as temporary:
    folder = (
      pathlib.Path(temporary) / pathlib.PurePosixPath(address.prefix).name
    )
    while True:
      if manifest is None or not manifest.files:
        raise ValueError(
          f'{name} = {str(run)!r}: must be the address of a run with a '
          'checkpoint'
        )
      read = set[str]()
      if checkpoints:
        read = {str(_pick(name, run, manifest, iteration))}
      try:
        mirror.prune(folder, manifest)
        mirror.download(store, manifest, folder, _without(read))
        break
      except manifest_lib.ManifestError:
        # The run may have gone on, and have removed what it needs no more.
        before, manifest = manifest, manifest_lib.newest(store)
        if manifest == before:
          raise
    yield folder


def _pick(
  name: str,
  run: str | pathlib.Path,
  manifest: manifest_lib.Manifest,
  iteration: int | None,
) -> int:
  """Returns the iterations done at a checkpoint; None for the newest.

  Raises:
    ValueError: there is no such checkpoint.
  """
  parts = (pathlib.PurePosixPath(path).parts for path in manifest.files)
  steps = sorted({int(x[1]) for x in parts if x[0] == _CHECKPOINTS})
  if not steps or iteration not in (None, *steps):
    raise ValueError(
      f'iteration = {iteration}: must be one of {steps}, the checkpoints of '
      f'{name} = {str(run)!r}'
    )
  return steps[-1] if iteration is None else iteration


def _without(steps: set[str]) -> Callable[[str], bool]:
  """Returns whether to read a file: all but those of other checkpoints."""

  def is_read(path: str) -> bool:
    top, *rest = pathlib.PurePosixPath(path).parts
    return top != _CHECKPOINTS or rest[0] in steps

  return is_read
