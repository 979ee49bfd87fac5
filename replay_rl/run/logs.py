"""Writes the log of a run: JSON Lines, a progress line, other writers."""

import contextlib
import dataclasses
import math
import pathlib
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import rich
import rich.markup
import rich.progress

from replay_rl import json_files
from replay_rl.disk import durable
from replay_rl.disk import line_file
from replay_rl.lm import architecture
from replay_rl.parallel import processes
from replay_rl.run import events
from replay_rl.run import ledger
from replay_rl.run import metrics
from replay_rl.run import state
from replay_rl.run import writers as writers_lib


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
    trained, inserted = prices['trained_rollouts'], prices['inserted_rollouts']
    written.append(
      {
        'iteration': int(iterations[index]) - 1,
        'seed': seed,
        'learner_step': int(steps[index]),
        **{name: plain(np.asarray(x[index])) for name, x in values.items()},
        **{f'ledger/{name}': price for name, price in prices.items()},
        'replay_ratio': trained / prices['rollouts'],
        'replay_ratio_inserted': trained / inserted if inserted else math.nan,
      }
    )
  return written


METRICS, TIMING, SAMPLES = 'metrics.jsonl', 'timing.jsonl', 'samples.jsonl'


@dataclasses.dataclass
class Log:
  """The files and the progress line of a run, from iteration `first` on.

  files: by their names: METRICS, TIMING and perhaps SAMPLES.
  writers: who else gets the metrics.
  name: of the run, for the progress line.
  """

  files: Mapping[str, line_file.LineFile]
  writers: Sequence[writers_lib.Writer]
  progress: rich.progress.Progress
  name: str
  first: int
  seconds: float = 0.0  # Wall-clock of this process.

  def write(
    self,
    lines: Sequence[dict[str, Any]],
    seconds: float,
    of_events: Mapping[str, float],
  ) -> None:
    """Writes an iteration.

    Args:
      lines: metrics, a line per seed.
      seconds: wall-clock of all seeds together. It has its own file, so that
        the metrics of a repeated run are the same byte for byte.
      of_events: what `timing.fields` says; it goes there too.

    Raises:
      durable.WriteError: a line cannot be written.
    """
    iteration = lines[0]['iteration']
    for line in lines:
      self.files[METRICS].write(**line)
      for writer in self.writers:
        writer.write(**line, seconds=time.time())
    self.files[TIMING].write(
      iteration=iteration, seconds=seconds, process=self.first, **of_events
    )
    self.seconds += seconds
    self.progress.update(
      rich.progress.TaskID(0),
      description=self.name,
      completed=iteration + 1,
      reward=sum(line.get('reward', math.nan) for line in lines) / len(lines),
      tokens=sum(line['ledger/generated_tokens'] for line in lines),
      rate=(iteration + 1 - self.first) / self.seconds,
    )

  def write_samples(self, lines: Sequence[dict[str, Any]]) -> None:
    """Writes sampled rollouts as text.

    Raises:
      durable.WriteError: a line cannot be written.
    """
    for line in lines:
      self.files[SAMPLES].write(**line)

  def marks(self) -> dict[str, line_file.Mark]:
    """Returns how far the files are written, once the disk has it.

    Raises:
      durable.WriteError: the disk does not take it.
    """
    return {name: file.mark() for name, file in self.files.items()}


def read(folder: pathlib.Path) -> Iterator[dict[str, Any]]:
  """Yields the lines of metrics of a run; half a line at the end is an error.

  Raises:
    ValueError: a line is not JSON.
  """
  with open(folder / METRICS, 'rb') as file:
    for line in file:
      yield json_files.parse(line)


def check(folder: pathlib.Path, marks: Mapping[str, line_file.Mark]) -> None:
  """Raises ValueError if files do not begin with what a checkpoint marked."""
  for name, mark in marks.items():
    line_file.check(folder / name, mark)


def copy(
  source: pathlib.Path,
  target: pathlib.Path,
  marks: Mapping[str, line_file.Mark],
) -> None:
  """Copies what the files of a run held at a checkpoint to another folder.

  Raises:
    durable.WriteError: a file cannot be written.
  """
  for name, mark in marks.items():
    with open(source / name, 'rb') as file:
      durable.write(target / name, file.read(mark.num_bytes))


def check_unstarted(
  folder: pathlib.Path, *, first: int, lines_per_iteration: int, every: int
) -> None:
  """Raises ValueError if a run without a checkpoint must have had one.

  Such a run starts again and writes the same lines once more. But a folder that
  lost its checkpoints is no such run.

  Args:
    folder: of the run.
    first: the iteration that the run begins with.
    lines_per_iteration: number of seeds.
    every: iterations from one checkpoint to the next.
  """
  path = folder / METRICS
  if not path.is_file():
    return
  done = path.read_bytes().count(b'\n') // lines_per_iteration
  # The first is on the disk when the second begins.
  most = first + 2 * every
  if done > most:
    raise ValueError(
      f'iterations of {path} = {done}: must be at most {most} where '
      f'{folder} has no checkpoint; restore its checkpoints, or remove the '
      'folder to start again'
    )


@contextlib.contextmanager
def open_all(
  folder: pathlib.Path,
  *,
  name: str,
  num_iterations: int,
  iteration: int,
  marks: Mapping[str, line_file.Mark],
  open_writers: Callable[[], Sequence[writers_lib.Writer]],
  samples: bool,
) -> Iterator[Log]:
  """Opens the log of a run.

  The progress line shows the mean reward and the generated tokens of all seeds,
  iterations per second and the time left. Until the first iteration is done, it
  says that the programs compile.

  Args:
    folder: of the run.
    name: of the run, for the progress line.
    num_iterations: of the whole run.
    iteration: the next iteration that the run does.
    marks: where the files of a resumed run go on; {} for a new run.
    open_writers: opens who else gets the metrics, once the files are open.
    samples: whether to open a file for samples.

  Raises:
    ValueError: a file differs from its mark or cannot be written.
  """
  columns = (
    rich.progress.TextColumn('{task.description}', markup=False),
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

    names = [METRICS, TIMING] + [SAMPLES] * samples
    files = {
      name: opened(
        line_file.LineFile(folder / name, marks.get(name, line_file.START))
      )
      for name in names
    }
    others = [opened(writer) for writer in open_writers()]
    progress = stack.enter_context(rich.progress.Progress(*columns))
    progress.add_task(
      f'{name}: compiling',
      total=num_iterations,
      completed=iteration,
      reward=math.nan,
      tokens=0,
      rate=0.0,
    )
    yield Log(files, others, progress, name, iteration)
