"""Rollouts of the buffer as text, for people to look at."""

from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from replay_rl import base
from replay_rl import rng
from replay_rl.replay import buffer
from replay_rl.replay import sampling
from replay_rl.run import iteration
from replay_rl.run import logs
from replay_rl.tasks import task as task_lib


class Samples(NamedTuple):
  """Some rollouts of the buffer after an iteration.

  iteration, seed, learner_step: `[]` integers, where the run is.
  rollouts: `[n, ...]`.
  times_sampled: `[n]` int32, uses so far.
  is_valid: `[n]` bool, False where the buffer had no more rollouts.
  """

  iteration: base.Array
  seed: base.Array
  learner_step: base.Array
  rollouts: base.Rollout
  times_sampled: base.Array
  is_valid: base.Array


def read(run: iteration.RunState, num_samples: int) -> Samples:
  """Returns rollouts of the buffer, drawn uniformly, each at most once."""
  capacity = run.buffer.is_valid.shape[0]
  sample = buffer.sample(
    run.buffer,
    rng.stream_key(run.seed, 'samples', run.iteration),
    jnp.ones((capacity,)),
    min(num_samples, capacity),
    draw=sampling.gumbel_top_k,
  )
  return Samples(
    iteration=run.iteration - 1,
    seed=run.seed,
    learner_step=run.learner.step,
    rollouts=sample.rollouts,
    times_sampled=run.buffer.times_sampled.at[sample.slots].get(mode='clip'),
    is_valid=sample.is_valid,
  )


def lines(
  samples: Samples, task: task_lib.Task | task_lib.TextTask, num_prompts: int
) -> list[dict[str, Any]]:
  """Returns a line of text per rollout.

  Args:
    samples: of all seeds, `[S, ...]`.
    task: which decodes the tokens.
    num_prompts: P, prompts of an iteration.
  """
  host = jax.device_get(samples)
  found = []
  for seed, row in np.argwhere(host.is_valid):
    rollout = jax.tree.map(
      lambda leaf, seed=seed, row=row: leaf[seed, row], host.rollouts
    )
    sampled = np.flatnonzero(rollout.loss_mask)
    response = rollout.tokens[sampled]
    place = {
      'iteration': host.iteration[seed],
      'seed': host.seed[seed],
      'learner_step': host.learner_step[seed],
    }
    numbers = {
      'reward': rollout.rewards,
      'advantage': rollout.advantages,
      'policy_version': rollout.policy_version,
      'age': host.learner_step[seed] - rollout.policy_version,
      'times_sampled': host.times_sampled[seed, row],
      'group_id': rollout.group_id,
      'is_finished': np.isin(response[-1], task.eos_ids),
    }
    found.append(
      {name: logs.plain(value) for name, value in place.items()}
      | {
        'prompt': task.decode_fn(rollout.tokens[: sampled[0]]),
        'response': task.decode_fn(response),
        'reference': _reference(
          task, int(place['seed']), int(rollout.group_id), num_prompts
        ),
      }
      | {name: logs.plain(np.asarray(value)) for name, value in numbers.items()}
    )
  return found


def _reference(
  task: task_lib.Task | task_lib.TextTask,
  seed: int,
  group_id: int,
  num_prompts: int,
) -> str | None:
  if isinstance(task, task_lib.Task):
    return None
  # A rollout does not say which problem it answers, but its prompt can be
  # drawn again.
  iteration_of_group, index = divmod(group_id, num_prompts)
  prompts = task.prompts_fn(seed, iteration_of_group, num_prompts)
  return task.reference_fn(int(prompts.references[index]))
