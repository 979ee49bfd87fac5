"""What a run has spent and reached: when it is evaluated, and when it ends.

Each is a pure function of the lines of metrics, so that a resumed run evaluates
and ends as the whole one does.
"""

import math
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Annotated
from typing import Any
from typing import NamedTuple

from replay_rl import constants
from replay_rl import tolerances
from replay_rl.run import config as config_lib

COST = 'ledger/cost_units'
SCORE = 'eval/greedy'

Positive = Annotated[float, constants.POSITIVE]
Count = Annotated[int, constants.interval('[1, inf)')]

Line = dict[str, Any]
# The latest line of a seed, and all of its lines with an evaluation -> whether
# the seed has had enough.
StopFn = Callable[[Line, Sequence[Line]], bool]


class OfSeed(NamedTuple):
  """What one seed has spent and reached.

  latest: its latest line.
  evaluations: its lines with an evaluation.
  has_ended: whether it ever had enough.
  """

  latest: Line
  evaluations: tuple[Line, ...]
  has_ended: bool


Progress = Mapping[int, OfSeed]  # By seed; {} before the first iteration.


@constants.checked
def max_cost(
  latest: Line, evaluations: Sequence[Line], *, cost_units: Positive
) -> bool:
  """Returns whether a seed has spent this many units of `ledger.prices`."""
  return latest[COST] >= cost_units


@constants.checked
def max_tokens(
  latest: Line, evaluations: Sequence[Line], *, generated_tokens: Count
) -> bool:
  """Returns whether a seed has generated this many tokens."""
  return latest['ledger/generated_tokens'] >= generated_tokens


@constants.checked
def max_updates(
  latest: Line, evaluations: Sequence[Line], *, updates: Count
) -> bool:
  """Returns whether a seed has made this many updates of its weights."""
  return latest['ledger/updates'] >= updates


@constants.checked
def level(
  latest: Line,
  evaluations: Sequence[Line],
  *,
  greedy: Annotated[float, constants.interval('(-inf, inf)')],
  num_evaluations: Count,
) -> bool:
  """Returns whether the last evaluations of a seed are at a level.

  Args:
    latest: of the seed.
    evaluations: of the seed.
    greedy: least mean reward of greedy responses.
    num_evaluations: how many in a row, because a single one may be luck.
  """
  scores = [line[SCORE] for line in evaluations[-num_evaluations:]]
  return (
    len(scores) == num_evaluations and min(scores) >= greedy - tolerances.SCORE
  )


def first_of(*functions: StopFn) -> StopFn:
  """Returns the function that ends a seed at the first of these."""
  return lambda latest, evaluations: any(
    function(latest, evaluations) for function in functions
  )


def after(
  progress: Progress, lines: Iterable[Line], stop: StopFn | None
) -> Progress:
  """Returns the progress after more lines, in the order of the iterations."""
  progress = dict(progress)
  for line in lines:
    before = progress.get(line['seed'], OfSeed(line, (), False))
    evaluations = before.evaluations
    if SCORE in line:
      evaluations = (*evaluations, line)
    has_enough = stop is not None and stop(line, evaluations)
    progress[line['seed']] = OfSeed(
      line, evaluations, before.has_ended or has_enough
    )
  return progress


def is_over(progress: Progress) -> bool:
  """Returns whether every seed has had enough."""
  seeds = progress.values()
  return bool(seeds) and all(seed.has_ended for seed in seeds)


def seeds_due(
  progress: Progress, lines: Sequence[Line], evaluation: config_lib.Evaluation
) -> frozenset[int]:
  """Returns the seeds to evaluate after an iteration.

  Args:
    progress: before the iteration.
    lines: of the iteration.
    evaluation: `every` counts iterations, for all seeds. With `every_cost`, a
      seed is due when it has spent another multiple of it.
  """
  quantum = evaluation.every_cost
  if quantum is None:
    done = lines[0]['iteration'] + 1
    is_due = evaluation.every > 0 and done % evaluation.every == 0
    return frozenset(line['seed'] for line in lines if is_due)

  def before(line: Line) -> float:
    return progress[line['seed']].latest[COST] if progress else 0

  return frozenset(
    line['seed']
    for line in lines
    if math.floor(line[COST] / quantum) > math.floor(before(line) / quantum)
  )
