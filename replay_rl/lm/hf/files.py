"""Files of tensors in the safetensors format, one tensor in memory at a time.

A file has eight bytes with the length of a JSON header, the header with type,
shape and offsets of each tensor, and the data:
https://github.com/huggingface/safetensors.
"""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np

from replay_rl import constants
from replay_rl import json_files

CONFIG = 'config.json'
SINGLE = 'model.safetensors'
INDEX = 'model.safetensors.index.json'
# Name of a type in the format -> name in numpy.
TYPES = {'BF16': 'bfloat16', 'F16': 'float16', 'F32': 'float32'}
_NUM_HASHED_AT_ONCE = 8  # Files.
_WEIGHTS = re.compile(r'[\w.-]{1,240}\.safetensors', re.ASCII)  # Not a path.
_BLOCK = 2**22  # Values that are checked at once.


class Stored(NamedTuple):
  """A tensor in a file; dtype has the name of the format."""

  path: pathlib.Path
  shape: tuple[int, ...]
  dtype: str


class Planned(NamedTuple):
  """A tensor to write; dtype has the name of the format."""

  name: str
  shape: tuple[int, ...]
  dtype: str
  num_bytes: int


def download(folder: str | pathlib.Path) -> str:
  """Returns the advice to a user whose model folder is not whole."""
  return f'hf download MODEL --local-dir {folder} gets the files'


def find(folder: pathlib.Path, problems: list[str]) -> dict[str, Stored]:
  """Returns the tensors of a checkpoint by name, from the headers.

  Args:
    folder: holds `model.safetensors`, or several files and their index.
    problems: the function adds all problems with the files to it.
  """
  files = [name for name in (SINGLE, INDEX) if os.path.lexists(folder / name)]
  if len(files) != 1:
    problems.append(
      f'files = {files}: must be either {SINGLE} or {INDEX}; {download(folder)}'
    )
    return {}
  if files == [SINGLE]:
    return _read_header(folder / SINGLE, problems)
  try:
    weight_map = _read_index(folder)
  except ValueError as error:
    problems.append(f'{INDEX} cannot be read: {error}')
    return {}
  stored = {}
  for file in sorted(set(weight_map.values())):
    named = {name for name, where in weight_map.items() if where == file}
    if not (folder / file).is_file():
      what = 'a folder' if (folder / file).is_dir() else 'missing'
      problems.append(
        f'{file} is {what}; the index says that it holds {len(named)} tensors; '
        f'{download(folder)}'
      )
      # Otherwise each of its tensors would be a problem too.
      stored |= {name: Stored(folder / file, (), '') for name in named}
      continue
    count = len(problems)
    header = _read_header(folder / file, problems)
    if len(problems) > count:
      header = {name: Stored(folder / file, (), '') for name in named}
    for name in sorted(named ^ set(header)):
      where = ('index', file) if name in named else (file, 'index')
      problems.append(f'{name} is in {where[0]} but not in {where[1]}')
    stored |= header
  return stored


def content_hash(folder: pathlib.Path) -> str:
  """Returns the SHA-256 of a checkpoint: `config.json` and all weights.

  This function reads every byte, several files at a time, each at about the
  rate of the disk or 1 GB/s. Then the files are in the memory of the system, so
  that `read` is faster after it.

  Args:
    folder: as of `find`.

  Returns:
    64 hexadecimal digits, which the contents of `config.json`, the index and
    the files of weights decide, these in the order of their names.

  Raises:
    ValueError: a file is missing or cannot be read.
  """
  names = [CONFIG, SINGLE]
  if os.path.lexists(folder / INDEX):
    names = [CONFIG, INDEX, *sorted(set(_read_index(folder).values()))]
  with concurrent.futures.ThreadPoolExecutor(_NUM_HASHED_AT_ONCE) as pool:
    hashes = list(pool.map(lambda name: _hash_of_file(folder / name), names))
  return hashlib.sha256(b''.join(hashes)).hexdigest()


def is_unreadable(stored: Stored) -> bool:
  """Returns whether `find` could not read the file of a tensor."""
  return not stored.dtype


def read(stored: Stored, name: str, ranges: tuple[slice, ...]) -> np.ndarray:
  """Returns a range of a tensor, in the type of the file.

  Each call opens the file anew, so that its mapped pages are freed.
  """
  with _safetensors().safe_open(stored.path, framework='numpy') as file:
    return file.get_slice(name)[ranges]


def num_not_finite(values: np.ndarray) -> int:
  """Returns how many values are NaN or infinite.

  Args:
    values: of one of `TYPES`, any shape.
  """
  flat = values.reshape(-1)
  # In blocks, because the mask of a tensor would need half of its memory.
  return sum(
    int(np.count_nonzero(~np.isfinite(flat[start : start + _BLOCK])))
    for start in range(0, flat.size, _BLOCK)
  )


def split(
  tensors: Sequence[Planned], max_file_bytes: int
) -> dict[str, list[Planned]]:
  """Returns which tensors go to which file, in order.

  Raises:
    ValueError: a file with one tensor would exceed `max_file_bytes`.
  """
  needed, name = max((_num_bytes([tensor]), tensor.name) for tensor in tensors)
  if needed > max_file_bytes:
    raise ValueError(
      f'max_file_bytes = {max_file_bytes}: must be at least {needed} for {name}'
    )
  groups: list[list[Planned]] = []
  for tensor in tensors:
    if groups and _num_bytes([*groups[-1], tensor]) <= max_file_bytes:
      groups[-1].append(tensor)
    else:
      groups.append([tensor])
  if len(groups) == 1:
    return {SINGLE: groups[0]}
  return {
    f'model-{i:05d}-of-{len(groups):05d}.safetensors': group
    for i, group in enumerate(groups, 1)
  }


def write(
  path: pathlib.Path,
  tensors: Sequence[Planned],
  fetch: Callable[[str], np.ndarray],
) -> None:
  """Writes a file; `fetch` returns a tensor by name, one after the other."""
  with open(path, 'xb') as file:
    file.write(_header(tensors))
    for tensor in tensors:
      array = np.ascontiguousarray(fetch(tensor.name))
      if array.shape != tensor.shape or array.nbytes != tensor.num_bytes:
        raise AssertionError(f'{tensor} was fetched as {array.shape}')
      # Numpy has no buffer of type bfloat16.
      file.write(array.reshape(-1).view(np.uint8).data)
      del array  # Before the next one is fetched.
    _sync(file)


def write_json(path: pathlib.Path, content: Mapping[str, Any]) -> None:
  """Writes a mapping as a new file."""
  with open(path, 'x', encoding='utf-8') as file:
    file.write(json.dumps(content, indent=2) + '\n')
    _sync(file)


def write_index(
  folder: pathlib.Path, files: Mapping[str, Sequence[Planned]]
) -> None:
  """Writes the index: the file of each tensor."""
  total = sum(t.num_bytes for tensors in files.values() for t in tensors)
  weight_map = {t.name: file for file, ts in files.items() for t in ts}
  write_json(
    folder / INDEX,
    {'metadata': {'total_size': total}, 'weight_map': weight_map},
  )


def _sync(file: Any) -> None:
  file.flush()
  os.fsync(file.fileno())


def _header(tensors: Sequence[Planned]) -> bytes:
  # transformers refuses a file that does not say which framework wrote it.
  entries: dict[str, Any] = {'__metadata__': {'format': 'pt'}}
  offset = 0
  for name, shape, dtype, num_bytes in tensors:
    entries[name] = {
      'dtype': dtype,
      'shape': shape,
      'data_offsets': [offset, offset + num_bytes],
    }
    offset += num_bytes
  text = json.dumps(entries, separators=(',', ':')).encode()
  text += b' ' * (-len(text) % 8)  # The data starts at a multiple of eight.
  return len(text).to_bytes(8, 'little') + text


def _read_index(folder: pathlib.Path) -> dict[str, str]:
  """Returns the file of each tensor, all in the folder itself."""
  path = folder / INDEX
  weight_map = json_files.read_object(path, advice=download(folder)).get(
    'weight_map'
  )
  if not isinstance(weight_map, dict) or not weight_map:
    raise ValueError(
      f'weight_map = {constants.shown(weight_map)}: must name the file of each '
      f'tensor, in {path}; {download(folder)}'
    )
  # The names are from elsewhere. A link to a file is allowed, because the cache
  # of Hugging Face consists of links.
  for file in weight_map.values():
    if not isinstance(file, str) or not _WEIGHTS.fullmatch(file):
      raise ValueError(
        f'file = {constants.shown(file)}: must be the name of a .safetensors '
        f'file in the same folder, in {path}; {download(folder)}'
      )
  return weight_map


def _hash_of_file(path: pathlib.Path) -> bytes:
  try:
    with open(path, 'rb') as file:
      return hashlib.file_digest(file, 'sha256').digest()
  except OSError as error:
    raise ValueError(
      f'path = {str(path)!r}: must be a file that can be read '
      f'({error.strerror}); {download(path.parent)}'
    ) from error


def _num_bytes(tensors: Sequence[Planned]) -> int:
  return len(_header(tensors)) + sum(tensor.num_bytes for tensor in tensors)


def _read_header(path: pathlib.Path, problems: list[str]) -> dict[str, Stored]:
  safetensors = _safetensors()
  try:
    with safetensors.safe_open(path, framework='numpy') as file:
      # safetensors compares the length of the file with the header here.
      slices = {name: file.get_slice(name) for name in file.keys()}
      return {
        name: Stored(path, tuple(part.get_shape()), part.get_dtype())
        for name, part in slices.items()
      }
  except (OSError, safetensors.SafetensorError) as error:
    problems.append(
      f'{path.name} cannot be read: {error}; {download(path.parent)}'
    )
    return {}


def _safetensors():
  try:
    import safetensors
  except ImportError as error:
    raise ImportError(
      "package = 'safetensors': must be installed; pip install -e '.[math]'"
    ) from error
  return safetensors
