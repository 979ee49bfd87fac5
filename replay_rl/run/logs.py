"""What a run writes while it goes on: JSON Lines, TensorBoard, progress."""

import contextlib
import json
import math
import pathlib
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import rich
import rich.markup
import rich.progress

from replay_rl.lm import architecture
from replay_rl.parallel import processes
from replay_rl.run import events
from replay_rl.run import ledger
from replay_rl.run import metrics
from replay_rl.run import state


def say(text: str) -> None:
  """Tells the user what a program is doing; once, if in many processes."""
  if processes.is_main():
    rich.print(rich.markup.escape(text))


def plain(value: np.ndarray) -> Any:
  """Returns a number or nested list that JSON can hold."""
  if value.ndim or not np.issubdtype(value.dtype, np.floating):
    return value.tolist()
  return float(str(value))  # The shortest text that reads as this float32.


def lines(
  run: state.RunState,
  measured: events.Measured,
  transformer: architecture.TransformerConfig,
  mu: float,
) -> list[dict[str, Any]]:
  """Returns the metrics of the iteration just done, one line per seed.

  Args:
    run: after the iteration.
    measured: what its cycle reported.
    transformer: shape of the model, for the FLOPs.
    mu: cost of generating a rollout in units of training on one.
  """
  counters, host, seeds, steps, iterations = jax.device_get(
    (run.ledger, measured, run.seed, run.learner.step, run.clock.iteration)
  )
  updates = metrics.as_numbers(host.updates) if host.updates else {}
  values = dict(sorted({**host.values, **updates}.items()))
  written = []
  for index, seed in enumerate(seeds.tolist()):
    of_seed = ledger.Ledger(*(counter[index] for counter in counters))
    prices = ledger.prices(of_seed, transformer, mu)
    written.append(
      {
        'iteration': int(iterations[index]) - 1,
        'seed': seed,
        'learner_step': int(steps[index]),
      }
      | {
        name: plain(np.asarray(value[index])) for name, value in values.items()
      }
      | {f'ledger/{name}': value for name, value in prices.items()}
      | {'replay_ratio': prices['trained_rollouts'] / prices['rollouts']}
    )
  return written


class LineWriter:
  """Appends JSON lines, and takes back those of iterations done again.

  A run resumes from its last checkpoint. The lines of the iterations since
  then, the last perhaps half-written, are cut off first; the run writes them
  again. So the file of a resumed run equals that of an uninterrupted one.
  """

  def __init__(self, path: pathlib.Path, iteration: int, *, has_gaps: bool):
    """Opens the file to continue with the lines of `iteration`.

    Args:
      path: of the file.
      iteration: of the first lines to come.
      has_gaps: whether iterations may have no line. Else one without is an
        error, for then the file is not that of this run.

    Raises:
      ValueError: lines of earlier iterations are missing.
    """
    size, last = 0, -1
    if path.exists():
      with open(path, 'rb') as file:
        for line in file:
          found = _iteration(line)
          if found >= iteration:
            break
          size, last = size + len(line), int(found)
    if last != iteration - 1 and not has_gaps:
      raise ValueError(
        f'{path}: ends or is damaged at iteration {last + 1}, but the run '
        f'continues at {iteration}; restore the file, or remove the '
        'checkpoints after that iteration'
      )
    self._file = open(path, 'r+b' if path.exists() else 'wb')
    self._file.truncate(size)
    self._file.seek(0, 2)

  def write(self, **values: Any) -> None:
    """Appends a line and hands it to the system; NaN is written as null."""
    line = {name: _plain(value) for name, value in values.items()}
    self._file.write(json.dumps(line, allow_nan=False).encode() + b'\n')
    self._file.flush()

  def close(self) -> None:
    """Closes the file."""
    self._file.close()


class TensorBoardWriter:
  """Writes scalars that TensorBoard shows."""

  def __init__(self, folder: pathlib.Path, iteration: int):
    """Opens the folder; TensorBoard hides events from `iteration` on."""
    try:
      import tensorboardX
    except ImportError as error:
      raise ValueError(
        'logging.tensorboard = True: needs the package tensorboardX; install '
        'the extra [tensorboard], or set it to False'
      ) from error
    self._writer = tensorboardX.SummaryWriter(str(folder), purge_step=iteration)

  def write(self, iteration: int, seed: int, **values: Any) -> None:
    """Writes the numbers of one seed; lists and NaN are left to JSON Lines."""
    for name, value in values.items():
      if isinstance(value, (int, float)) and math.isfinite(value):
        self._writer.add_scalar(f'{name}/seed{seed}', value, iteration)

  def close(self) -> None:
    """Closes the files."""
    self._writer.close()


class Log:
  """All that a run writes."""

  def __init__(
    self,
    metrics: LineWriter,
    timing: LineWriter,
    samples: LineWriter | None,
    board: TensorBoardWriter | None,
    shown: rich.progress.Progress,
    iteration: int,
  ):
    """Writes to the given places; the process began with `iteration`."""
    self._metrics = metrics
    self._timing = timing
    self._samples = samples
    self._board = board
    self._shown = shown
    self._first = iteration
    self._seconds = 0.0

  def write(self, lines: Sequence[dict[str, Any]], seconds: float) -> None:
    """Writes an iteration.

    Args:
      lines: metrics, a line per seed.
      seconds: of wall-clock, all seeds together. They go to a file of their
        own, so that the metrics of a run repeat byte for byte.
    """
    iteration = lines[0]['iteration']
    for line in lines:
      self._metrics.write(**line)
      if self._board is not None:
        self._board.write(**line)
    self._timing.write(
      iteration=iteration, seconds=seconds, process=self._first
    )
    self._seconds += seconds
    done = iteration + 1
    self._shown.update(
      rich.progress.TaskID(0),
      completed=done,
      reward=sum(line['reward'] for line in lines) / len(lines),
      tokens=sum(line['ledger/generated_tokens'] for line in lines),
      rate=(done - self._first) / self._seconds,
    )

  def write_samples(self, lines: Sequence[dict[str, Any]]) -> None:
    """Writes sampled rollouts as text."""
    assert self._samples is not None
    for line in lines:
      self._samples.write(**line)


@contextlib.contextmanager
def open_all(
  folder: pathlib.Path,
  *,
  name: str,
  num_iterations: int,
  iteration: int,
  tensorboard: bool,
  samples: bool,
) -> Iterator[Log]:
  """Opens the log of a run that continues with `iteration`.

  Shows a progress line with the mean reward and the generated tokens of all
  seeds, iterations per second and the time left.
  """
  columns = (
    rich.progress.TextColumn('{task.description}'),
    rich.progress.BarColumn(bar_width=20),
    rich.progress.MofNCompleteColumn(),
    rich.progress.TextColumn('reward {task.fields[reward]:.3f}'),
    rich.progress.TextColumn('{task.fields[tokens]:,} tokens'),
    rich.progress.TextColumn('{task.fields[rate]:.2f} it/s'),
    rich.progress.TimeRemainingColumn(),
  )
  with contextlib.ExitStack() as stack:

    def opened(writer):
      return stack.enter_context(contextlib.closing(writer))

    metrics = opened(
      LineWriter(folder / 'metrics.jsonl', iteration, has_gaps=False)
    )
    timing = opened(
      LineWriter(folder / 'timing.jsonl', iteration, has_gaps=False)
    )
    shown_samples = None
    if samples:
      shown_samples = opened(
        LineWriter(folder / 'samples.jsonl', iteration, has_gaps=True)
      )
    board = None
    if tensorboard:
      board = opened(TensorBoardWriter(folder / 'tensorboard', iteration))
    shown = stack.enter_context(rich.progress.Progress(*columns))
    shown.add_task(
      name,
      total=num_iterations,
      completed=iteration,
      reward=math.nan,
      tokens=0,
      rate=0.0,
    )
    yield Log(metrics, timing, shown_samples, board, shown, iteration)


def _iteration(line: bytes) -> float:
  # A half-written or damaged line belongs to no iteration that is kept.
  try:
    return json.loads(line)['iteration'] if line.endswith(b'\n') else math.inf
  except (ValueError, KeyError, TypeError):
    return math.inf


def _plain(value: Any) -> Any:
  if isinstance(value, float) and not math.isfinite(value):
    return None
  return value
