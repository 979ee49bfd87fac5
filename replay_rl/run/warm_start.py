"""The supervised warm start: a base model that imitates the task's teacher.

It plays the part of a pretrained checkpoint. It is deterministic, and cached
under a hash of all it depends on, the source of that code included.
"""

import hashlib
import inspect
import json
import os
import pathlib
import warnings
import zipfile
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from replay_rl import base
from replay_rl import rng
from replay_rl.lm import model
from replay_rl.parallel import mesh as mesh_lib
from replay_rl.parallel import processes
from replay_rl.rl import losses
from replay_rl.run import learner
from replay_rl.run import logs
from replay_rl.tasks import addition
from replay_rl.tasks import countdown
from replay_rl.tasks import task as task_lib

_SOURCES = (rng, model, losses, learner, task_lib, addition, countdown)


def train(
  params: base.PyTree,
  seed: int,
  *,
  task: task_lib.Task,
  logprobs_fn: learner.LogprobsFn,
  normalizer_fn: base.NormalizerFn,
  optimizer: optax.GradientTransformation,
  num_steps: int,
  batch_size: int,
) -> base.PyTree:
  """Returns weights after maximum likelihood on the teacher's rows.

  Negative log-likelihood is REINFORCE with an advantage of 1, so this is the
  learner's own update.
  """

  def one_step(state, _):
    tokens, loss_mask = task.teacher_fn(
      rng.stream_key(seed, 'teacher', state.step), batch_size
    )
    ones = jnp.ones((batch_size,))
    labels = jnp.zeros((batch_size,), jnp.int32)
    rollouts = base.Rollout(
      tokens=tokens,
      loss_mask=loss_mask,
      behavior_logprobs=jnp.zeros(tokens.shape),
      rewards=ones,
      advantages=ones,
      group_id=labels,
      policy_version=labels,
    )
    state, _ = learner.update(
      state,
      rollouts,
      jnp.ones((batch_size,), bool),
      logprobs_fn=logprobs_fn,
      loss_fn=losses.reinforce,
      normalizer_fn=normalizer_fn,
      optimizer=optimizer,
      num_microbatches=1,
    )
    return state, None

  def all_steps(params):
    state = learner.init(params, optimizer)
    state, _ = jax.lax.scan(one_step, state, length=num_steps)
    return state.params

  mesh = jax.sharding.get_mesh()
  # Whole on every device, so that a process can write them.
  whole = None if mesh.empty else mesh_lib.whole(mesh)
  return processes.aligned(jax.jit(all_steps, out_shardings=whole))(params)


def load_or_train(
  folder: pathlib.Path,
  settings: dict[str, Any],
  like: base.PyTree,
  train_fn: Callable[[], base.PyTree],
) -> base.PyTree:
  """Returns the cached weights for these settings, or trains and caches them.

  With many processes, the cache is that of process 0: the others get what it
  read, or train together with it.

  Args:
    folder: of the cache; made if needed.
    settings: all that the weights depend on, as plain JSON values.
    like: weights of the same structure.
    train_fn: makes the weights.

  Raises:
    ValueError: the folder cannot be written.
  """
  path = folder / f'{fingerprint(settings)}.npz'
  stored = None
  if processes.is_main() and path.exists():
    stored = _read(path, len(jax.tree.leaves(like)))
  if processes.any_process(stored is not None):
    leaves, structure = jax.tree.flatten(like)
    if stored is None:
      stored = [np.zeros(leaf.shape, leaf.dtype) for leaf in leaves]
    found = [jnp.asarray(leaf) for leaf in processes.from_main(stored)]
    return jax.tree.unflatten(structure, found)
  logs.say('Training the warm start')
  trained = train_fn()
  with processes.together('writing the warm start'):
    if processes.is_main():
      _write(path, [np.asarray(leaf) for leaf in jax.tree.leaves(trained)])
  return trained


def _read(path: pathlib.Path, num_leaves: int) -> list[np.ndarray] | None:
  try:
    # np.load would leave a damaged file open.
    with open(path, 'rb') as file, np.load(file) as stored:
      return [stored[f'arr_{i}'] for i in range(num_leaves)]
  except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
    warnings.warn(
      f'cached warm start {path} cannot be read and is made again: {error}',
      stacklevel=3,
    )
    return None


def _write(path: pathlib.Path, leaves: list[np.ndarray]) -> None:
  partial = path.with_suffix(f'.{os.getpid()}.partial')
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(partial, 'wb') as file:
      np.savez(file, *leaves)
    partial.replace(path)
  except OSError as error:
    raise ValueError(
      f'cache_dir = {str(path.parent)!r}: must be a folder that can be written '
      f'({error})'
    ) from error


def fingerprint(settings: dict[str, Any]) -> str:
  """Returns a hash of the settings, the code and the compiler's version."""
  parts = [json.dumps(settings, sort_keys=True), jax.__version__]
  parts += [jax.default_backend(), inspect.getsource(train)]
  parts += [inspect.getsource(module) for module in _SOURCES]
  return hashlib.sha256('\0'.join(parts).encode()).hexdigest()[:20]
