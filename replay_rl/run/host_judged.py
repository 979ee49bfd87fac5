"""The iteration and the evaluation of a task that is judged on the host.

The same functions of `iteration` as for a task in JAX, as two programs with the
verifier between them.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from replay_rl import base
from replay_rl.run import evaluate
from replay_rl.run import iteration
from replay_rl.run import sampler_mesh
from replay_rl.tasks import task as task_lib


def iterate_fn(
  parts: iteration.Parts,
  task: task_lib.TextTask,
  *,
  over_seeds: Callable,
  shardings: iteration.RunState,
  act: sampler_mesh.ActFn,
) -> tuple[
  Callable[[iteration.RunState], tuple[iteration.RunState, base.Metrics]],
  Callable,
]:
  """Returns the iteration, of arrays with a leading axis `[S]` of seeds.

  Beside it, the second of the two programs that it calls.

  Args:
    parts: what an iteration is made of.
    task: the task.
    over_seeds: maps a function over seeds, as `seeds.over_seeds`.
    shardings: where the arrays of a run live.
    act: the first of the two programs, as `sampler_mesh.act_fn`.
  """
  remember_and_learn = jax.jit(
    lambda run, generation, rewards: over_seeds(
      functools.partial(iteration.remember_and_learn, parts=parts),
      run,
      generation,
      rewards,
    ),
    donate_argnums=0,
    out_shardings=(shardings, None),
  )

  def iterate(run):
    seeds, iterations = jax.device_get((run.seed, run.iteration))
    prompts = [
      task.prompts_fn(int(seed), int(index), parts.num_prompts)
      for seed, index in zip(seeds, iterations, strict=True)
    ]
    run, generation = act(run, jax.tree.map(_stack, *prompts))
    judgement = _judge(
      task, generation.completions, generation.prompts.references
    )
    run, measured = remember_and_learn(
      run, generation, jnp.asarray(judgement.rewards)
    )
    return run, measured | _measure(judgement, task.statuses)

  return iterate, remember_and_learn


def evaluate_fn(
  parts: iteration.Parts,
  task: task_lib.TextTask,
  *,
  over_seeds: Callable,
  num_prompts: int,
  num_samples: int,
  move_fn: Callable[[Callable], Callable],
) -> tuple[
  Callable[[iteration.RunState], tuple[base.Array, base.Array]], Callable
]:
  """Returns the evaluation: whether each answer is right, 1 or 0.

  Beside it, the program that it calls. The arguments are those of `iterate_fn`,
  P and n, and `move_fn`, which takes a program to the mesh of the sampler; the
  result is greedy `[S, P, 1]` and sampled `[S, P, n]`.
  """

  def of_one_seed(params, seed, prompts):
    def sample(generate_fn, num_samples):
      return evaluate.sample(
        params,
        seed,
        prompts,
        generate_fn=generate_fn,
        num_samples=num_samples,
      )

    return sample(parts.greedy_fn, 1), sample(parts.unbiased_fn, num_samples)

  program = move_fn(
    jax.jit(
      lambda run, prompts: over_seeds(
        lambda params, seed: of_one_seed(params, seed, prompts),
        run.learner.params,
        run.seed,
      )
    )
  )

  def score(run):
    assert task.eval_prompts_fn is not None  # Checked by `build`.
    prompts = jax.tree.map(jnp.asarray, task.eval_prompts_fn(num_prompts))
    greedy, sampled = (
      _judge(task, *found).is_correct.reshape(len(run.seed), num_prompts, -1)
      for found in program(run, prompts)
    )
    return jnp.asarray(greedy, jnp.float32), jnp.asarray(sampled, jnp.float32)

  return score, program


def _judge(
  task: task_lib.TextTask,
  completions: base.Completions,
  references: base.Array,
) -> task_lib.Judgement:
  """Judges the responses of all seeds together; fields are `[S, F]`."""
  responses, *vectors = jax.device_get(
    (
      completions.responses,
      completions.lengths,
      completions.is_finished,
      references,
    )
  )
  shape = responses.shape[:2]
  judgement = task.judge_fn(
    responses.reshape(-1, responses.shape[2]),
    *(vector.reshape(-1) for vector in vectors),
  )
  return task_lib.Judgement(*(field.reshape(shape) for field in judgement))


def _measure(
  judgement: task_lib.Judgement, statuses: tuple[str, ...]
) -> base.Metrics:
  return {'accuracy': jnp.mean(judgement.is_correct, axis=1)} | {
    f'verifier/{status}': jnp.asarray(
      np.sum(judgement.statuses == status, axis=1)
    )
    for status in statuses
  }


def _stack(*leaves: np.ndarray) -> np.ndarray:
  return np.stack(leaves)
