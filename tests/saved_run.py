"""A folder of a run with one checkpoint, without training."""

import contextlib
import pathlib
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from replay_rl import train
from replay_rl.run import build
from replay_rl.run import checkpoint
from replay_rl.run import config as config_lib
from replay_rl.run import logs
from replay_rl.run import state
from replay_rl.run import workdir
from replay_rl.tasks import task as task_lib


def save(
  folder: pathlib.Path,
  config: config_lib.Config,
  *,
  iteration: int,
  change: Callable[[state.RunState], state.RunState] = lambda run: run,
) -> state.RunState:
  """Saves a run with random weights and an empty buffer; returns it.

  Args:
    folder: of the run.
    config: the run.
    iteration: iterations done.
    change: what to change of the run before it is saved.
  """
  task = build.task(config)
  try:
    experiment = build.experiment(config, task.shape)
    made_of = train.record(config, experiment, task)
  finally:
    task_lib.close(task)
  rng = np.random.default_rng(0)
  run = jax.tree.map(
    lambda leaf: jnp.zeros(leaf.shape, leaf.dtype),
    state.shapes_of_run(experiment.parts, config.num_seeds),
  )
  run = run._replace(
    seed=config.seed + jnp.arange(config.num_seeds, dtype=jnp.uint32),
    clock=run.clock._replace(
      iteration=jnp.full_like(run.clock.iteration, iteration)
    ),
    learner=run.learner._replace(
      params=jax.tree.map(
        lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), jnp.float32),
        run.learner.params,
      )
    ),
  )
  run = change(run)
  with workdir.locked(folder):
    workdir.claim(folder, made_of, allow_code_change=False)
  (folder / logs.METRICS).touch()
  saving = checkpoint.Checkpoints(folder / 'checkpoints', keep=3)
  with contextlib.closing(saving):
    saving.save(run, {})
    saving.wait()
  return run
