"""Writes rollouts of the buffer as text, for people to read."""

from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from replay_rl import base
from replay_rl import rng
from replay_rl.replay import buffer
from replay_rl.replay import sampling
from replay_rl.run import logs
from replay_rl.run import state
from replay_rl.tasks import task as task_lib


class Shown(NamedTuple):
  """n rollouts of the buffer after an iteration.

  iteration, seed, learner_step: `[]` integers, of the run.
  rollouts: `[n, ...]`.
  times_sampled: `[n]` int32, uses so far.
  is_valid: `[n]` bool, False where the buffer holds fewer than n rollouts.
  """

  iteration: base.Array
  seed: base.Array
  learner_step: base.Array
  rollouts: base.Rollout
  times_sampled: base.Array
  is_valid: base.Array


def read(run: state.RunState, num_samples: int) -> Shown:
  """Returns rollouts of the buffer, drawn uniformly, each at most once."""
  capacity = run.buffer.is_valid.shape[0]
  batch = buffer.sample(
    run.buffer,
    rng.stream_key(run.seed, 'samples', run.clock.iteration),
    jnp.ones((capacity,)),
    min(num_samples, capacity),
    draw=sampling.gumbel_top_k,
  )
  return Shown(
    iteration=run.clock.iteration - 1,
    seed=run.seed,
    learner_step=run.learner.step,
    rollouts=batch.rollouts,
    times_sampled=run.buffer.times_sampled.at[batch.slots].get(mode='clip'),
    is_valid=batch.is_valid,
  )


def lines(
  shown: Shown, task: task_lib.Task | task_lib.TextTask
) -> list[dict[str, Any]]:
  """Returns a line for `samples.jsonl` per valid rollout.

  Args:
    shown: rollouts of all seeds, `[S, ...]`.
    task: decodes the tokens.
  """
  host = jax.device_get(shown)
  written = []
  for seed, row in np.argwhere(host.is_valid):
    rollout = jax.tree.map(
      lambda leaf, seed=seed, row=row: leaf[seed, row], host.rollouts
    )
    sampled = np.flatnonzero(rollout.loss_mask)
    response = rollout.tokens[sampled]
    place = {
      name: getattr(host, name)[seed]
      for name in ('iteration', 'seed', 'learner_step')
    }
    numbers = {
      'reward': rollout.rewards,
      'advantage': rollout.advantages,
      'policy_version': rollout.policy_version,
      'age': host.learner_step[seed] - rollout.policy_version,
      'times_sampled': host.times_sampled[seed, row],
      'group_id': rollout.group_id,
      'prompt_id': rollout.prompt_id,
      'rollout_id': rollout.rollout_id,
      'is_finished': np.isin(response[-1], task.shape.eos_ids),
    }
    reference = None
    if isinstance(task, task_lib.TextTask):
      reference = task.reference_fn(int(rollout.prompt_id))
    written.append(
      {
        **{name: logs.plain(value) for name, value in place.items()},
        'prompt': task.decode_fn(rollout.tokens[: sampled[0]]),
        'response': task.decode_fn(response),
        'reference': reference,
        **{name: logs.plain(np.asarray(x)) for name, x in numbers.items()},
      }
    )
  return written
