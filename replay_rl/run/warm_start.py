"""The supervised warm start: a base model that imitates the task's teacher.

It replaces a pretrained checkpoint. It is deterministic, and its weights are
cached under a hash of settings, source code and packages.
"""

import functools
import hashlib
import inspect
import json
import pathlib
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from replay_rl import base
from replay_rl import rng
from replay_rl.disk import array_file
from replay_rl.lm import model
from replay_rl.lm import scoring
from replay_rl.parallel import mesh as mesh_lib
from replay_rl.parallel import processes
from replay_rl.provenance import environment
from replay_rl.provenance import sources
from replay_rl.rl import losses
from replay_rl.rl import optimizers
from replay_rl.run import learner
from replay_rl.run import logs
from replay_rl.run import microbatches
from replay_rl.run import state
from replay_rl.tasks import task as task_lib


def train(
  params: base.PyTree,
  seed: int,
  *,
  make_teacher: Callable[[state.Hyper], task_lib.TeacherFn],
  logprobs_fn: microbatches.LogprobsFn,
  make_transform: Callable[[state.Hyper], Callable],
  hyper: state.Hyper,
  num_steps: int,
  warmup_steps: int,
  batch_size: int,
) -> base.PyTree:
  """Returns weights after maximum likelihood on the teacher's rows.

  The learner makes the updates: negative log-likelihood is REINFORCE with an
  advantage of 1, averaged over the tokens.

  Args:
    params: initial weights.
    seed: selects the teacher's rows.
    make_teacher: hyper -> the teacher of the task.
    logprobs_fn: scores tokens.
    make_transform: hyper -> rates of the updates -> the optimizer.
    hyper: the numbers of the optimizer and of 'task', and of 'warm_start' the
      peak `learning_rate` and `max_grad_norm`.
    num_steps: number of updates.
    warmup_steps: updates in which the rate rises linearly; then it falls to 0
      along a cosine.
    batch_size: rows per update.
  """

  shares = optax.warmup_cosine_decay_schedule(0.0, 1.0, warmup_steps, num_steps)

  def all_steps(params, hyper):
    numbers, teacher_fn = hyper['warm_start'], make_teacher(hyper)
    functions = learner.UpdateFunctions(
      logprobs_fn=logprobs_fn,
      loss_fn=losses.reinforce,
      statistics_fn=None,
      normalizer_fn=losses.token_mean,
      row_weight_fn=None,
      optimizer=optimizers.clipped(
        make_transform(hyper),
        lambda count: numbers['learning_rate'] * shares(count),
        numbers['max_grad_norm'],
      ),
      gate=None,
    )

    def one_step(trained, _):
      rng_key = rng.stream_key(seed, 'teacher', trained.step)
      trained, _, _ = learner.update(
        trained,
        _as_batch(*teacher_fn(rng_key, batch_size)),
        functions=functions,
        num_updates_since_fresh=0,
        num_microbatches=1,
      )
      return trained, None

    trained, _ = jax.lax.scan(
      one_step, learner.init(params, functions), length=num_steps
    )
    return trained.params

  mesh = jax.sharding.get_mesh()
  # Every device gets all weights, so that each process can write them.
  whole = None if mesh.empty else mesh_lib.whole(mesh)
  program = processes.aligned(jax.jit(all_steps, out_shardings=whole))
  return program(params, state.as_arrays(hyper))


def _as_batch(tokens: base.Array, loss_mask: base.Array) -> base.Batch:
  """Returns the teacher's rows as rollouts with an advantage of 1."""
  ones = jnp.ones(tokens.shape[:1])
  zeros = jnp.zeros(tokens.shape[:1], jnp.int32)
  ids = zeros.astype(jnp.uint32)
  rollouts = base.Rollout(
    tokens=tokens,
    loss_mask=loss_mask,
    behavior_logprobs=jnp.zeros(tokens.shape),
    rewards=ones,
    advantages=ones,
    group_id=zeros,
    prompt_id=ids,
    rollout_id=ids,
    policy_version=zeros,
  )
  return learner.fresh_batch(rollouts, zeros, ones > 0)


def load_or_train(
  folder: pathlib.Path,
  settings: dict[str, Any],
  task: task_lib.Task,
  like: base.PyTree,
  train_fn: Callable[[], base.PyTree],
) -> base.PyTree:
  """Returns the cached weights for these settings, or trains and caches them.

  With many processes, only process 0 reads and writes the cache. It sends the
  weights to the others, or all of them train together.

  Args:
    folder: cache folder; created if it does not exist.
    settings: all settings that the weights depend on, as plain JSON values.
    task: has the teacher.
    like: weights of the same structure and shapes.
    train_fn: trains and returns the weights.

  Raises:
    ValueError: the folder cannot be written.
  """
  path = folder / f'{fingerprint(settings, task)}.npz'
  stored = None
  if processes.is_main() and path.exists():
    try:
      stored = array_file.read(path, jax.tree.leaves(like))
    except ValueError as error:
      warnings.warn(
        f'the cached warm start is trained again: {error}', stacklevel=2
      )
  if processes.any_process(stored is not None):
    leaves, structure = jax.tree.flatten(like)
    if stored is None:
      stored = [np.zeros(leaf.shape, leaf.dtype) for leaf in leaves]
    weights = [jnp.asarray(leaf) for leaf in processes.from_main(stored)]
    return jax.tree.unflatten(structure, weights)
  logs.say('Training the warm start')
  trained = train_fn()
  with processes.together('writing the warm start'):
    if processes.is_main():
      array_file.write(
        path, [np.asarray(leaf) for leaf in jax.tree.leaves(trained)]
      )
  return trained


def fingerprint(settings: dict[str, Any], task: task_lib.Task) -> str:
  """Returns a hash of the settings, the code, the packages and the backend.

  The code is `train` and all modules, of this package and of the user, that the
  model, the learner, the optimizers, the losses and the task import.
  """
  teacher = task.teacher_fn
  while isinstance(teacher, functools.partial):
    teacher = teacher.func
  task_module = inspect.getmodule(teacher)
  roots = (rng, model, scoring, losses, learner, optimizers, task_module)
  parts = [
    json.dumps(settings, sort_keys=True),
    jax.default_backend(),
    json.dumps(environment.numerics(), sort_keys=True),
    json.dumps(environment.versions(is_in_text=False), sort_keys=True),
    *(inspect.getsource(function) for function in (train, _as_batch)),
    *(inspect.getsource(module) for module in sources.imported(roots)),
  ]
  return hashlib.sha256('\0'.join(parts).encode()).hexdigest()[:20]
