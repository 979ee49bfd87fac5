"""Scores of a language model on benchmarks, from its verified samples."""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np

from replay_rl.run import pass_at_k


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


class Efficiency(NamedTuple):
  """What a model gains over a baseline, as shares of the baseline's.

  length_reduction: (L_base - L) / L_base; positive if responses are shorter.
  accuracy_gain: (acc - acc_base) / acc_base; None if the baseline has 0.
  aes: accuracy-efficiency score; None where the gain is.
  """

  length_reduction: float
  accuracy_gain: float | None
  aes: float | None


def summarize(
  benchmarks: Mapping[str, Outcomes],
  *,
  statuses: Sequence[str],
  confidence: float,
  num_resamples: int,
  seed: int,
) -> dict[str, Any]:
  """Returns the scores of each benchmark and their averages.

  Args:
    benchmarks: name -> outcomes, with the same n in all.
    statuses: all that a verifier may say, in the order to count them.
    confidence: of the intervals, in (0, 1).
    num_resamples: of the bootstrap.
    seed: of the bootstrap.

  Returns:
    Plain JSON values. 'benchmarks': name -> 'num_problems'; 'num_samples', per
    problem; 'pass_at_k', of which '1' is the mean accuracy, mean@n, and each k
    has 'mean' and 'interval', see `interval`; 'response_length', mean tokens;
    'truncated_fraction'; 'statuses', counts of samples. 'average': the last but
    one and before, averaged over benchmarks of equal weight whatever their
    sizes.

  Raises:
    ValueError: if n differs, or a sample has another status.
  """
  shapes = {name: found.lengths.shape for name, found in benchmarks.items()}
  if len({num_samples for _, num_samples in shapes.values()}) != 1:
    raise ValueError(
      f'benchmarks have the shapes {shapes}, must have the same num_samples.'
    )
  num_samples = next(iter(shapes.values()))[1]
  # Of each k, the estimates for the problems of each benchmark.
  estimates = {
    k: {
      name: pass_at_k.pass_at_k(
        num_samples, np.sum(found.is_correct, axis=1), k=k
      )
      for name, found in benchmarks.items()
    }
    for k in budgets(num_samples)
  }

  def passes(names):
    rows = {}
    for k, by_name in estimates.items():
      values = [by_name[name] for name in names]
      rows[str(k)] = {
        'mean': float(_mean_of_means(*values)),
        'interval': interval(
          values, confidence=confidence, num_resamples=num_resamples, seed=seed
        ),
      }
    return rows

  by_benchmark = {
    name: {
      'num_problems': len(found.lengths),
      'num_samples': num_samples,
      'pass_at_k': passes([name]),
      'response_length': float(np.mean(found.lengths)),
      'truncated_fraction': float(np.mean(~found.is_finished)),
      'statuses': _count(found.statuses, statuses, name),
    }
    for name, found in benchmarks.items()
  }
  average = {
    name: float(np.mean([scores[name] for scores in by_benchmark.values()]))
    for name in ('response_length', 'truncated_fraction')
  }
  return {
    'benchmarks': by_benchmark,
    'average': {'pass_at_k': passes(list(benchmarks))} | average,
  }


def budgets(num_samples: int) -> list[int]:
  """Returns 1, 2, 4, ... and `num_samples`."""
  powers = [2**i for i in range(num_samples.bit_length())]
  return powers if powers[-1] == num_samples else [*powers, num_samples]


def interval(
  benchmarks: Sequence[np.ndarray],
  *,
  confidence: float,
  num_resamples: int,
  seed: int,
) -> list[float] | None:
  """Returns a percentile bootstrap interval of the mean of benchmarks' means.

  Efron, Annals of Statistics 7 (1979). Problems are drawn with replacement,
  within each benchmark: what it says is how much the mean would vary with
  other problems of the same kind, the samples to each problem being as they
  are. All calls with the same sizes and seed draw the same problems.

  Args:
    benchmarks: a value per problem of each, `[P]` with a P of its own.
    confidence: in (0, 1).
    num_resamples: at least 1.
    seed: of the generator.

  Returns:
    Low and high end; None if a benchmark has one problem.

  Raises:
    ImportError: if scipy is not installed.
  """
  if min(len(values) for values in benchmarks) < 2:
    return None
  try:
    from scipy import stats
  except ImportError as error:
    raise ImportError("Intervals need: pip install -e '.[plots]'") from error
  found = stats.bootstrap(
    tuple(benchmarks),
    _mean_of_means,
    vectorized=True,
    n_resamples=num_resamples,
    batch=1000,  # All at once would take 100 MB for a thousand problems.
    confidence_level=confidence,
    method='percentile',
    rng=np.random.default_rng(seed),
  ).confidence_interval
  return [float(found.low), float(found.high)]


def efficiency(
  *,
  accuracy: float,
  length: float,
  baseline_accuracy: float,
  baseline_length: float,
  omega: float,
  beta: float,
  gamma: float,
) -> Efficiency:
  """Returns the accuracy-efficiency score, and the two changes it is made of.

  omega * length_reduction + beta * |accuracy_gain|, or - gamma * |...| if
  accuracy was lost, as in https://arxiv.org/abs/2606.04560. Papers use the
  constants (1, 3, 5) or (1, 5, 10): scores compare only under the same ones.

  Args:
    accuracy, baseline_accuracy: in [0, 1].
    length, baseline_length: mean tokens of a response; the latter positive.
    omega: weight of length.
    beta: weight of accuracy that is gained.
    gamma: weight of accuracy that is lost.
  """
  length_reduction = (baseline_length - length) / baseline_length
  if baseline_accuracy == 0:
    return Efficiency(length_reduction, None, None)
  gain = (accuracy - baseline_accuracy) / baseline_accuracy
  # The gain's sign makes either branch: beta |gain|, or - gamma |gain|.
  aes = omega * length_reduction + (beta if gain >= 0 else gamma) * gain
  return Efficiency(length_reduction, gain, aes)


def compare(
  scores: Mapping[str, Any],
  baseline: Mapping[str, Any],
  *,
  omega: float,
  beta: float,
  gamma: float,
) -> dict[str, Any]:
  """Returns the efficiency against a baseline, of each benchmark and overall.

  Args:
    scores: as `summarize` returns it.
    baseline: the same of the baseline, with the same benchmarks.
    omega: see `efficiency`.
    beta: see `efficiency`.
    gamma: see `efficiency`.

  Returns:
    'benchmarks': name -> the fields of `Efficiency`. 'average': the same, of
    the average accuracy and the average length.

  Raises:
    ValueError: if the benchmarks differ.
  """
  names, others = list(scores['benchmarks']), list(baseline['benchmarks'])
  if set(names) != set(others):
    raise ValueError(
      f'the baseline has the benchmarks {others}, must have {names}.'
    )

  def of(one, other):
    return efficiency(
      accuracy=one['pass_at_k']['1']['mean'],
      length=one['response_length'],
      baseline_accuracy=other['pass_at_k']['1']['mean'],
      baseline_length=other['response_length'],
      omega=omega,
      beta=beta,
      gamma=gamma,
    )._asdict()

  return {
    'benchmarks': {
      name: of(scores['benchmarks'][name], baseline['benchmarks'][name])
      for name in names
    },
    'average': of(scores['average'], baseline['average']),
  }


def _mean_of_means(*benchmarks: np.ndarray, axis: int = -1) -> np.ndarray:
  means = [np.mean(values, axis=axis) for values in benchmarks]
  return np.mean(means, axis=0)


def _count(
  found: np.ndarray, statuses: Sequence[str], name: str
) -> dict[str, int]:
  if unknown := set(found.ravel().tolist()) - set(statuses):
    raise ValueError(
      f'{name}: statuses {sorted(unknown)}, must be among {list(statuses)}.'
    )
  return {status: int(np.sum(found == status)) for status in statuses}
