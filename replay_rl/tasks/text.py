"""Problems in text: prompts from a data set, answers judged by a verifier."""

from collections.abc import Callable

import numpy as np

# (is_correct [B], is_formatted [B], lengths [B], is_finished [B]) -> [B]
ShapeFn = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], np.ndarray]
