"""Evaluation during a run: greedy reward, and pass@k of samples."""

import jax
import jax.numpy as jnp
import numpy as np

from replay_rl import base
from replay_rl import rng
from replay_rl.parallel import mesh
from replay_rl.run import events
from replay_rl.run import pass_at_k
from replay_rl.run import state
from replay_rl.tasks import task as task_lib


def prompts_of_seed(
  seed: base.Array, *, task: task_lib.Task, num_prompts: int
) -> base.Prompts:
  """Returns the evaluation prompts of a seed, `[P]`, the same at every call."""
  return task.prompts_fn(
    rng.stream_key(seed, 'evaluation_prompts'), num_prompts
  )


def samples_of_seed(
  policy: events.Policy,
  prompts: base.Prompts,
  *,
  parts: state.Parts,
  num_samples: int,
) -> tuple[tuple[base.Completions, base.PyTree], ...]:
  """Samples responses to evaluation prompts.

  The noise is the same at every call, so that two points of a learning curve
  differ by their weights alone.

  Args:
    policy: the weights to evaluate.
    prompts: `[P]`.
    parts: of the run.
    num_samples: n, samples per prompt at temperature 1.

  Returns:
    Completions and the reference of each: greedy, `[P]`, and sampled, `[P * n]`
    with the samples of a prompt side by side.
  """
  return (
    _sample(policy, prompts, parts.greedy_fn, 1),
    _sample(policy, prompts, parts.unbiased_fn, num_samples),
  )


def rewards_of_seed(
  greedy: tuple[base.Completions, base.PyTree],
  sampled: tuple[base.Completions, base.PyTree],
  *,
  task: task_lib.Task,
  num_prompts: int,
) -> tuple[base.Array, base.Array]:
  """Returns the rewards `[P, 1]` and `[P, n]` of these responses."""
  greedy_rewards, sampled_rewards = (
    task.reward_fn(
      completions.responses, completions.lengths, references
    ).reshape(num_prompts, -1)
    for completions, references in (greedy, sampled)
  )
  return greedy_rewards, sampled_rewards


def _sample(
  policy: events.Policy,
  prompts: base.Prompts,
  generate_fn: state.GenerateFn,
  num_samples: int,
) -> tuple[base.Completions, base.PyTree]:
  rows = mesh.split_rows(
    jax.tree.map(lambda leaf: jnp.repeat(leaf, num_samples, axis=0), prompts)
  )
  completions = generate_fn(
    policy.params,
    rng.stream_key(policy.seed, 'evaluate'),
    rows,
    jnp.arange(rows.lengths.shape[0], dtype=jnp.uint32),
  )
  return completions, rows.references


def summarize(greedy: np.ndarray, sampled: np.ndarray) -> dict[str, float]:
  """Returns the scores of one seed.

  Args:
    greedy: `[P, 1]` rewards at temperature 0.
    sampled: `[P, n]` rewards at temperature 1. A sample counts as correct for
      pass@k if its reward is 1.

  Returns:
    'eval/greedy' and 'eval/mean_at_n', mean rewards; 'eval/pass_at_k' for k =
    1, 2, 4, ... up to n.
  """
  num_samples = sampled.shape[1]
  num_correct = np.sum(sampled >= 1.0, axis=1)
  scores = {
    'eval/greedy': float(np.mean(greedy)),
    'eval/mean_at_n': float(np.mean(sampled)),
  }
  k = 1
  while k <= num_samples:
    estimates = pass_at_k.pass_at_k(num_samples, num_correct, k=k)
    scores[f'eval/pass_at_{k}'] = float(np.mean(estimates))
    k *= 2
  return scores
