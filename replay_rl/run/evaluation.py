"""Evaluation during a run: greedy reward, and pass@k of samples."""

import jax
import jax.numpy as jnp
import numpy as np

from replay_rl import base
from replay_rl import rng
from replay_rl.parallel import mesh
from replay_rl.run import iteration
from replay_rl.run import pass_at_k
from replay_rl.tasks import task as task_lib


def sample(
  params: base.PyTree,
  seed: base.Array,
  prompts: base.Prompts,
  *,
  generate_fn: iteration.GenerateFn,
  num_samples: int,
) -> tuple[base.Completions, base.PyTree]:
  """Samples responses to evaluation prompts.

  Args:
    params: weights to evaluate.
    seed: `[]` integer, the seed of the run.
    prompts: `[P]` prompts.
    generate_fn: how to sample.
    num_samples: n, samples per prompt.

  Returns:
    Completions `[P * n, ...]`, the samples of a prompt side by side, and the
    reference of each.
  """
  rows = mesh.split_rows(
    jax.tree.map(lambda leaf: jnp.repeat(leaf, num_samples, axis=0), prompts)
  )
  completions = generate_fn(params, rng.stream_key(seed, 'evaluate'), rows)
  return completions, rows.references


def sample_rewards(
  params: base.PyTree,
  seed: base.Array,
  *,
  task: task_lib.Task,
  generate_fn: iteration.GenerateFn,
  num_prompts: int,
  num_samples: int,
) -> base.Array:
  """Returns the rewards of samples to the evaluation prompts of a seed.

  The prompts and the noise are the same at every call, so that two points of a
  learning curve differ by their weights alone.

  Args:
    params: weights to evaluate.
    seed: `[]` integer, the seed of the run.
    task: the task, judged in JAX.
    generate_fn: how to sample.
    num_prompts: P.
    num_samples: n, samples per prompt.

  Returns:
    `[P, n]` float32.
  """
  prompts = task.prompts_fn(
    rng.stream_key(seed, 'evaluation_prompts'), num_prompts
  )
  completions, references = sample(
    params, seed, prompts, generate_fn=generate_fn, num_samples=num_samples
  )
  rewards = task.reward_fn(
    completions.responses, completions.lengths, references
  )
  return rewards.reshape(num_prompts, num_samples)


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
