"""Measures the gradients and the times of a trained run, for `plan fit`."""

import functools
import pathlib
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from replay_rl import base
from replay_rl import rng
from replay_rl import train
from replay_rl.evaluate import run_weights
from replay_rl.plan import timed_events
from replay_rl.provenance import environment
from replay_rl.replay import gradient_noise
from replay_rl.run import build
from replay_rl.run import checkpoint
from replay_rl.run import config as config_lib
from replay_rl.run import entry
from replay_rl.run import events as events_lib
from replay_rl.run import learner as learner_lib
from replay_rl.run import maker as maker_lib
from replay_rl.run import placement
from replay_rl.run import programs
from replay_rl.run import recorded
from replay_rl.run import schedule
from replay_rl.run import state
from replay_rl.run import workdir as workdir_lib
from replay_rl.tasks import task as task_lib

_MAX_CYCLES = 1000  # Of a schedule, for the average of their updates.


class FitSettings(NamedTuple):
  """How to measure a run.

  step: iterations done at the checkpoint; None for the newest.
  loss: as `loss.policy` of the config, whose gradients to take; None for the
    run's own.
  num_fresh: least number of fresh rollouts.
  num_directions: K, see `gradient_noise`.
  rows_at_once: gradients in memory at a time.
  num_timings: repetitions of each event.
  seed: of the directions.
  """

  step: int | None
  loss: str | None
  num_fresh: int
  num_directions: int
  rows_at_once: int
  num_timings: int
  seed: int


class SeedNoise(NamedTuple):
  """The projected gradients of one seed of a run.

  seed: of the run.
  learner_step: updates that changed the weights.
  fresh, stored: groups of rollouts that the weights have generated now, and of
    the buffer.
  num_dropped: fresh rollouts that the run would not have stored.
  """

  seed: int
  learner_step: int
  fresh: gradient_noise.Groups
  stored: gradient_noise.Groups
  num_dropped: int


class RunNoise(NamedTuple):
  """What was measured of a run.

  folder, config: of the run.
  iteration: the checkpoint.
  commit: of the code that trained it.
  seeds: by seed.
  times: of its events.
  fresh_per_update: R.
  """

  folder: pathlib.Path
  config: config_lib.Config
  iteration: int
  commit: str
  seeds: tuple[SeedNoise, ...]
  times: timed_events.TimedEvents
  fresh_per_update: float


def measure(folder: pathlib.Path, settings: FitSettings) -> RunNoise:
  """Measures a run at a checkpoint; the folder stays as it is.

  Raises:
    ValueError: the run cannot be read or measured.
  """
  config, commit = recorded.read_config(folder)
  environment.check()
  task = build.task(config)
  try:
    experiment = build.experiment(config, task.shape)
    parts, of_loss = experiment.parts, experiment
    if settings.loss is not None:
      of_loss = build.experiment(
        config_lib.changed(config, {'loss.policy': settings.loss}), task.shape
      )
    _check_loss(of_loss)
    _check(folder, config, experiment, task)
    mesh, sampler_mesh = placement.meshes_of_run(config, parts)
    how = maker_lib.settings_of(config, mesh=mesh, sampler_mesh=sampler_mesh)
    step = run_weights.pick_step(folder, settings.step)
    with jax.set_mesh(mesh):
      run = checkpoint.read(
        folder / 'checkpoints', step, programs.abstract_run(parts, how)
      ).run
      actions = programs.separate_events(parts, task, how)
      stored = jax.device_get((run.buffer.rollouts, run.buffer.is_valid))
      learner = jax.device_get(run.learner)
      for _ in range(parts.num_publications):  # The newest weights generate.
        run = actions.publish(run)
      run, fresh = _fresh(run, actions, parts, settings.num_fresh)
      seeds = tuple(
        _of_seed(
          folder,
          seed=config.seed + i,
          parts=of_loss.parts,
          settings=settings,
          learner=jax.tree.map(lambda leaf, i=i: leaf[i], learner),
          stored=jax.tree.map(lambda leaf, i=i: leaf[i], stored),
          fresh=jax.tree.map(lambda leaf, i=i: leaf[i], fresh),
        )
        for i in range(config.num_seeds)
      )
      times = timed_events.measure(run, actions, parts, settings.num_timings)
  finally:
    task_lib.close(task)
  updates = schedule.mean_updates(
    experiment.schedule, min(config.num_iterations, _MAX_CYCLES)
  )
  return RunNoise(
    folder=folder,
    config=config,
    iteration=step,
    commit=commit,
    seeds=seeds,
    times=times,
    fresh_per_update=parts.num_fresh / updates,
  )


def _check(
  folder: pathlib.Path,
  config: config_lib.Config,
  experiment: build.Experiment,
  task: task_lib.Task | task_lib.TextTask,
) -> None:
  """Raises ValueError if the folder holds a run of other functions."""
  made_of = train.record(config, experiment, task)
  entry.add_checkpoint(made_of, config)
  differing = workdir_lib.compare(folder, made_of, allow_code_change=True)
  if functions := differing.get('functions'):
    raise ValueError(
      f'functions of {str(folder)!r} = {sorted(functions)}: must be those that '
      'the config names'
    )


def _check_loss(experiment: build.Experiment) -> None:
  """Raises ValueError if the gradient of a rollout depends on its batch.

  Or if its responses have several weights: then no policy of one version, as
  the measurement needs, has generated them.
  """
  if experiment.parts.num_spans:
    raise ValueError(
      f'schedule = {experiment.chosen["schedule"].text!r}: must not change '
      'weights within a response, so that each rollout has one age'
    )
  for field in ('loss.statistics', 'loss.row_weights', 'loss.batch_advantage'):
    if field in experiment.chosen:
      raise ValueError(
        f'{field} = {experiment.chosen[field].text!r}: must be None, so that a '
        'rollout has a gradient of its own'
      )


def _fresh(
  run: state.RunState,
  actions: events_lib.Actions,
  parts: state.Parts,
  num_rollouts: int,
) -> tuple[state.RunState, tuple[base.Rollout, np.ndarray]]:
  """Returns new rollouts `[S, n, ...]`, and which of them the run would keep.

  Their prompts are those that the run would have seen next.
  """
  batches = []
  for _ in range(-(-num_rollouts // parts.num_fresh)):
    generation, rewards, _ = actions.generate(run, schedule.Generate())
    run, fresh, _ = actions.remember(run, generation, rewards)
    batches.append(jax.device_get((fresh.rollouts, fresh.is_valid)))
  return run, jax.tree.map(
    lambda *leaves: np.concatenate(leaves, axis=1), *batches
  )


def _of_seed(
  folder: pathlib.Path,
  *,
  seed: int,
  parts: state.Parts,
  settings: FitSettings,
  learner: base.LearnerState,
  stored: tuple[base.Rollout, np.ndarray],
  fresh: tuple[base.Rollout, np.ndarray],
) -> SeedNoise:
  """Returns the projected gradients of the rollouts of one seed."""
  kept = [
    jax.tree.map(lambda leaf, is_valid=is_valid: leaf[is_valid], rollouts)
    for rollouts, is_valid in (fresh, stored)
  ]
  num_fresh = len(kept[0].group_id)
  for name, rollouts in zip(('fresh', 'stored'), kept, strict=True):
    num_groups = len(np.unique(rollouts.group_id))
    if num_groups < 2:
      raise ValueError(
        f'groups of {name} rollouts of {str(folder)!r}, seed {seed} = '
        f'{num_groups}: must be two at least'
      )
  rows = jax.tree.map(lambda *leaves: np.concatenate(leaves), *kept)
  signs = gradient_noise.directions(
    rng.stream_key(settings.seed, 'directions', seed),
    learner.params,
    settings.num_directions,
  )
  projections = np.asarray(
    _projections(
      learner,
      state.as_arrays(parts.hyper),
      rows,
      np.arange(len(rows.group_id)) < num_fresh,
      signs,
      parts.bind,
      settings.rows_at_once,
    )
  )
  if not np.isfinite(projections).all():
    raise ValueError(
      f'gradients of {str(folder)!r}, seed {seed} = not finite: must be finite'
    )
  ages = learner.step - rows.policy_version
  groups = [
    gradient_noise.grouped(projections[part], rows.group_id[part], ages[part])
    for part in (slice(num_fresh), slice(num_fresh, None))
  ]
  return SeedNoise(
    seed=seed,
    learner_step=int(learner.step),
    fresh=groups[0],
    stored=groups[1],
    num_dropped=int(np.sum(~fresh[1])),
  )


@functools.partial(jax.jit, static_argnums=(5, 6))
def _projections(
  learner: base.LearnerState,
  hyper: state.Hyper,
  rows: base.Rollout,
  is_fresh: base.Array,
  signs: base.PyTree,
  bind: Any,
  rows_at_once: int,
) -> base.Array:
  """Returns the projected gradient of each row's part of the loss, `[n, K]`."""
  functions = bind(hyper).update
  # As in an update on all the rows, times their number: the mean of the
  # gradients of rows is then the gradient of such an update.
  weights_nT = functions.normalizer_fn(rows.loss_mask) * len(rows.loss_mask)
  return gradient_noise.project(
    lambda row: row_gradient(learner, functions, *row),
    (rows, is_fresh, weights_nT),
    signs,
    rows_at_once=rows_at_once,
  )


def row_gradient(
  learner: base.LearnerState,
  functions: learner_lib.UpdateFunctions,
  row: base.Rollout,
  is_fresh: base.Array,
  weights_T: base.Array,
) -> base.PyTree:
  """Returns the gradient of the loss of one rollout, before any clipping of it.

  The update of the run computes it; a gate in place of the run's keeps it.

  Args:
    learner: with the current weights.
    functions: of the run's update.
    row: without leading axis.
    is_fresh: `[]` bool, see `base.Batch`.
    weights_T: weight of each token's loss.
  """
  batch = learner_lib.fresh_batch(
    jax.tree.map(lambda leaf: leaf[None], row),
    jnp.zeros((1,), jnp.int32),
    jnp.ones((1,), bool),
  )._replace(is_fresh=is_fresh[None])

  def keep(_, proposal):
    refused = base.Verdict(
      jnp.zeros((), bool), jnp.zeros((), bool), jnp.ones(())
    )
    return refused, proposal.gradients

  updated, _, _ = learner_lib.update(
    learner._replace(gate_state=jax.tree.map(jnp.zeros_like, learner.params)),
    batch,
    functions=functions._replace(
      normalizer_fn=lambda mask: jnp.where(mask, weights_T[None], 0.0),
      gate=base.Gate(init=tuple, judge=keep),
    ),
    num_updates_since_fresh=0,
    num_microbatches=1,
  )
  return updated.gate_state
