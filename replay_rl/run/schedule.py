"""Schedules: the events of each cycle of a run, in order.

A schedule depends only on the number of the cycle, so a resumed run has the
same events. Events are dataclasses, not NamedTuples, because two empty tuples
of different types are equal.
"""

import dataclasses
import fractions
from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class Generate:
  """Samples a group of responses to each prompt, and judges them."""


@dataclasses.dataclass(frozen=True)
class Publish:
  """Hands the learner's weights to the sampler."""


@dataclasses.dataclass(frozen=True)
class Remember:
  """Inserts the rollouts into the buffer."""


@dataclasses.dataclass(frozen=True)
class Learn:
  """Makes updates."""

  num_updates: int


Event = Generate | Publish | Remember | Learn
# number of the cycle, from 0 -> its events
Schedule = Callable[[int], tuple[Event, ...]]


def num_updates(events: tuple[Event, ...]) -> int:
  """Returns the updates of a cycle."""
  return sum(event.num_updates for event in events if isinstance(event, Learn))


def mean_updates(schedule: Schedule, num_cycles: int) -> float:
  """Returns the updates of a cycle, on average over the first cycles."""
  return sum(num_updates(schedule(i)) for i in range(num_cycles)) / num_cycles


def synchronous(
  iteration: int, *, updates_per_iteration: float
) -> tuple[Event, ...]:
  """Returns generate, publish, remember and U updates.

  U may be a fraction: n cycles have floor(n U) updates, so 2.5 gives two and
  three in turn. `Publish` comes before the updates: with N publications, cycle
  i generates with the weights at the beginning of cycle i - N.

  Args:
    iteration: number of the cycle, from 0.
    updates_per_iteration: U, read as a decimal: 0.1 is exactly one tenth.
  """
  rate = fractions.Fraction(str(updates_per_iteration))
  num_updates = int((iteration + 1) * rate) - int(iteration * rate)
  return Generate(), Publish(), Remember(), Learn(num_updates)
