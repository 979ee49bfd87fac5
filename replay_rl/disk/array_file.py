"""Files of arrays with a checksum of their values."""

import hashlib
import io
import pathlib
from collections.abc import Sequence

import numpy as np

from replay_rl import base
from replay_rl.disk import durable


def read(path: pathlib.Path, like: Sequence[base.Array]) -> list[np.ndarray]:
  """Returns the arrays of a file.

  Args:
    path: what `write` wrote.
    like: arrays of the same shapes and types, in order.

  Raises:
    ValueError: the file cannot be read, or has other arrays or values.
  """
  try:
    # np.load would leave a damaged file open.
    with open(path, 'rb') as file, np.load(file, allow_pickle=False) as stored:
      arrays = [stored[f'arr_{index}'] for index in range(len(like))]
      digest = stored['sha256'].tobytes().hex()
  except Exception as error:  # NumPy raises many types for a damaged file.
    raise ValueError(
      f'path = {str(path)!r}: must be a file of {len(like)} arrays '
      f'({durable.reason(error)})'
    ) from error
  for array, other in zip(arrays, like, strict=True):
    if (array.shape, array.dtype) != (other.shape, other.dtype):
      raise ValueError(
        f'an array of {path} = {array.dtype}{list(array.shape)}: must be '
        f'{other.dtype}{list(other.shape)}'
      )
  if digest != _digest(arrays):
    raise ValueError(
      f'checksum in {path} = {digest:.12}: must be the checksum of its arrays'
    )
  return arrays


def write(path: pathlib.Path, arrays: Sequence[np.ndarray]) -> None:
  """Writes arrays and their checksum; creates the folder.

  Raises:
    durable.WriteError: the file cannot be written.
  """
  content = io.BytesIO()
  digest = np.frombuffer(bytes.fromhex(_digest(arrays)), np.uint8)
  np.savez(content, *arrays, sha256=digest)
  with durable.refusing(path, num_bytes=content.tell()):
    path.parent.mkdir(parents=True, exist_ok=True)
  durable.write(path, content.getvalue())


def _digest(arrays: Sequence[np.ndarray]) -> str:
  """Returns the SHA-256 of types, shapes and values, as hex digits."""
  digest = hashlib.sha256()
  for array in arrays:
    digest.update(f'{array.dtype}{array.shape}'.encode())
    digest.update(array.tobytes())
  return digest.hexdigest()
