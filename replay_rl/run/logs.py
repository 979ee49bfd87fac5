"""Writes the log of a run: JSON Lines, TensorBoard, a progress line."""

import contextlib
import dataclasses
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
  """Prints a text for the user, in process 0 only."""
  if processes.is_main():
    rich.print(rich.markup.escape(text))


def plain(value: np.ndarray) -> Any:
  """Returns an array as a number or as nested lists, for JSON."""
  if value.ndim or not np.issubdtype(value.dtype, np.floating):
    return value.tolist()
  return float(str(value))  # `str` gives the fewest digits of this float32.


def lines(
  run: state.RunState,
  measured: events.Measured,
  transformer: architecture.TransformerConfig,
  mu: float,
) -> list[dict[str, Any]]:
  """Returns the metrics of an iteration, one line per seed.

  Args:
    run: the state after the iteration.
    measured: the metrics of the cycle.
    transformer: shape of the model, for the FLOPs.
    mu: see `ledger.prices`.
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
        **{name: plain(np.asarray(x[index])) for name, x in values.items()},
        **{f'ledger/{name}': price for name, price in prices.items()},
        'replay_ratio': prices['trained_rollouts'] / prices['rollouts'],
      }
    )
  return written


class LineWriter:
  """Appends JSON lines, after those of the iterations that a run keeps.

  A run resumes from its last checkpoint and repeats the iterations since then.
  The writer first deletes the lines of these iterations, so the file of a
  resumed run equals that of an uninterrupted one.
  """

  def __init__(self, path: pathlib.Path, iteration: int, *, has_gaps: bool):
    """Opens the file to continue with the lines of `iteration`.

    Args:
      path: the file.
      iteration: the next iteration that the run does.
      has_gaps: whether the iteration before it may have no line.

    Raises:
      ValueError: the file does not end with the iteration before it.
    """
    size, last = 0, -1
    if path.exists():
      with open(path, 'rb') as file:
        for line in file:
          of_line = _iteration(line)
          if of_line >= iteration:
            break
          size, last = size + len(line), int(of_line)
    if last != iteration - 1 and not has_gaps:
      raise ValueError(
        f'iterations of {path} = {last + 1}: must be at least the {iteration} '
        'of the checkpoint; restore the file, or remove later checkpoints'
      )
    self._file = open(path, 'r+b' if path.exists() else 'wb')
    self._file.truncate(size)
    self._file.seek(0, 2)

  def write(self, **values: Any) -> None:
    """Appends a line and flushes it; null stands for NaN and infinity."""
    line = {
      name: value
      if not isinstance(value, float) or math.isfinite(value)
      else None
      for name, value in values.items()
    }
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
        'logging.tensorboard = True: must be False without the package '
        'tensorboardX, which the extra [tensorboard] installs'
      ) from error
    self._writer = tensorboardX.SummaryWriter(str(folder), purge_step=iteration)

  def write(self, iteration: int, seed: int, **values: Any) -> None:
    """Writes the finite numbers of one seed; leaves out lists and NaN."""
    for name, value in values.items():
      if isinstance(value, (int, float)) and math.isfinite(value):
        self._writer.add_scalar(f'{name}/seed{seed}', value, iteration)

  def close(self) -> None:
    """Closes the files."""
    self._writer.close()


@dataclasses.dataclass
class Log:
  """The files and the progress line of a run, from iteration `first` on."""

  metrics: LineWriter
  timing: LineWriter
  samples: LineWriter | None
  board: TensorBoardWriter | None
  progress: rich.progress.Progress
  first: int
  seconds: float = 0.0  # Wall-clock of this process.

  def write(self, lines: Sequence[dict[str, Any]], seconds: float) -> None:
    """Writes an iteration.

    Args:
      lines: metrics, a line per seed.
      seconds: wall-clock of all seeds together. It has its own file, so that
        the metrics of a repeated run are the same byte for byte.
    """
    iteration = lines[0]['iteration']
    for line in lines:
      self.metrics.write(**line)
      if self.board is not None:
        self.board.write(**line)
    self.timing.write(iteration=iteration, seconds=seconds, process=self.first)
    self.seconds += seconds
    self.progress.update(
      rich.progress.TaskID(0),
      completed=iteration + 1,
      reward=sum(line.get('reward', math.nan) for line in lines) / len(lines),
      tokens=sum(line['ledger/generated_tokens'] for line in lines),
      rate=(iteration + 1 - self.first) / self.seconds,
    )

  def write_samples(self, lines: Sequence[dict[str, Any]]) -> None:
    """Writes sampled rollouts as text."""
    assert self.samples is not None
    for line in lines:
      self.samples.write(**line)


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
  """Opens the log of a run.

  The progress line shows the mean reward and the generated tokens of all seeds,
  iterations per second and the time left.

  Args:
    folder: of the run.
    name: of the run, for the progress line.
    num_iterations: of the whole run.
    iteration: the next iteration that the run does.
    tensorboard: whether to write TensorBoard files too.
    samples: whether to open a file for samples.

  Raises:
    ValueError: a file lacks lines of earlier iterations, or tensorboardX is not
      installed.
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

    def lines_of(file, has_gaps=False):
      return opened(LineWriter(folder / file, iteration, has_gaps=has_gaps))

    metrics, timing = lines_of('metrics.jsonl'), lines_of('timing.jsonl')
    shown = lines_of('samples.jsonl', has_gaps=True) if samples else None
    board = None
    if tensorboard:
      board = opened(TensorBoardWriter(folder / 'tensorboard', iteration))
    progress = stack.enter_context(rich.progress.Progress(*columns))
    progress.add_task(
      name,
      total=num_iterations,
      completed=iteration,
      reward=math.nan,
      tokens=0,
      rate=0.0,
    )
    yield Log(metrics, timing, shown, board, progress, iteration)


def _iteration(line: bytes) -> float:
  # A half-written or damaged line ends the lines that are kept.
  try:
    return json.loads(line)['iteration'] if line.endswith(b'\n') else math.inf
  except (ValueError, KeyError, TypeError):
    return math.inf
