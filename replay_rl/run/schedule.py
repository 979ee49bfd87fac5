"""Schedules: which events a cycle of a run has, and in which order.

A schedule is a function of the number of the cycle alone, so that a resumed run
goes on with the events it would have had. Events are dataclasses and no tuples,
because two empty tuples of different types are equal.
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


def synchronous(
  iteration: int, *, updates_per_iteration: float
) -> tuple[Event, ...]:
  """Returns generate, publish, remember and U updates.

  U may be a fraction: after n cycles floor(n U) updates are made, so that 2.5
  gives two and three in turn. The weights are published before the updates,
  while the sampler still uses older ones: with N publications kept, cycle i
  generates with the weights at the beginning of cycle i - N.

  Args:
    iteration: number of the cycle.
    updates_per_iteration: U, as written in the config: 0.1 is one tenth.
  """
  rate = fractions.Fraction(str(updates_per_iteration))
  num_updates = int((iteration + 1) * rate) - int(iteration * rate)
  return Generate(), Publish(), Remember(), Learn(num_updates)
