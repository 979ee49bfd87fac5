"""How long the events of a cycle take, and the mu that follows.

Seconds never go into the metrics, so that equal runs write equal lines there.
"""

import time
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import jax

from replay_rl.run import budget

GENERATE, JUDGE, REMEMBER = 'generate', 'judge', 'remember'
LEARN, PUBLISH = 'learn', 'publish'
# From the last token of a generation to the last verdict, in which the devices
# wait for a verifier on the host.
WAIT = 'wait'


class Stopwatch:
  """Adds up the seconds of functions, by name, until they are read.

  A function that is timed waits for its result. What the device computes is
  then over when the next one starts, so each has its own seconds alone.
  """

  def __init__(self, clock: Callable[[], float] = time.perf_counter):
    """Takes a clock, which returns seconds."""
    self._clock = clock
    self._seconds: dict[str, float] = {}

  def timed(self, name: str, function: Callable) -> Callable:
    """Returns the function, whose calls add to the seconds of a name.

    Threads may call functions of different names at the same time.
    """

    def call(*args):
      started = self._clock()
      result = jax.block_until_ready(function(*args))
      spent = self._clock() - started
      self._seconds[name] = self._seconds.get(name, 0.0) + spent
      return result

    return call

  def read(self) -> dict[str, float]:
    """Returns the seconds by name since the last reading."""
    seconds, self._seconds = self._seconds, {}
    return seconds


def fields(
  seconds: Mapping[str, float],
  before: budget.Progress,
  lines: Sequence[Mapping[str, Any]],
) -> dict[str, float]:
  """Returns what a line of timing says of the events of an iteration.

  Args:
    seconds: by event, of all seeds together; {} if they were not timed.
    before: of the run before the iteration.
    lines: metrics of the iteration, one per seed.

  Returns:
    The seconds, such as 'learn_seconds', and 'mu': the seconds of generating a
    rollout over those of training on one, as `ledger.prices` means it. It is
    NaN where nothing was generated or trained on. {} if nothing was timed.
  """
  if not seconds:
    return {}

  def done(name):
    """Returns by how much a counter of the ledger rose, over all seeds."""
    return sum(
      line[name] - (before[line['seed']].latest[name] if before else 0)
      for line in lines
    )

  def per_rollout(event, name):
    count = done(name)
    return seconds.get(event, 0.0) / count if count else float('nan')

  generation = per_rollout(GENERATE, 'ledger/rollouts')
  training = per_rollout(LEARN, 'ledger/trained_rollouts')
  return {f'{event}_seconds': spent for event, spent in seconds.items()} | {
    'mu': generation / training if training else float('nan')
  }
