"""Schedules: the events of each cycle of a run, in order.

A schedule depends only on the number of the cycle, so a resumed run has the
same events. Events are dataclasses, not NamedTuples, because two empty tuples
of different types are equal.
"""

import dataclasses
import fractions
from collections.abc import Callable
from typing import Annotated
from typing import NamedTuple

from replay_rl import constants
from replay_rl.run import logical_time

MAX_CYCLES = 1000  # Of which a plan looks at the events.

Count = Annotated[int, constants.interval('[1, 65536]')]
Rows = Annotated[int, constants.interval('[1, inf)')]
OptionalRows = Annotated[int | None, constants.interval('[1, inf)')]


class Span(NamedTuple):
  """Weights that sample a part of each response of a generation.

  publication: number of the publication of the weights, 0 for the initial ones.
  start: share of the longest response from which on they sample, in [0, 1).
  """

  publication: int
  start: fractions.Fraction


class Needs(NamedTuple):
  """The most that the generations of a schedule need.

  num_publications: latest publications that a run keeps, or the initial weights
    in their place; 0 without spans.
  num_spans: spans of a generation; 0 without spans.
  """

  num_publications: int
  num_spans: int


@dataclasses.dataclass(frozen=True)
class Generate:
  """Samples a group of responses to each prompt, and judges them.

  spans: the weights that sample, in order; None for the oldest weights that the
    run keeps.
  num_published: publications before this event, 0 without spans.
  needs: the same for all generations of a schedule.
  """

  spans: tuple[Span, ...] | None = None
  num_published: int = 0
  needs: Needs = Needs(0, 0)


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


def needs(schedule: Schedule) -> Needs:
  """Returns what the spans of a schedule need, as its first generation says."""
  for event in schedule(0):
    if isinstance(event, Generate):
      return event.needs
  return Needs(0, 0)


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


def asynchronous(
  iteration: int,
  *,
  workers: Count,
  trainers: Count,
  publish_every: Count,
  in_flight: bool,
  mu: Annotated[float, constants.NON_NEGATIVE],
  batch_size: OptionalRows,
  num_fresh: Rows,
) -> tuple[Event, ...]:
  """Returns a generation, and the updates until the next generation ends.

  It emulates `workers` inference workers and `trainers` trainers with a replay
  buffer, as in "Efficient RL Training for LLMs with Experience Replay" (arXiv
  2604.08706), in the logical time of `logical_time`. No trainer waits, so there
  are B workers / (trainers mu) new rollouts per update, on average exactly.

  Args:
    iteration: number of the generation, from 0.
    workers: W.
    trainers: T.
    publish_every: updates between two publications of the weights.
    in_flight: True lets a worker change to newly published weights within a
      response. Its cache keeps the keys and values of earlier tokens. False has
      it change between two generations.
    mu: cost of generating a rollout over that of training on it.
    batch_size: B.
    num_fresh: F.

  Raises:
    ValueError: mu is 0, or B is None.
  """
  system = _system(
    workers, trainers, publish_every, mu, batch_size, num_fresh, uses_once=False
  )
  return _cycle(system, iteration, in_flight)


def queue(
  iteration: int,
  *,
  workers: Count,
  trainers: Count,
  publish_every: Count,
  in_flight: bool,
  mu: Annotated[float, constants.NON_NEGATIVE],
  batch_size: OptionalRows,
  num_fresh: Rows,
) -> tuple[Event, ...]:
  """Returns a generation and updates, without replay: the paper's baseline.

  As `asynchronous`, but each rollout is used in one update, so an update waits
  until B unused rollouts are there. The weights `newest_unused()` or
  `oldest_unused()`, with the draw `largest()`, make it a LIFO or FIFO queue.
  Rollouts that a filter drops are counted as if they were there; the updates
  then have fewer rows.
  """
  system = _system(
    workers, trainers, publish_every, mu, batch_size, num_fresh, uses_once=True
  )
  return _cycle(system, iteration, in_flight)


def _system(
  workers: int,
  trainers: int,
  publish_every: int,
  mu: float,
  batch_size: int | None,
  num_fresh: int,
  *,
  uses_once: bool,
) -> logical_time.System:
  if mu == 0:
    raise ValueError(f'mu = {mu}: must be above 0 for an asynchronous schedule')
  if batch_size is None:
    raise ValueError(
      'replay.batch_size = None: must be given for an asynchronous schedule'
    )
  system = logical_time.System(
    num_workers=workers,
    num_trainers=trainers,
    mu=fractions.Fraction(str(mu)),
    batch_size=batch_size,
    num_fresh=num_fresh,
    publish_every=publish_every,
    uses_once=uses_once,
  )
  system.check()
  return system


def _cycle(
  system: logical_time.System, iteration: int, in_flight: bool
) -> tuple[Event, ...]:
  """Returns the events from the end of a generation to that of the next."""
  first, end = (
    system.updates_before(system.generation_end(generation))
    for generation in (iteration, iteration + 1)
  )
  spans = [Span(*one) for one in system.publications(iteration)]
  num_publications, num_spans = system.most_publications()
  events: list[Event] = [
    Generate(
      spans=tuple(spans if in_flight else spans[:1]),
      num_published=first // system.publish_every,
      needs=Needs(num_publications, num_spans if in_flight else 1),
    ),
    Remember(),
  ]
  if first == end:
    events.append(Learn(0))  # So that each cycle has metrics of updates.
  for update in range(first, end):
    events.append(Learn(1))
    if (update + 1) % system.publish_every == 0:
      events.append(Publish())
  return tuple(events)
