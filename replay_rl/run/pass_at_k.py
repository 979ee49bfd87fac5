"""pass@k, estimated from n samples per prompt."""

import numpy as np
import numpy.typing as npt


def pass_at_k(
  num_samples: npt.ArrayLike, num_correct: npt.ArrayLike, *, k: int
) -> np.ndarray:
  """Returns 1 - C(n - c, k) / C(n, k), unbiased for the pass@k of each prompt.

  Codex, https://arxiv.org/abs/2107.03374, equation 1: the chance that k of the
  n samples, drawn without replacement, hold a correct one.

  Args:
    num_samples: int, n of each prompt; any shape that fits `num_correct`.
    num_correct: int, c of each prompt.
    k: between 1 and the smallest n.

  Returns:
    float64, of the shape to which the two broadcast.

  Raises:
    ValueError: if a count is no integer, or not 1 <= k <= n, or not
      0 <= c <= n.
  """
  samples, correct = np.broadcast_arrays(num_samples, num_correct)
  if not all(np.issubdtype(x.dtype, np.integer) for x in (samples, correct)):
    raise ValueError(
      f'num_samples is {samples.dtype} and num_correct is {correct.dtype}, '
      'must be integers.'
    )
  if k < 1 or np.any(k > samples):
    raise ValueError(
      f'k = {k}, must be between 1 and num_samples = {samples.tolist()}.'
    )
  if np.any(correct < 0) or np.any(correct > samples):
    raise ValueError(
      f'num_correct = {correct.tolist()}, must be between 0 and '
      f'num_samples = {samples.tolist()}.'
    )
  # C(n - c, k) / C(n, k) as k factors within [0, 1], so nothing overflows.
  drawn = np.arange(k)
  num_wrong_left = np.maximum((samples - correct)[..., None] - drawn, 0)
  return 1.0 - np.prod(num_wrong_left / (samples[..., None] - drawn), axis=-1)
