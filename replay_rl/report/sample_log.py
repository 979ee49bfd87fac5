"""Reads the rollouts that a run wrote as text, and checks them.

A run draws some rollouts of its replay buffer after an iteration and writes
them to `samples.jsonl` in its folder. The file is optional; a line of it that
is wrong is an error.
"""

import pathlib
from typing import Any
from typing import NamedTuple

import numpy as np

from replay_rl.report import runs

FILE = 'samples.jsonl'


class SampleLine(NamedTuple):
  """One line: a rollout of the buffer, as it was after an iteration.

  iteration, seed: when the rollout was drawn, and from the buffer of which
    seed.
  learner_step: updates done by then.
  prompt, response: as text.
  reference: the expected answer; None where the task has none.
  reward, advantage: as stored, the advantage within the group of `group_id`.
  policy_version: learner step whose weights sampled the response.
  age: `learner_step - policy_version`.
  times_sampled: its uses so far, perhaps none.
  group_id: rollouts of one visit to a prompt share it.
  is_finished: False if the response was cut off at its longest length.
  prompt_id, rollout_id: of the prompt and of the rollout.
  is_correct: whether the answer is right, whatever the reward. These three are
    None in files of runs that did not write them.
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
  prompt_id: int | None = None
  rollout_id: int | None = None
  is_correct: bool | None = None


class ShownSamples(NamedTuple):
  """What is shown of one arm.

  arm: its name.
  kept: lines, in the order of the file.
  num_left_out: how many more the file holds.
  """

  arm: str
  kept: list[SampleLine]
  num_left_out: int


_TEXT = runs.ValueKind(lambda x: isinstance(x, str), 'a text')
_TRUTH = runs.ValueKind(lambda x: isinstance(x, bool), 'true or false')
_KINDS = {
  'iteration': runs.COUNT,
  'seed': runs.COUNT,
  'learner_step': runs.COUNT,
  'reward': runs.FINITE,
  'advantage': runs.FINITE,
  'age': runs.COUNT,
  'policy_version': runs.COUNT,
  'times_sampled': runs.COUNT,
  'group_id': runs.COUNT,
  'is_finished': _TRUTH,
  'prompt': _TEXT,
  'response': _TEXT,
  'reference': runs.ValueKind(
    lambda x: isinstance(x, str | None), 'a text or null'
  ),
}
_OPTIONAL = dict.fromkeys(
  ('prompt_id', 'rollout_id'), runs.ValueKind(runs.is_integer, 'an integer')
) | {'is_correct': _TRUTH}


def read(folder: str, *, arm: str, max_samples: int) -> ShownSamples:
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
    raise ValueError(f'max_samples = {max_samples}: must be at least 0')
  path = pathlib.Path(folder) / FILE
  if not path.is_file():
    return ShownSamples(arm, [], 0)
  records = runs.read_lines(path)
  lines = [_check(place, record) for place, record in records]
  unknown = {key for _, record in records for key in record}
  unknown -= _KINDS.keys() | _OPTIONAL.keys()
  if unknown:
    runs.warn(f'{path}: not shown: {", ".join(map(repr, sorted(unknown)))}')
  if len(lines) <= max_samples:
    return ShownSamples(arm, lines, 0)
  rng = np.random.default_rng(0)
  chosen = np.sort(rng.choice(len(lines), max_samples, replace=False))
  kept = [lines[index] for index in chosen]
  return ShownSamples(arm, kept, len(lines) - max_samples)


def _check(place: str, record: dict[str, Any]) -> SampleLine:
  kinds = _KINDS | {key: _OPTIONAL[key] for key in _OPTIONAL if key in record}
  line = SampleLine(
    **{
      key: runs.value_of(place, record, key, kind)
      for key, kind in kinds.items()
    }
  )
  age = line.learner_step - line.policy_version
  if line.age != age:
    raise ValueError(
      f'age of {place} = {line.age}: must be learner_step - policy_version = '
      f'{age}'
    )
  return line
