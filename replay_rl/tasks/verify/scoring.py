"""Reward functions of a user, called in the processes of a `pool.Pool`.

A reward function takes lists of texts, and returns a finite number for each
completion:

    def reward_fn(prompts, completions, references):
      return [float(x.strip() == y) for x, y in zip(completions, references)]

A worker calls it with lists of one, so that a time limit and a failure belong
to one completion, whatever the others are.
"""

import functools
import importlib
import importlib.util
import inspect
import math
import numbers
import pathlib
import sys
import types
from collections.abc import Callable
from collections.abc import Sequence
from typing import NamedTuple

from replay_rl.tasks.verify import pool
from replay_rl.tasks.verify import worker

# (prompts, completions, references) -> a number for each completion
RewardFn = Callable[[list[str], list[str], list[str]], Sequence[float]]
_ARGUMENTS = ['prompts', 'completions', 'references']
_FAILURES = (worker.UNREADABLE, worker.CRASHED, worker.TIMEOUT)


class Score(NamedTuple):
  """What a reward function says of one completion.

  reward: the number that it returns; 0 if it failed.
  status: 'correct' from 1 on, else 'wrong'; 'unreadable' if it returned
    something other than one finite number; 'timeout'; 'crashed' if it raised,
    or if its process died or ran out of memory.
  """

  reward: float
  status: str


class Scorer:
  """Calls a reward function in processes of their own, see `pool.Pool`."""

  def __init__(
    self,
    reward_fn: str,
    *,
    num_workers: int,
    answer_timeout: float,
    memory_limit: int,
  ):
    """Starts the workers; they get ready while the caller goes on.

    Args:
      reward_fn: what `absolute` returned.
      num_workers, answer_timeout, memory_limit: see `pool.Pool`.

    Raises:
      ValueError: an argument is not as above.
    """
    self._pool = pool.Pool(
      verify_fn=functools.partial(score, reward_fn=reward_fn),
      warm_up=(),
      num_workers=num_workers,
      answer_timeout=answer_timeout,
      memory_limit=memory_limit,
    )

  def close(self) -> None:
    """Kills the workers. May be called again."""
    self._pool.close()

  def judge(
    self,
    prompts: Sequence[str],
    completions: Sequence[str],
    references: Sequence[str],
  ) -> list[Score]:
    """Returns the score of each completion, in their order.

    Raises:
      ValueError: the numbers of texts differ, or the scorer is closed.
      RuntimeError: a worker cannot start; see `pool.Pool.run`.
    """
    rows = list(zip(prompts, completions, references, strict=True))
    return [_score_of(message) for message in self._pool.run(rows)]


def absolute(name: str) -> str:
  """Returns the name of a reward function with the whole path of its file."""
  place, _, function = name.rpartition(':')
  if place.endswith('.py'):
    return f'{pathlib.Path(place).expanduser().resolve()}:{function}'
  return name


def load(name: str) -> RewardFn:
  """Returns the function that `module:function` or `file.py:function` names.

  Raises:
    ValueError: it names none, or one with other arguments.
  """
  place, _, function = name.rpartition(':')
  complaint = f'reward_fn = {name!r}: must be'
  if not (place and function.isidentifier()):
    raise ValueError(f'{complaint} module:function or file.py:function')
  try:
    is_file = place.endswith('.py')
    module = _of_file(place) if is_file else importlib.import_module(place)
    found = getattr(module, function)
    arguments = list(inspect.signature(found).parameters)
  except (Exception, SystemExit) as error:  # The module may raise anything.
    raise ValueError(
      f'{complaint} a function that can be imported '
      f'({type(error).__name__}: {error})'
    ) from error
  if arguments != _ARGUMENTS:
    raise ValueError(
      f'{complaint} a function of ({", ".join(_ARGUMENTS)}), not of '
      f'({", ".join(arguments)})'
    )
  return found


def score(*row: str, reward_fn: str) -> str:
  """Returns the reward of one completion, as text, for a `pool.Pool`.

  Args:
    *row: prompt, completion and reference; without them, it only imports.
    reward_fn: see `absolute`.

  Raises:
    worker.UnreadableError: the function did not return one finite number.
  """
  function = _loaded(reward_fn)
  if not row:
    return ''
  rewards = function(*([text] for text in row))
  if not isinstance(rewards, (str, bytes)):
    try:
      (reward,) = rewards
    except (TypeError, ValueError):
      reward = None
    if isinstance(reward, numbers.Real) and math.isfinite(reward):
      return repr(float(reward))
  raise worker.UnreadableError(f'{rewards!r:.80}')


@functools.cache
def _loaded(name: str) -> RewardFn:
  return load(name)


def _of_file(place: str) -> types.ModuleType:
  """Returns a file as a module; it is read again at each call."""
  path = pathlib.Path(place).expanduser().resolve()
  name = f'reward_fn_{path.stem}'
  spec = importlib.util.spec_from_file_location(name, path)
  assert spec is not None and spec.loader is not None
  module = importlib.util.module_from_spec(spec)
  # Where `inspect` and dataclasses look for the module of a function.
  sys.modules[name] = module
  spec.loader.exec_module(module)
  return module


def _score_of(message: str) -> Score:
  """Returns what the message of a worker says; it cannot be trusted."""
  if message in _FAILURES:
    return Score(0.0, message)
  try:
    reward = float(message)
  except ValueError:
    return Score(0.0, worker.CRASHED)
  if not math.isfinite(reward):
    return Score(0.0, worker.UNREADABLE)
  return Score(reward, worker.CORRECT if reward >= 1 else worker.WRONG)
