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

  @jax.jit
  def all_steps(params):
    state = learner.init(params, optimizer)
    state, _ = jax.lax.scan(one_step, state, length=num_steps)
    return state.params

  return all_steps(params)


def load_or_train(
  folder: pathlib.Path,
  settings: dict[str, Any],
  like: base.PyTree,
  train_fn: Callable[[], base.PyTree],
) -> base.PyTree:
  """Returns the cached weights for these settings, or trains and caches them.

  Args:
    folder: of the cache; made if needed.
    settings: all that the weights depend on, as plain JSON values.
    like: weights of the same structure.
    train_fn: makes the weights.

  Raises:
    ValueError: the folder cannot be written.
  """
  path = folder / f'{fingerprint(settings)}.npz'
  leaves, structure = jax.tree.flatten(like)
  if path.exists():
    try:
      # np.load would leave a damaged file open.
      with open(path, 'rb') as file, np.load(file) as stored:
        found = [jnp.asarray(stored[f'arr_{i}']) for i in range(len(leaves))]
      return jax.tree.unflatten(structure, found)
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
      warnings.warn(
        f'cached warm start {path} cannot be read and is made again: {error}',
        stacklevel=2,
      )
  logs.say('Training the warm start')
  trained = train_fn()
  partial = path.with_suffix(f'.{os.getpid()}.partial')
  try:
    folder.mkdir(parents=True, exist_ok=True)
    with open(partial, 'wb') as file:
      np.savez(file, *(np.asarray(leaf) for leaf in jax.tree.leaves(trained)))
    partial.replace(path)
  except OSError as error:
    raise ValueError(
      f'cache_dir = {str(folder)!r}: must be a folder that can be written '
      f'({error})'
    ) from error
  return trained


def fingerprint(settings: dict[str, Any]) -> str:
  """Returns a hash of the settings, the code and the compiler's version."""
  parts = [json.dumps(settings, sort_keys=True), jax.__version__]
  parts += [jax.default_backend(), inspect.getsource(train)]
  parts += [inspect.getsource(module) for module in _SOURCES]
  return hashlib.sha256('\0'.join(parts).encode()).hexdigest()[:20]
