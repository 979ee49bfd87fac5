"""Reads JSON files of which nothing is known yet.

Whatever is wrong with one, the error is a ValueError of one line with the path.
"""

import json
import os
import pathlib
from typing import Any


def parse(text: str | bytes) -> Any:
  """Returns the value of a JSON text; bytes are in UTF-8.

  Raises:
    ValueError: the text is not JSON, or Python cannot nest so deeply.
  """
  try:
    return json.loads(text)
  except RecursionError as error:
    raise ValueError('its brackets are nested too deeply') from error


def read_object(path: str | pathlib.Path, *, advice: str) -> dict[str, Any]:
  """Returns the JSON object that a file holds.

  Args:
    path: of the file.
    advice: what a user can do about a file that is missing or damaged.

  Raises:
    ValueError: the file is missing or cannot be read, or holds something else.
  """
  path = pathlib.Path(path)
  try:
    content = path.read_bytes()
    if not content.strip():
      raise ValueError('it is empty')
    value = parse(content)
    if not isinstance(value, dict):
      raise ValueError(f'it holds {value!r:.40}')
  except OSError as error:
    raise ValueError(_refusal(path, error.strerror, advice)) from error
  except ValueError as error:
    raise ValueError(_refusal(path, error, advice)) from error
  return value


def read_object_if_there(
  path: str | pathlib.Path, *, advice: str
) -> dict[str, Any] | None:
  """Returns `read_object`; None if nothing has that path.

  A folder, or a link that leads nowhere, is an error, not an absent file.
  """
  # `pathlib.Path.exists` of Python 3.11 follows links.
  return read_object(path, advice=advice) if os.path.lexists(path) else None


def _refusal(path: pathlib.Path, reason: object, advice: str) -> str:
  return f'path = {str(path)!r}: must be a JSON object ({reason}); {advice}'
