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
  references: what the task reads to judge them, `[n, ...]`; None for a task in
    text.
  is_correct: `[n]` bool, whether the answer is right; None for a task in text.
  """

  iteration: base.Array
  seed: base.Array
  learner_step: base.Array
  rollouts: base.Rollout
  times_sampled: base.Array
  is_valid: base.Array
  references: base.PyTree
  is_correct: base.Array | None


def read(
  run: state.RunState,
  num_samples: int,
  task: task_lib.Task | task_lib.TextTask | None,
) -> Shown:
  """Returns rollouts of the buffer, drawn uniformly, each at most once.

  Args:
    run: the run.
    num_samples: n; all slots where the buffer has fewer.
    task: judges them if it does so in JAX.
  """
  capacity = run.buffer.is_valid.shape[0]
  batch = buffer.sample(
    run.buffer,
    rng.stream_key(run.seed, 'samples', run.clock.iteration),
    jnp.ones((capacity,)),
    min(num_samples, capacity),
    draw=sampling.gumbel_top_k,
  )
  references = is_correct = None
  if isinstance(task, task_lib.Task):
    references, is_correct = _judged(batch.rollouts, task)
  return Shown(
    iteration=run.clock.iteration - 1,
    seed=run.seed,
    learner_step=run.learner.step,
    rollouts=batch.rollouts,
    times_sampled=run.buffer.times_sampled.at[batch.slots].get(mode='clip'),
    is_valid=batch.is_valid,
    references=references,
    is_correct=is_correct,
  )


def _judged(
  rollouts: base.Rollout, task: task_lib.Task
) -> tuple[base.PyTree, base.Array]:
  """Returns the references of rollouts, and whether each answer is right."""
  shape, tokens_BT = task.shape, rollouts.tokens
  lengths_B = jnp.sum(rollouts.loss_mask, axis=1)
  first_B = jnp.argmax(rollouts.loss_mask, axis=1)
  # The rows that are not valid may have any tokens.
  places_BR = first_B[:, None] + jnp.arange(shape.max_new_tokens)[None, :]
  responses_BR = jnp.take_along_axis(tokens_BT, places_BR, 1, mode='clip')
  is_token_BR = jnp.arange(shape.max_new_tokens)[None, :] < lengths_B[:, None]
  references = task.references_fn(tokens_BT[:, : shape.prompt_length])
  is_correct_B = task.reward_fn(
    jnp.where(is_token_BR, responses_BR, shape.pad_id), lengths_B, references
  )
  return references, is_correct_B > 0


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
    shown_row = jax.tree.map(
      lambda leaf, seed=seed, row=row: leaf[seed, row],
      (host.rollouts, host.references, host.is_correct),
    )
    rollout, references, is_correct = shown_row
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
    if isinstance(task, task_lib.TextTask):
      reference, is_correct = _judged_on_host(rollout, response, task)
    else:
      reference = task.describe_fn(references)
    numbers['is_correct'] = is_correct
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


def _judged_on_host(
  rollout: base.Rollout, response: np.ndarray, task: task_lib.TextTask
) -> tuple[str, np.bool]:
  """Returns the right answer to a prompt, and whether a response has it."""
  row = int(rollout.prompt_id)
  padding = (0, task.shape.max_new_tokens - len(response))
  judgement = task.judge_fn(
    np.pad(response, padding, constant_values=task.shape.pad_id)[None],
    np.array([len(response)], np.int32),
    np.isin(response[-1:], task.shape.eos_ids),
    np.array([row], np.int32),
  )
  return task.reference_fn(row), judgement.is_correct[0]
