"""A trace of some iterations, for TensorBoard or XProf, where it is asked for.

The programs name their parts with `jax.named_scope`: the events of a cycle and
the layers of the model.
"""

import pathlib
from typing import NamedTuple

import jax

from replay_rl.run import logs

FOLDER = 'profile'  # In the folder of a run.


class Traced(NamedTuple):
  """The iterations to trace: `first`, ..., `end - 1`, counted from 0."""

  first: int
  end: int


def parse(text: str) -> Traced:
  """Returns the span that `FIRST:END` names.

  Raises:
    ValueError: it names none.
  """
  first, _, end = text.partition(':')
  if not (first.isdecimal() and end.isdecimal() and int(first) < int(end)):
    raise ValueError(
      f'--profile = {text!r}: must be FIRST:END, the first iteration, from 0, '
      'and the one after the last'
    )
  return Traced(int(first), int(end))


def check(span: Traced | None, first: int, end: int) -> None:
  """Raises ValueError where a run does not reach the iterations to trace.

  Args:
    span: None for no trace.
    first: the iteration that the run begins or continues with.
    end: the one at which it ends.
  """
  if span is not None and not first <= span.first < span.end <= end:
    raise ValueError(
      f'--profile = {span.first}:{span.end}: must be within {first}:{end}, the '
      'iterations that this command runs'
    )


class Tracer:
  """Starts and stops the trace; a context, which stops one that still runs."""

  def __init__(self, span: Traced | None, workdir: pathlib.Path):
    """Writes below `workdir`; without a span, nothing is traced."""
    self._span = span
    self._folder = workdir / FOLDER
    self._is_tracing = False
    self._is_waiting = span is not None

  def begin(self, iteration: int) -> None:
    """Starts the trace before its first iteration, and stops it after."""
    if self._span is None:
      return
    if iteration == self._span.first:
      jax.profiler.start_trace(str(self._folder))
      self._is_tracing, self._is_waiting = True, False
    elif iteration == self._span.end:
      self._stop()

  def __enter__(self) -> 'Tracer':
    """Returns the tracer itself."""
    return self

  def __exit__(self, *_: object) -> None:
    """Stops a trace that still runs, and says if there was none."""
    self._stop()
    if self._is_waiting:
      logs.say(f'{self._folder}: no trace, because the run ended before it')

  def _stop(self) -> None:
    if self._is_tracing:
      self._is_tracing = False
      jax.profiler.stop_trace()
      logs.say(f'{self._folder}: the trace, for TensorBoard or XProf')
