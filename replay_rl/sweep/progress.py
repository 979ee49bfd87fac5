"""What the cells of a sweep have spent, and how long the others will take."""

import dataclasses
import pathlib
import time
from collections.abc import Callable
from collections.abc import Sequence

from replay_rl import json_files
from replay_rl.run import budget
from replay_rl.run import logs
from replay_rl.sweep import planning

_BLOCK = 2**16  # Bytes to read at once.


def spent(one: planning.PlannedCell, out: pathlib.Path) -> float:
  """Returns the cost units of all seeds of a cell so far, by its metrics.

  Another process may write these now: half a line at the end does not count.
  Lines that cannot be read are 0; the run of the cell reports them.
  """
  # Seeds take turns, so the last lines have each seed once.
  lines = _last_lines(
    out / one.cell.name / logs.METRICS, one.cell.config.num_seeds
  )
  return sum(_numbers(lines, budget.COST) or ())


def remaining(one: planning.PlannedCell, out: pathlib.Path) -> float:
  """Returns the most cost units that a cell still has to spend."""
  return 0 if one.is_finished else max(one.cost_units - spent(one, out), 0)


def seconds_remaining(
  planned: Sequence[planning.PlannedCell], out: pathlib.Path
) -> list[float | None]:
  """Returns how long each cell takes at most, on its own and after its start.

  It has the speed, in cost units a second, of the finished cells with its
  programs, by the `timing.jsonl` of these cells. None if there are none.

  Args:
    planned: the cells of a sweep.
    out: folder of the sweep.
  """
  finished = [one for one in planned if one.is_finished]
  seconds = dict.fromkeys((one.program for one in finished), 0.0)
  cost = dict.fromkeys(seconds, 0.0)
  for one in finished:
    times = _numbers(
      _last_lines(out / one.cell.name / logs.TIMING, None), 'seconds'
    )
    if times:
      cost[one.program] += spent(one, out)
      seconds[one.program] += sum(times)
  return [
    0.0
    if one.is_finished
    else remaining(one, out) * seconds[one.program] / cost[one.program]
    if cost.get(one.program)
    else None
    for one in planned
  ]


def in_words(seconds: float) -> str:
  """Returns a duration in the unit that suits it."""
  for unit, length in (('h', 3600), ('min', 60)):
    if seconds >= 2 * length:
      return f'{seconds / length:,.0f} {unit}'
  return f'{seconds:.0f} s'


@dataclasses.dataclass
class Progress:
  """Says how each cell ended, and how far the whole sweep is.

  planned: the cells that run, or have finished.
  out: folder of the sweep.
  say: prints a line.
  ended: those of them that have ended.
  """

  planned: Sequence[planning.PlannedCell]
  out: pathlib.Path
  say: Callable[[str], None]
  ended: list[planning.Ended] = dataclasses.field(default_factory=list)

  def __post_init__(self):  # noqa: D105
    self._started = time.perf_counter()
    self._before = sum(spent(one, self.out) for one in self.planned)

  def add(self, one: planning.Ended) -> None:
    """Says how a cell ended, and the line of the whole sweep."""
    self.ended.append(one)
    how = f'failed: {one.error}'
    if one.is_skipped and one.error is None:
      how = 'had finished before'
    elif one.error is None:
      how = 'finished' if one.seconds is None else in_words(one.seconds)
    self.say(f'{self.line()} {one.name}: {how}')

  def line(self) -> str:
    """Returns cells and cost units, done and in all, and the time left.

    The cost of a cell that has not ended is the most that it can be. The time
    left is as if the rest had the speed of all cells together since the start.
    """
    seconds = time.perf_counter() - self._started
    over = {one.name for one in self.ended}
    costs = [spent(one, self.out) for one in self.planned]
    rest = sum(
      max(one.cost_units - cost, 0)
      for one, cost in zip(self.planned, costs, strict=True)
      if one.cell.name not in over and not one.is_finished
    )
    done = sum(costs)
    left = ''
    if rest:
      is_measured = done > self._before
      left = '; time left unknown'
      if is_measured:
        expected = seconds * rest / (done - self._before)
        left = f'; about {in_words(expected)} left'
    return (
      f'[{len(over)}/{len(self.planned)} cells; {done:,.0f}/{done + rest:,.0f} '
      f'cost units{left}]'
    )


def _numbers(lines: Sequence[bytes], name: str) -> list[float] | None:
  """Returns a number of each line; None if one has none."""
  try:
    return [float(json_files.parse(line)[name]) for line in lines]
  except (ValueError, TypeError, KeyError):
    return None


def _last_lines(path: pathlib.Path, number: int | None) -> list[bytes]:
  """Returns the last whole lines of a file, or all; fewer if it has fewer."""
  if not path.exists():
    return []
  with open(path, 'rb') as file:
    start = file.seek(0, 2)
    content = b''
    while start and (number is None or content.count(b'\n') <= number):
      size = min(start, _BLOCK)
      start = file.seek(start - size)
      content = file.read(size) + content
  # What follows the last end of a line is half a line, or nothing.
  return content.split(b'\n')[:-1][-(number or 0) :]
