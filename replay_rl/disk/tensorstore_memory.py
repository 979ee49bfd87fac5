"""Holds the memory of a process flat over thousands of saves with Orbax.

TensorStore 0.1.86 never frees the strings of a JSON value that it hands to
Python. Orbax 0.12 asks it for such values in each save: for statistics, which
it only logs, and, once for each array, for the description of the folder. They
were 43 kB and 20 kB of a save of 72 arrays.
"""

import copy
from typing import Any

import tensorstore
from orbax.checkpoint._src.serialization import tensorstore_utils

_NUM_KEPT = 16  # Answers; a save asks for about three different ones.
# Bytes of Orbax's cache of lists of arrays. A run reads each list once.
_MAX_CACHE = 2**22


def hold_flat() -> None:
  """Replaces what leaks, for the whole process; a second call does nothing."""
  to_json = tensorstore.KvStore.Spec.to_json
  if getattr(to_json, '__module__', None) == __name__:
    return
  tensorstore.KvStore.Spec.to_json = _remembering(to_json)
  tensorstore_utils.get_tensorstore_raw_bytes = lambda *_, **__: 0
  # Else Orbax would keep 100 MB of lists of arrays.
  tensorstore_utils._DEFAULT_OCDBT_TS_CONTEXT['cache_pool#ocdbt'] = {  # pyright: ignore[reportPrivateUsage]
    'total_bytes_limit': _MAX_CACHE
  }


def _remembering(to_json: Any) -> Any:
  """Returns `to_json` with its last answers, by the text of the spec."""
  answers: dict[tuple[str, bool], Any] = {}

  def remembered(
    self: tensorstore.KvStore.Spec, include_defaults: bool = False
  ) -> Any:
    key = repr(self), include_defaults
    if key not in answers:
      while len(answers) >= _NUM_KEPT:
        answers.pop(next(iter(answers)), None)
      answers[key] = to_json(self, include_defaults)
    return copy.deepcopy(answers[key])

  return remembered
