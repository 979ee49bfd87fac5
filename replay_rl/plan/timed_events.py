"""What the events of a run take on this machine."""

import time
from typing import NamedTuple

import jax
import numpy as np

from replay_rl.run import events as events_lib
from replay_rl.run import schedule
from replay_rl.run import state


class TimedEvents(NamedTuple):
  """Seconds of events, over the seeds of a run together, `[repetitions]`.

  num_generated, num_trained: rollouts of a generation and of an update.
  """

  generate: np.ndarray
  remember: np.ndarray
  learn: np.ndarray
  num_generated: int
  num_trained: int


def measure(
  run: state.RunState,
  actions: events_lib.Actions,
  parts: state.Parts,
  num_timings: int,
) -> TimedEvents:
  """Times the events of a cycle with one update, after one to warm up."""
  seconds = []
  for _ in range(num_timings + 1):
    started = time.perf_counter()
    generation, rewards, _ = jax.block_until_ready(
      actions.generate(run, schedule.Generate())
    )
    generated = time.perf_counter()
    run, fresh, _ = jax.block_until_ready(
      actions.remember(run, generation, rewards)
    )
    remembered = time.perf_counter()
    run, _ = jax.block_until_ready(actions.learn(run, fresh, 1))
    learned = time.perf_counter()
    seconds.append(
      (generated - started, remembered - generated, learned - remembered)
    )
  generate, remember, learn = np.array(seconds[1:]).T
  return TimedEvents(generate, remember, learn, parts.num_fresh, parts.num_rows)
