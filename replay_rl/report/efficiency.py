"""The accuracy-efficiency score: accuracy and length of responses in one."""

import math
from collections.abc import Sequence

import numpy as np

from replay_rl.report import bootstrap
from replay_rl.report import levels

# omega, beta and gamma. Papers use both; scores of different ones do not
# compare.
CONSTANTS = ((1, 3, 5), (1, 5, 10))
_NUM_RESAMPLES = 2000


def score(
  *,
  accuracy: float,
  length: float,
  baseline_accuracy: float,
  baseline_length: float,
  omega: float,
  beta: float,
  gamma: float,
) -> dict[str, float | None]:
  """Returns the accuracy-efficiency score, and the two changes it is made of.

  The score is omega * length_reduction + beta * |accuracy_gain| if accuracy was
  gained, and omega * length_reduction - gamma * |accuracy_gain| if it was lost,
  as in https://arxiv.org/abs/2606.04560. Papers use the constants (1, 3, 5) or
  (1, 5, 10). Scores of different constants do not compare.

  Args:
    accuracy, baseline_accuracy: in [0, 1].
    length, baseline_length: mean tokens of a response; the latter positive.
    omega: weight of length.
    beta: weight of accuracy that is gained.
    gamma: weight of accuracy that is lost.

  Returns:
    'length_reduction': (L_base - L) / L_base, positive if responses are
    shorter. 'accuracy_gain': (acc - acc_base) / acc_base; None if the baseline
    has 0. 'aes': the score; None where the gain is.
  """
  length_reduction = (baseline_length - length) / baseline_length
  gain = aes = None
  if baseline_accuracy:
    gain = (accuracy - baseline_accuracy) / baseline_accuracy
    # The sign of the gain makes the two branches: beta |gain|, - gamma |gain|.
    aes = omega * length_reduction + (beta if gain >= 0 else gamma) * gain
  return {
    'length_reduction': length_reduction,
    'accuracy_gain': gain,
    'aes': aes,
  }


def of_seeds(
  method: Sequence[np.ndarray],
  baseline: Sequence[np.ndarray],
  constants: tuple[float, float, float],
) -> tuple[float, tuple[float, float] | None]:
  """Returns the score of mean accuracy and length, and its interval.

  Args:
    method: `[S]` accuracies and `[S]` lengths of the seeds.
    baseline: the same of the baseline.
    constants: omega, beta and gamma, see `score`.

  Returns:
    NaN where the baseline has no right answer, or a value is NaN. The interval
    is None with fewer than `levels.MIN_SEEDS` seeds, or where the score of a
    resample is NaN; the two are resampled by themselves, and each seed keeps
    its accuracy and its length.
  """
  omega, beta, gamma = constants

  def of_means(
    of_method: Sequence[np.ndarray], of_baseline: Sequence[np.ndarray]
  ) -> float:
    aes = score(
      accuracy=float(of_method[0].mean()),
      length=float(of_method[1].mean()),
      baseline_accuracy=float(of_baseline[0].mean()),
      baseline_length=float(of_baseline[1].mean()),
      omega=omega,
      beta=beta,
      gamma=gamma,
    )['aes']
    return math.nan if aes is None else aes

  value = of_means(method, baseline)
  few = min(len(method[0]), len(baseline[0])) < levels.MIN_SEEDS
  if few or method[0] is baseline[0]:
    return value, None
  rng = np.random.default_rng(0)
  resampled = []
  for _ in range(_NUM_RESAMPLES):
    drawn = [
      [values[places] for values in one]
      for one in (method, baseline)
      for places in [rng.integers(len(one[0]), size=len(one[0]))]
    ]
    resampled.append(of_means(*drawn))
  if np.isnan(resampled).any():
    return value, None
  tail = (1 - bootstrap.CONFIDENCE) / 2
  low, high = np.quantile(resampled, (tail, 1 - tail))
  return value, (float(low), float(high))
