"""The rollouts that a run read from its replay buffer, read and checked.

A run writes some of them, as text, to `samples.jsonl` in its folder. The file
is optional; a line of it that is wrong is an error.
"""

import pathlib
from typing import Any
from typing import NamedTuple

import numpy as np

from replay_rl.report import runs

FILE = 'samples.jsonl'


class Sample(NamedTuple):
  """One line: a rollout at one of its uses.

  iteration, seed: when and by which seed it was used.
  learner_step: updates done by then.
  prompt, response: as text.
  reference: the answer that was expected; None where the task has none.
  reward, advantage: as stored, the advantage within the group of `group_id`.
  policy_version: learner step whose weights sampled the response.
  age: `learner_step - policy_version`.
  times_sampled: its uses so far.
  group_id: rollouts of one visit to a prompt share it.
  is_finished: False if the response was cut off at its longest length.
  """

  iteration: int
  seed: int
  learner_step: int
  reward: float
  advantage: float
  age: int
  policy_version: int
  times_sampled: int
  group_id: int
  is_finished: bool
  prompt: str
  response: str
  reference: str | None


class Samples(NamedTuple):
  """What is shown of one arm.

  arm: its name.
  kept: samples, in the order of the file.
  num_left_out: how many more the file holds.
  """

  arm: str
  kept: list[Sample]
  num_left_out: int


_WHOLE = (
  'iteration',
  'seed',
  'learner_step',
  'policy_version',
  'age',
  'times_sampled',
  'group_id',
)


def read(folder: str, *, arm: str, max_samples: int) -> Samples:
  """Reads `samples.jsonl` of a run folder, if there is one.

  Above `max_samples` lines, a random choice of so many is kept, always the
  same. A choice at equal distances could miss a seed altogether, because the
  seeds take turns in the file.

  Args:
    folder: a run folder, as the trainer writes it.
    arm: the name of the run.
    max_samples: how many to keep; at least 0.

  Returns:
    The samples; none if there is no file.

  Raises:
    ValueError: if a line is wrong; names file, line and key. A half-written
      last line, of a run that is still going, is only left out.
  """
  if max_samples < 0:
    raise ValueError(f'max_samples = {max_samples}, must be at least 0.')
  path = pathlib.Path(folder) / FILE
  if not path.is_file():
    return Samples(arm, [], 0)
  lines = runs.read_lines(path)
  found = [_sample(place, record) for place, record in lines]
  unknown = {key for _, record in lines for key in record}
  unknown -= set(Sample._fields)
  if unknown:
    runs.warn(f'{path}: not shown: {", ".join(map(repr, sorted(unknown)))}.')
  if len(found) <= max_samples:
    return Samples(arm, found, 0)
  rng = np.random.default_rng(0)
  chosen = np.sort(rng.choice(len(found), max_samples, replace=False))
  kept = [found[index] for index in chosen]
  return Samples(arm, kept, len(found) - max_samples)


def _sample(place: str, record: dict[str, Any]) -> Sample:
  whole: dict[str, Any] = {
    key: runs.whole_number(place, record, key) for key in _WHOLE
  }
  for key in ('reward', 'advantage'):
    runs.check_number(place, record, key)
  for key, types, expected in (
    ('is_finished', bool, 'true or false'),
    ('prompt', str, 'a text'),
    ('response', str, 'a text'),
    ('reference', str | None, 'a text or null'),
  ):
    if key not in record:
      raise ValueError(f'{place}: key {key!r} is missing.')
    if not isinstance(record[key], types):
      raise ValueError(
        f'{place}: key {key!r} must be {expected}, is {record[key]!r}.'
      )
  age = whole['learner_step'] - whole['policy_version']
  if whole['age'] != age:
    raise ValueError(
      f"{place}: key 'age' must be learner_step - policy_version = {age}, is "
      f'{whole["age"]}.'
    )
  return Sample(**{key: record[key] for key in Sample._fields} | whole)
