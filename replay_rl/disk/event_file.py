"""Event files that TensorBoard shows, a run of its own for each seed.

A failure to write one stops no run.
"""

import math
import os
import pathlib
import warnings
from typing import Any

from replay_rl.disk import durable


class EventFile:
  """Writes scalars at once, without a thread that could die unseen."""

  def __init__(self, folder: pathlib.Path, iteration: int):
    """Takes the folder; TensorBoard hides earlier events from `iteration` on.

    Raises:
      ValueError: a file has the name of the folder.
    """
    if folder.exists() and not folder.is_dir():
      raise ValueError(
        f'path = {str(folder)!r}: must be a folder; move that file away'
      )
    from tensorboardX import event_file_writer
    from tensorboardX import summary
    from tensorboardX.proto import event_pb2

    self._make_writer = event_file_writer.EventsWriter
    self._scalar = summary.scalar
    self._events: Any = event_pb2
    self._folder = folder
    self._iteration = iteration
    self._writers: dict[int, Any] = {}  # By seed.
    self._begun: set[int] = set()  # Seeds whose first file was opened.
    self._num_files = 0
    self.num_lost = 0  # Calls of `write` whose scalars could not be written.

  def write(
    self, iteration: int, seed: int, *, seconds: float, **values: Any
  ) -> None:
    """Writes the finite numbers of one seed; leaves out lists and NaN.

    If they cannot be written, it warns and counts them. The next call tries a
    new file.

    Args:
      iteration: number of the iteration.
      seed: names the folder of the file, in which TensorBoard sees a run.
      seconds: time of the event, since 1970.
      **values: scalars by name.
    """
    try:
      if seed not in self._writers:
        self._writers[seed] = self._open(seed, seconds)
      writer = self._writers[seed]
      for name, value in values.items():
        if isinstance(value, (int, float)) and math.isfinite(value):
          event = self._events.Event(
            wall_time=seconds,
            step=iteration,
            summary=self._scalar(name, value),
          )
          writer.write_event(event)
      writer.flush()
    except OSError as error:
      self._abandon(seed)
      if not self.num_lost:
        warnings.warn(
          f'{self._folder}: TensorBoard files cannot be written '
          f'({durable.reason(error)}); the run goes on without',
          stacklevel=2,
        )
      self.num_lost += 1

  def close(self) -> None:
    """Closes the file, and warns of what was lost; may be called again."""
    for seed in list(self._writers):
      self._abandon(seed)
    if self.num_lost:
      warnings.warn(
        f'{self._folder}: TensorBoard files lack {self.num_lost} lines of '
        'metrics.jsonl',
        stacklevel=2,
      )
      self.num_lost = 0

  def _open(self, seed: int, seconds: float) -> Any:
    folder = self._folder / f'seed{seed}'
    folder.mkdir(parents=True, exist_ok=True)
    # The package names a file by the second, and a process may open several.
    suffix = f'.{os.getpid()}.{self._num_files}'
    self._num_files += 1
    writer = self._make_writer(str(folder / 'events'), suffix)
    start = self._events.SessionLog(status=self._events.SessionLog.START)
    if seed not in self._begun:
      self._begun.add(seed)
      writer.write_event(
        self._events.Event(
          wall_time=seconds, step=self._iteration, session_log=start
        )
      )
    return writer

  def _abandon(self, seed: int) -> None:
    writer = self._writers.pop(seed, None)
    if writer is not None:
      try:
        writer.close()
      except OSError:
        pass  # What could not be written before cannot be written now.
