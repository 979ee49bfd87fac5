"""How often processes may be killed while they start."""

import collections
from collections.abc import Callable

_SECONDS = 60.0


class Restarts:
  """Counts restarts, and says when a minute has had too many.

  num: restarts so far.
  """

  def __init__(self, limit: int, clock: Callable[[], float]):
    """Counts from zero.

    Args:
      limit: restarts that a minute may have, at least 0.
      clock: seconds, never less than before.
    """
    self.num = 0
    self._limit = limit
    self._clock = clock
    self._recent: collections.deque[float] = collections.deque()

  def add(self) -> bool:
    """Counts one more; returns False if the last minute has had too many."""
    self.num += 1
    now = self._clock()
    self._recent.append(now)
    while now - self._recent[0] >= _SECONDS:
      self._recent.popleft()
    return len(self._recent) <= self._limit
