"""Finds the real data and tokenizers that some tests read."""

import os
import pathlib

ABSENT = 'needs the shared data: set REPLAY_RL_DATA to its folder'


def folder() -> pathlib.Path | None:
  """Returns the folder of the data; None if this machine does not have it."""
  beside = pathlib.Path(__file__).resolve().parents[2] / 'shared' / 'data'
  given = os.environ.get('REPLAY_RL_DATA')
  for candidate in [pathlib.Path(given)] if given else [beside]:
    if candidate.is_dir():
      return candidate
  return None
