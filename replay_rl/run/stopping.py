"""What ends a run before its last iteration: signals, and numbers gone bad."""

import contextlib
import math
import os
import signal
import threading
from collections.abc import Collection
from collections.abc import Iterator
from typing import Any
from typing import NoReturn

import jax
import numpy as np

from replay_rl import base
from replay_rl.parallel import processes
from replay_rl.run import build
from replay_rl.run import checkpoint
from replay_rl.run import config as config_lib
from replay_rl.run import logs
from replay_rl.run import state

# They save a checkpoint and end the run with the status 128 + number.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# A run that has not learned yet stops after so many generations in a row
# without a row to learn from.
MAX_EMPTY_GENERATIONS = 10


class DivergedError(ValueError):
  """A reward, loss, gradient or weight is not finite."""


class EmptyUpdatesError(ValueError):
  """The first `MAX_EMPTY_GENERATIONS` gave an update no valid row."""


def check_not_empty(
  run: state.RunState, config: config_lib.Config, experiment: build.Experiment
) -> None:
  """Raises EmptyUpdatesError if a seed has learned nothing from its start on.

  A seed that has learned may run out of rows because it solves all prompts, and
  its other iterations count: that is told, once per `MAX_EMPTY_GENERATIONS`.
  """
  num_empty_N, steps_N, seed_N = jax.device_get(
    (run.learner.num_empty_in_a_row, run.learner.step, run.seed)
  )
  rule = experiment.chosen.get('replay.weights')
  causes = (
    f'replay.weights = {rule and rule.text!r} gives no stored rollout a '
    'positive weight, or replay.drop_zero_variance = '
    f'{config.replay.drop_zero_variance} dropped every group'
  )
  is_empty_N = num_empty_N >= MAX_EMPTY_GENERATIONS
  if np.any(is_empty_N & (steps_N == 0)):
    raise EmptyUpdatesError(
      f'generations in a row without a valid row = {int(np.max(num_empty_N))}: '
      f'must be below {MAX_EMPTY_GENERATIONS} before the first update; {causes}'
    )
  is_told_N = is_empty_N & (num_empty_N % MAX_EMPTY_GENERATIONS == 0)
  for seed, num_empty in zip(
    seed_N[is_told_N], num_empty_N[is_told_N], strict=True
  ):
    logs.say(
      f'seed {seed}: no valid row in {num_empty} generations in a row; {causes}'
    )


def check_finite(
  lines: list[dict[str, Any]], checkpoints: checkpoint.Checkpoints
) -> None:
  """Raises DivergedError if a reward, loss or gradient is not finite."""
  for line in lines:
    names = ['reward', *(name for name in line if name.startswith('eval/'))]
    # Without an update on a valid row, loss and gradient are NaN.
    if line.get('updates/applied', 0) + line.get('updates/refused', 0):
      names += ['loss', 'grad_norm']
    for name in names:
      # A cycle that generates nothing has no reward.
      if name in line and not math.isfinite(line[name]):
        _diverged(name, line[name], line, checkpoints)


def check_weights(
  is_finite: base.Array,
  lines: list[dict[str, Any]],
  checkpoints: checkpoint.Checkpoints,
) -> None:
  """Raises DivergedError if the weights of a seed can no longer be used."""
  for line, is_good in zip(lines, jax.device_get(is_finite), strict=True):
    if not is_good:
      _diverged('weights or their log-probs', 'not finite', line, checkpoints)


def _diverged(
  name: str,
  value: Any,
  line: dict[str, Any],
  checkpoints: checkpoint.Checkpoints,
) -> NoReturn:
  checkpoints.wait()
  steps = checkpoints.steps()
  kept = 'there is no checkpoint yet'
  if steps:
    kept = f'the last good checkpoint is {checkpoints.folder / str(steps[-1])}'
  raise DivergedError(
    f'{name} = {value} in iteration {line["iteration"]} of seed '
    f'{line["seed"]}: must be finite; {kept}'
  )


@contextlib.contextmanager
def signals() -> Iterator[set[int]]:
  """Yields a set that collects `SIGNALS`, where Python allows handlers."""
  received: set[int] = set()
  if threading.current_thread() is not threading.main_thread():
    yield received
    return

  def receive(number: int, _: Any) -> None:
    received.add(number)
    if number == signal.SIGINT:
      signal.signal(signal.SIGINT, signal.SIG_DFL)  # For the second one.
      os.write(2, b'\nSaving after this iteration; Ctrl-C again ends at once\n')

  # `nohup` ignores SIGHUP, and a shell SIGINT for what runs in the background.
  before = {
    number: signal.getsignal(number)
    for number in SIGNALS
    if signal.getsignal(number) != signal.SIG_IGN
  }
  for number in before:
    signal.signal(number, receive)
  try:
    yield received
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)


def first_signal(received: Collection[int]) -> int | None:
  """Returns the signal that any process received; None without."""
  is_there = np.array([number in received for number in SIGNALS], np.int32)
  (indices,) = np.nonzero(processes.total(is_there))
  return SIGNALS[indices[0]] if len(indices) else None
