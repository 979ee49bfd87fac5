"""Copies the folder of a run into a bucket, and back.

A file that grows is kept as parts: an upload adds the bytes since the last one
as an object of its own. A part is at least as long as all parts behind it
together, so that a file of n bytes has about log2(n) parts and each of its
bytes is sent about log2(n) times.
"""

import concurrent.futures
import hashlib
import io
import pathlib
import shutil
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple

from replay_rl.bucket import manifest as manifest_lib
from replay_rl.bucket import objects
from replay_rl.bucket import owner as owner_lib
from replay_rl.disk import durable
from replay_rl.disk import line_file

_NUM_THREADS = 8
_BLOCK = 2**20  # Bytes to read at once.


class TakenOverError(ValueError):
  """Another process has written what this one owned."""


class _Rest(NamedTuple):
  """A part to upload: the bytes of a file from `first` to `end`."""

  path: str
  first: int
  end: int


class _Seen(NamedTuple):
  """A file as it was at the last upload, which a change would change."""

  inode: int
  num_bytes: int
  changed: int  # Nanoseconds, of the file system.


class Mirror:
  """The copy of the folder of a run in a bucket, which this process owns."""

  def __init__(
    self,
    store: objects.Store,
    folder: pathlib.Path,
    claimed: manifest_lib.Manifest,
    *,
    at_end: Sequence[str],
  ):
    """Takes what is there; it uploads nothing.

    Args:
      store: the bucket.
      folder: of the run.
      claimed: the newest manifest, which this process wrote.
      at_end: names in the folder to upload at the end of the run only.
    """
    self._store = store
    self._folder = folder
    self._manifest = claimed
    self._at_end = frozenset(at_end)
    self._seen: dict[str, _Seen] = {}
    self._marks: Mapping[str, line_file.Mark] | None = None
    self._is_lost = False

  def upload(self, iteration: int, marks: Mapping[str, line_file.Mark]) -> None:
    """Uploads what the folder has and the bucket lacks, and the manifest last.

    Args:
      iteration: of the newest checkpoint in the folder.
      marks: how far the files with these names belong to it.

    Raises:
      objects.BucketError: the bucket cannot be written; then it is as before.
      TakenOverError: another process owns the run now.
    """
    self._marks = marks
    try:
      files = self._uploaded(self._at_end)
    except BaseException:
      self._marks = None  # `finish` then uploads nothing.
      raise
    self._write(self._manifest._replace(iteration=iteration, files=files))

  def finish(self) -> None:
    """Uploads the rest, and lets other processes write; does so once.

    What belongs to no checkpoint of this process is left out.

    Raises:
      objects.BucketError, TakenOverError: see `upload`.
    """
    if self._is_lost or self._manifest.owner is None:
      return
    files = self._manifest.files
    if self._marks is not None:
      files = self._uploaded(frozenset())
    self._write(self._manifest._replace(owner=None, files=files))

  def _write(self, changed: manifest_lib.Manifest) -> None:
    changed = changed._replace(number=self._manifest.number + 1)
    # If the answer of the bucket is lost, this manifest may be there, and what
    # it names must stay.
    self._is_lost = True
    if not manifest_lib.write(self._store, changed):
      raise TakenOverError(
        f'workdir = {str(self._store.address)!r}: must not be taken over while '
        'this process runs; another process owns it now'
      )
    self._manifest, self._is_lost = changed, False

  def _uploaded(
    self, without: frozenset[str]
  ) -> dict[str, Sequence[manifest_lib.Part]]:
    """Uploads what changed; returns the parts of all files."""
    files, rests = {}, []
    for path in sorted(self._folder.rglob('*')):
      name = path.relative_to(self._folder).as_posix()
      if name.partition('/')[0] in without or not _is_kept(path):
        continue
      files[name], rest = self._kept(name, path)
      if rest is not None:
        rests.append(rest)
    with concurrent.futures.ThreadPoolExecutor(_NUM_THREADS) as threads:
      for rest, part in zip(rests, threads.map(self._send, rests), strict=True):
        files[rest.path] = (*files[rest.path], part)
    return files

  def _kept(
    self, name: str, path: pathlib.Path
  ) -> tuple[Sequence[manifest_lib.Part], _Rest | None]:
    """Returns the parts of a file that stay, and what is to be uploaded."""
    status = path.stat()
    seen = _Seen(status.st_ino, status.st_size, status.st_mtime_ns)
    known = self._manifest.files.get(name, ())
    mark = (self._marks or {}).get(name)
    if mark is None and self._seen.get(name) == seen:
      return known, None
    self._seen[name] = seen
    end = status.st_size if mark is None else mark.num_bytes
    kept, first = _leading(path, known, end)
    if first == end:
      return kept, None
    while kept and kept[-1].num_bytes <= end - first:
      first -= kept.pop().num_bytes
    return kept, _Rest(name, first, end)

  def _send(self, rest: _Rest) -> manifest_lib.Part:
    name = manifest_lib.place(self._manifest.number + 1, rest.path, rest.first)
    with _opened(self._folder / rest.path, rest.first, rest.end) as content:
      digest = hashlib.sha256()
      while block := content.read(_BLOCK):
        digest.update(block)
      content.seek(0)
      self._store.upload(name, content)
    return manifest_lib.Part(name, rest.end - rest.first, digest.hexdigest())


def claim(store: objects.Store, *, take_over: bool) -> manifest_lib.Manifest:
  """Makes this process the owner of a run; returns the newest manifest.

  Args:
    store: the bucket.
    take_over: whether to go on although another process may own it.

  Raises:
    objects.BucketError: the bucket cannot be read and written.
    manifest.ManifestError: its manifest is damaged.
    ValueError: another process owns the run, and may be alive.
  """
  before = manifest_lib.newest(store)
  if before is None:
    before = manifest_lib.Manifest(0, None, None, {})
  address = str(store.address)
  other = before.owner
  if other is not None and not take_over and not owner_lib.is_gone(other):
    raise ValueError(
      f'workdir = {address!r}: must not be in use by another process; '
      f'{owner_lib.shown(other)} owns it; if that one is dead, give '
      '--take_over once'
    )
  claimed = before._replace(
    number=before.number + 1, owner=owner_lib.identity()
  )
  if not manifest_lib.write(store, claimed):
    raise ValueError(
      f'workdir = {address!r}: must not be in use by another process; one has '
      'begun at the same moment'
    )
  return claimed


def download(
  store: objects.Store,
  manifest: manifest_lib.Manifest,
  folder: pathlib.Path,
  is_wanted: Callable[[str], bool] = lambda path: True,
) -> None:
  """Brings files of a manifest into a folder; leaves alone those it has.

  Raises:
    objects.BucketError: the bucket cannot be read.
    manifest.ManifestError: an object is missing or damaged.
    durable.WriteError: a file cannot be written.
  """

  def fetch(item: tuple[str, Sequence[manifest_lib.Part]]) -> None:
    name, parts = item
    path = folder / name
    num_bytes = sum(part.num_bytes for part in parts)
    if path.is_file() and path.stat().st_size == num_bytes:
      if len(_leading(path, parts, num_bytes)[0]) == len(parts):
        return
    _fetch(store, parts, path)

  wanted = [item for item in manifest.files.items() if is_wanted(item[0])]
  with concurrent.futures.ThreadPoolExecutor(_NUM_THREADS) as threads:
    for _ in threads.map(fetch, wanted):
      pass


def prune(folder: pathlib.Path, manifest: manifest_lib.Manifest) -> None:
  """Removes the files of a local copy that the bucket does not have.

  Raises:
    durable.WriteError: a file cannot be removed.
  """
  with durable.refusing(folder, num_bytes=None):
    folder.mkdir(parents=True, exist_ok=True)
    kept = {folder / name for name in manifest.files}
    kept |= {parent for path in kept for parent in path.parents}
    for path in sorted(folder.rglob('*'), reverse=True):
      if path in kept:
        continue
      if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
      else:
        path.unlink(missing_ok=True)


def _fetch(
  store: objects.Store,
  parts: Sequence[manifest_lib.Part],
  path: pathlib.Path,
) -> None:
  partial = path.with_name(f'.{path.name}.partial')
  piece = path.with_name(f'.{path.name}.piece.partial')
  num_bytes = sum(part.num_bytes for part in parts)
  with durable.refusing(path, num_bytes=num_bytes):
    path.parent.mkdir(parents=True, exist_ok=True)
    partial.write_bytes(b'')
  for index, part in enumerate(parts):
    # Not within `refusing`, which would take an error of the network for one
    # of the disk.
    with open(piece, 'wb') as file:
      try:
        store.download(part.name, file)
      except FileNotFoundError as error:
        raise _damaged(store, part, 'missing') from error
    if piece.stat().st_size != part.num_bytes:
      raise _damaged(store, part, 'of another length')
    if _digest(piece, 0, part) != part.sha256:
      raise _damaged(store, part, 'changed')
    with durable.refusing(path, num_bytes=num_bytes):
      if index == 0:
        piece.replace(partial)
      else:
        with open(piece, 'rb') as source, open(partial, 'ab') as file:
          shutil.copyfileobj(source, file)
        piece.unlink()
  partial.replace(path)


def _leading(
  path: pathlib.Path, parts: Sequence[manifest_lib.Part], end: int
) -> tuple[list[manifest_lib.Part], int]:
  """Returns the first parts whose bytes a file has, and how many bytes."""
  kept, first = [], 0
  for part in parts:
    if (
      first + part.num_bytes > end or _digest(path, first, part) != part.sha256
    ):
      break
    kept.append(part)
    first += part.num_bytes
  return kept, first


def _digest(path: pathlib.Path, first: int, part: manifest_lib.Part) -> str:
  digest = hashlib.sha256()
  with _opened(path, first, first + part.num_bytes) as content:
    while block := content.read(_BLOCK):
      digest.update(block)
  return digest.hexdigest()


def _opened(path: pathlib.Path, first: int, end: int) -> io.BufferedReader:
  return io.BufferedReader(objects.FileSpan(path, first, end))


def _is_kept(path: pathlib.Path) -> bool:
  """Returns whether a path is a file that is whole, and no lock."""
  parts = path.parts
  if any('.orbax-checkpoint-tmp' in part for part in parts):
    return False
  return path.is_file() and not (
    path.name == '.lock' or path.name.endswith('.partial')
  )


def _damaged(
  store: objects.Store, part: manifest_lib.Part, reason: str
) -> manifest_lib.ManifestError:
  return manifest_lib.ManifestError(
    f'object = {str(store.address) + "/" + part.name!r}: must be as it was '
    f'written; it is {reason}'
  )
