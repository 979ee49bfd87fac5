"""The clock of an emulated asynchronous system, in exact fractions.

W inference workers and T trainers run side by side, as in "Efficient RL
Training for LLMs with Experience Replay" (arXiv 2604.08706). A trainer needs
one unit of work for one rollout, and a worker needs mu. The unit of time here
is an update: B rollouts on T trainers. In that time the workers generate
R = B W / (T mu) rollouts.

A worker generates F rollouts at once, its generation, and then starts the next
one. The workers take turns, so a generation ends every F / R updates and takes
W F / R = F T mu / B updates. Workers have begun before the first update: the
generations that end first were started with the initial weights.

Nothing here depends on a machine: the same numbers give the same order.
"""

import bisect
import fractions
import math
from collections.abc import Iterator
from typing import NamedTuple

_MAX_PUBLICATIONS = 1000  # In the time of one response.


class System(NamedTuple):
  """An asynchronous system.

  num_workers, num_trainers: W and T.
  mu: cost of generating a rollout over that of training on it.
  batch_size: B, rollouts of an update.
  num_fresh: F, rollouts of a generation.
  publish_every: updates from one publication of the weights to the next.
  uses_once: whether each rollout is used in one update only, so that an update
    waits until B rollouts are there that no other has used.
  """

  num_workers: int
  num_trainers: int
  mu: fractions.Fraction
  batch_size: int
  num_fresh: int
  publish_every: int
  uses_once: bool

  @property
  def rollouts_per_update(self) -> fractions.Fraction:
    """R, rollouts that the workers generate in the time of an update."""
    return fractions.Fraction(self.batch_size * self.num_workers) / (
      self.num_trainers * self.mu
    )

  @property
  def generation_time(self) -> fractions.Fraction:
    """Updates from the start of a generation to its end."""
    return self.num_workers * self.num_fresh / self.rollouts_per_update

  def check(self) -> None:
    """Raises ValueError for too many publications in a response."""
    num_publications = self.generation_time / self.publish_every
    if num_publications > _MAX_PUBLICATIONS:
      raise ValueError(
        f'schedule.publish_every = {self.publish_every}: must be such that '
        f'weights are published at most {_MAX_PUBLICATIONS} times in the time '
        f'of a response, not {float(num_publications):g} times'
      )

  def most_publications(self) -> tuple[int, int]:
    """Returns bounds that hold for every generation.

    Among n updates in a row, at most ceil(n / publish_every) are followed by a
    publication.

    Returns:
      The latest publications at the end of a generation, of which the oldest is
      the one that it starts with; and the weights that it uses.
    """
    # From 1 before the start of a generation to its end, or to 1 before that.
    published, used = (
      -(-self._most_updates(time) // self.publish_every)
      for time in (self.generation_time + 1, self.generation_time)
    )
    return 1 + published, 1 + used

  def _most_updates(self, time: fractions.Fraction) -> int:
    """Returns a bound of the updates that start within so much time.

    They start at least 1 apart. In a queue, they use the rollouts that arrive
    in that time, and fewer than 2 F + B that were left before or came at once.
    """
    if not self.uses_once:
      return math.ceil(time)
    rollouts = self.rollouts_per_update * time + 2 * self.num_fresh
    return min(math.ceil(time), math.floor(rollouts / self.batch_size) + 1)

  def rollouts_until(self, time: fractions.Fraction | int) -> int:
    """Returns floor(R time), the rollouts generated from time 0 on."""
    return math.floor(self.rollouts_per_update * time)

  def generation_end(self, generation: int) -> fractions.Fraction:
    """Returns when a generation ends; the first one has number 0."""
    return (generation + 1) * self.num_fresh / self.rollouts_per_update

  def update_start(self, update: int) -> fractions.Fraction:
    """Returns when an update starts; the first one has number 0.

    An update starts when the one before has ended and its rollouts are there.
    So it starts at the largest of ready(v) + (update - v) over all updates v up
    to it. The rollouts of updates v and v + F / gcd(B, F) are generated at
    multiples of the same time, so the largest is in the first or in the last
    such period.
    """
    period = self.num_fresh // math.gcd(self.batch_size, self.num_fresh)
    if not self.uses_once:
      candidates = range(1)
    elif self.rollouts_per_update > self.batch_size:
      candidates = range(min(update + 1, period))
    else:
      candidates = range(max(0, update + 1 - period), update + 1)
    return max(self._ready(v) + (update - v) for v in candidates)

  def _ready(self, update: int) -> fractions.Fraction:
    """Returns when the rollouts of an update are there, at least 1."""
    generation = 0
    if self.uses_once:
      generation = -(-(update + 1) * self.batch_size // self.num_fresh) - 1
    # Update 0 does not start before 1, so that it finds R rollouts and not F.
    return max(self.generation_end(generation), fractions.Fraction(1))

  def updates_before(self, time: fractions.Fraction) -> int:
    """Returns how many updates start before a time."""
    return bisect.bisect_left(
      range(math.ceil(time)), time, key=self.update_start
    )

  def published(self, time: fractions.Fraction) -> int:
    """Returns how many times weights were published up to a time."""
    ended = bisect.bisect_right(
      range(max(0, math.floor(time))), time - 1, key=self.update_start
    )
    return ended // self.publish_every

  def publications(
    self, generation: int
  ) -> Iterator[tuple[int, fractions.Fraction]]:
    """Yields the weights that a generation uses, in order of time.

    Args:
      generation: its number, from 0.

    Yields:
      The number of a publication, 0 for the initial weights, and the share of
      the generation's time from which on they are used: 0 for the first ones.
    """
    end = self.generation_end(generation)
    start = end - self.generation_time
    number = self.published(start)
    yield number, fractions.Fraction(0)
    while True:
      number += 1
      time = self.update_start(number * self.publish_every - 1) + 1
      if time >= end:
        return
      yield number, (time - start) / (end - start)
