"""Scores of a language model on benchmarks, from its verified samples."""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np

from replay_rl.evaluate import intervals
from replay_rl.report import efficiency
from replay_rl.run import evaluation


class Outcomes(NamedTuple):
  """What became of n samples to each of P problems.

  is_correct: `[P, n]` bool, by the verifier.
  lengths: `[P, n]` int, tokens of the response, end-of-sequence included.
  is_finished: `[P, n]` bool, False where the response was cut off.
  statuses: `[P, n]` str, what the verifier said.
  """

  is_correct: np.ndarray
  lengths: np.ndarray
  is_finished: np.ndarray
  statuses: np.ndarray


def summarize(
  benchmarks: Mapping[str, Outcomes],
  *,
  statuses: Sequence[str],
  confidence: float,
) -> dict[str, Any]:
  """Returns the scores of each benchmark and their averages.

  Args:
    benchmarks: name -> outcomes, with the same n in all.
    statuses: all that a verifier may say, in the order to count them.
    confidence: of the intervals, in (0, 1).

  Returns:
    Plain JSON values. 'benchmarks': name -> 'num_problems'; 'num_samples', per
    problem; 'pass_at_k', k -> 'mean' and 'interval', and the mean of '1' is the
    accuracy, mean@n; 'response_length', mean tokens; 'truncated_fraction';
    'statuses', counts of samples. 'average': 'pass_at_k', 'response_length' and
    'truncated_fraction' averaged over benchmarks, which weigh the same whatever
    their sizes. An 'interval' is where the mean over all problems of the same
    kind lies, see `intervals`; None if a benchmark has one problem.

  Raises:
    ValueError: if n differs, or a sample has another status.
  """
  shapes = {name: outcome.lengths.shape for name, outcome in benchmarks.items()}
  if len({num_samples for _, num_samples in shapes.values()}) != 1:
    raise ValueError(f'benchmarks = {shapes}: must have the same num_samples')
  _, num_samples = next(iter(shapes.values()))

  def passes(*outcomes):
    return {
      str(k): _mean_with_interval(
        [
          evaluation.pass_at_k(
            num_samples, np.sum(outcome.is_correct, axis=1), k=k
          )
          for outcome in outcomes
        ],
        confidence,
      )
      for k in budgets(num_samples)
    }

  by_benchmark = {
    name: {
      'num_problems': len(outcome.lengths),
      'num_samples': num_samples,
      'pass_at_k': passes(outcome),
      'response_length': float(np.mean(outcome.lengths)),
      'truncated_fraction': float(np.mean(~outcome.is_finished)),
      'statuses': _count(outcome.statuses, statuses, name),
    }
    for name, outcome in benchmarks.items()
  }
  average = {
    name: float(np.mean([scores[name] for scores in by_benchmark.values()]))
    for name in ('response_length', 'truncated_fraction')
  }
  return {
    'benchmarks': by_benchmark,
    'average': {'pass_at_k': passes(*benchmarks.values())} | average,
  }


def budgets(num_samples: int) -> list[int]:
  """Returns 1, 2, 4, ... and `num_samples`."""
  powers = [2**i for i in range(num_samples.bit_length())]
  return powers if powers[-1] == num_samples else [*powers, num_samples]


def compare(
  scores: Mapping[str, Any], baseline: Mapping[str, Any], **constants: float
) -> dict[str, Any]:
  """Returns the efficiency against a baseline, of each benchmark and overall.

  Args:
    scores: as `summarize` returns it.
    baseline: the same of the baseline, with the same benchmarks.
    **constants: omega, beta and gamma of `efficiency.score`.

  Returns:
    'benchmarks': name -> as `efficiency.score` returns it. 'average': the same,
    of the average accuracy and the average length.
  """

  def of(one, other):
    return efficiency.score(
      accuracy=one['pass_at_k']['1']['mean'],
      length=one['response_length'],
      baseline_accuracy=other['pass_at_k']['1']['mean'],
      baseline_length=other['response_length'],
      **constants,
    )

  return {
    'benchmarks': {
      name: of(own, baseline['benchmarks'][name])
      for name, own in scores['benchmarks'].items()
    },
    'average': of(scores['average'], baseline['average']),
  }


def _mean_with_interval(
  benchmarks: Sequence[np.ndarray], confidence: float
) -> dict[str, Any]:
  """Returns the mean over benchmarks of their means, and its interval.

  Args:
    benchmarks: a value per problem of each, `[P]` with a P of its own.
    confidence: of the interval.
  """
  return {
    'mean': float(np.mean([np.mean(values) for values in benchmarks])),
    'interval': intervals.mean_of_means(benchmarks, confidence=confidence),
  }


def _count(
  statuses: np.ndarray, allowed: Sequence[str], name: str
) -> dict[str, int]:
  if unknown := set(statuses.ravel().tolist()) - set(allowed):
    raise ValueError(
      f'statuses of {name} = {sorted(unknown)}: must be among {list(allowed)}'
    )
  return {status: int(np.sum(statuses == status)) for status in allowed}
