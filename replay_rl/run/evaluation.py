"""Evaluation during a run: rewards of greedy responses, and pass@k."""

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax

from replay_rl import base
from replay_rl import rng
from replay_rl.parallel import mesh
from replay_rl.run import config as config_lib
from replay_rl.run import generation as generation_lib
from replay_rl.run import state
from replay_rl.tasks import task as task_lib

_NUM_TOKENS = 16  # Of the text that `is_finite` scores.


def prompts_of_seed(
  seed: base.Array, *, task: task_lib.Task, num_prompts: int
) -> base.Prompts:
  """Returns the evaluation prompts of a seed, `[P]`, always the same."""
  return task.prompts_fn(
    rng.stream_key(seed, 'evaluation_prompts'), num_prompts
  )


def samples_of_seed(
  policy: generation_lib.Policy,
  prompts: base.Prompts,
  *,
  parts: state.Parts,
  num_samples: int,
) -> tuple[tuple[base.Completions, base.PyTree], ...]:
  """Samples responses to evaluation prompts.

  The random keys are the same at every call, so two points of a learning curve
  differ only by their weights.

  Args:
    policy: the weights to evaluate.
    prompts: `[P]`.
    parts: the functions of the run.
    num_samples: n, samples per prompt at the settings of the evaluation.

  Returns:
    (completions, references) of greedy responses, `[P]`, and of samples,
    `[P * n]` with the samples of a prompt side by side.
  """
  return (
    _sample(policy, prompts, parts.greedy_fn, 1),
    _sample(policy, prompts, parts.bind(policy.hyper).evaluate_fn, num_samples),
  )


def rewards_of_seed(
  greedy: tuple[base.Completions, base.PyTree],
  sampled: tuple[base.Completions, base.PyTree],
  *,
  task: task_lib.Task,
  num_prompts: int,
) -> tuple[base.Array, base.Array]:
  """Returns `[P, 1]` and `[P, n]` for `samples_of_seed`, without shaping."""
  greedy_rewards, sampled_rewards = (
    task.reward_fn(
      completions.responses, completions.lengths, references
    ).reshape(num_prompts, -1)
    for completions, references in (greedy, sampled)
  )
  return greedy_rewards, sampled_rewards


def is_finite(
  learner: base.LearnerState,
  hyper: state.Hyper,
  *,
  parts: state.Parts,
  num_rows: int,
) -> base.Array:
  """Returns whether a learner can go on, `[]` bool.

  Its weights, their norm and the numbers of its optimizer must be finite, and
  so must the log-probs of a text. Large weights alone do not show in these,
  because RMSNorm divides by an infinite norm.

  Args:
    learner: the learner.
    hyper: the numbers of the run.
    parts: the functions of the run.
    num_rows: copies of the text, so that each device of a mesh has a row.
  """
  num_tokens = min(_NUM_TOKENS, parts.shape.num_tokens)
  text = jnp.arange(num_tokens, dtype=jnp.int32) % parts.shape.vocab_size
  logprobs, _ = parts.bind(hyper).update.logprobs_fn(
    learner.params, mesh.split_rows(jnp.tile(text, (num_rows, 1)))
  )
  return jnp.all(
    jnp.stack(
      [
        jnp.all(jnp.isfinite(leaf))
        for leaf in (
          *jax.tree.leaves(learner),
          optax.tree.norm(learner.params),
          logprobs,
        )
        if jnp.issubdtype(leaf.dtype, jnp.inexact)
      ]
    )
  )


def _sample(
  policy: generation_lib.Policy,
  prompts: base.Prompts,
  generate_fn: state.GenerateFn,
  num_samples: int,
) -> tuple[base.Completions, base.PyTree]:
  num_rows = prompts.lengths.shape[0] * num_samples
  rollout_id, references = mesh.split_rows(
    (
      jnp.arange(num_rows, dtype=jnp.uint32),
      jax.tree.map(
        lambda leaf: jnp.repeat(leaf, num_samples, axis=0), prompts.references
      ),
    )
  )
  completions = generate_fn(
    policy.params,
    rng.stream_key(policy.seed, 'evaluate'),
    prompts,
    rollout_id,
  )
  return completions, references


def summarize(
  greedy: np.ndarray, sampled: np.ndarray, settings: config_lib.Evaluation
) -> dict[str, float]:
  """Returns the scores of one seed.

  Args:
    greedy: `[P, 1]` rewards at temperature 0.
    sampled: `[P, n]` rewards of samples. One counts as correct for pass@k if
      its reward is 1.
    settings: how they were sampled, which the scores say beside them.

  Returns:
    'eval/greedy' and 'eval/mean_at_n', mean rewards; 'eval/pass_at_k' for k =
    1, 2, 4, ... up to n; 'eval/temperature' and 'eval/top_p' of all but the
    greedy one, where a top_p of 1 draws from all tokens.
  """
  num_samples = sampled.shape[1]
  num_correct = np.sum(sampled >= 1.0, axis=1)
  scores = {
    'eval/greedy': float(np.mean(greedy)),
    'eval/mean_at_n': float(np.mean(sampled)),
  }
  k = 1
  while k <= num_samples:
    estimates = pass_at_k(num_samples, num_correct, k=k)
    scores[f'eval/pass_at_{k}'] = float(np.mean(estimates))
    k *= 2
  return scores | {
    'eval/temperature': float(settings.temperature),
    'eval/top_p': 1.0 if settings.top_p is None else float(settings.top_p),
  }


def pass_at_k(
  num_samples: npt.ArrayLike, num_correct: npt.ArrayLike, *, k: int
) -> np.ndarray:
  """Returns 1 - C(n - c, k) / C(n, k), unbiased for the pass@k of each prompt.

  Chen et al., Evaluating Large Language Models Trained on Code,
  https://arxiv.org/abs/2107.03374, equation 1: the probability that k of the n
  samples, drawn without replacement, contain a correct one.

  Args:
    num_samples: int, n of each prompt; any shape that broadcasts.
    num_correct: int, c of each prompt.
    k: between 1 and the smallest n.

  Returns:
    float64, of the broadcast shape.

  Raises:
    ValueError: a count is no integer, or not 1 <= k <= n, or not 0 <= c <= n.
  """
  samples, correct = np.broadcast_arrays(num_samples, num_correct)
  for name, counts in (('num_samples', samples), ('num_correct', correct)):
    if not np.issubdtype(counts.dtype, np.integer):
      raise ValueError(f'{name} = {counts.tolist()}: must be integers')
  if k < 1 or np.any(k > samples):
    raise ValueError(
      f'k = {k}: must be between 1 and num_samples = {samples.tolist()}'
    )
  if np.any(correct < 0) or np.any(correct > samples):
    raise ValueError(
      f'num_correct = {correct.tolist()}: must be between 0 and '
      f'num_samples = {samples.tolist()}'
    )
  # A product of k factors in [0, 1] does not overflow, as C(n, k) would.
  drawn = np.arange(k)
  num_wrong_left = np.maximum((samples - correct)[..., None] - drawn, 0)
  return 1.0 - np.prod(num_wrong_left / (samples[..., None] - drawn), axis=-1)
