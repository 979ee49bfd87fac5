"""The accuracy-efficiency score: accuracy and length of responses in one."""


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
