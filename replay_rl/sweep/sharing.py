"""Which cells of a sweep can run the same compiled programs.

The numbers of a config that set no shape are inputs of the programs, see
`functions.numbers`. Two configs whose programs differ only in these, or in what
no program reads, share them.
"""

import dataclasses
import json
from typing import Any

from replay_rl.run import build
from replay_rl.run import config as config_lib
from replay_rl.run import functions

# No program reads these fields. `sampler.weight_lag` sets a shape, which is
# below, and the schedule is an argument of each call.
_OUTSIDE = (
  *('name', 'seed', 'num_iterations', 'stop', 'mu', 'cache_dir', 'schedule'),
  *('sampler.weight_lag', 'replay.updates_per_iteration', 'warm_start.'),
  *('evaluation.every', 'logging.writers', 'logging.samples_every'),
  *('checkpoint.', 'model.checkpoint'),
)


def key(config: config_lib.Config, experiment: build.Experiment) -> str:
  """Returns a text that is the same for configs with the same programs.

  Args:
    config: the run.
    experiment: what was built from it.
  """
  numbers = experiment.parts.hyper
  fields: dict[str, Any] = {
    field: value
    for field, value in config_lib.flatten(config).items()
    if not field.startswith(_OUTSIDE)
    and field.rpartition('.')[2] not in numbers.get(field.split('.')[0], {})
  }
  for name, choice in experiment.chosen.items():
    if name in fields and name not in functions.OUTSIDE:
      fields[name] = choice.program
  shapes = {
    'num_publications': experiment.parts.num_publications,
    'num_spans': experiment.parts.num_spans,
    'transformer': dataclasses.asdict(experiment.parts.transformer),
    'numbers': {name: sorted(numbers[name]) for name in sorted(numbers)},
  }
  return json.dumps(fields | shapes, sort_keys=True, default=str)
