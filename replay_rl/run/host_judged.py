"""The iteration and the evaluation of a task that is judged on the host.

The same functions of `iteration` as for a task in JAX, as two programs with the
verifier between them. With many processes each one hands its devices the
prompts of their rows, judges its share of the responses, and tells the others
the rewards.
"""

from collections.abc import Callable
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from replay_rl import base
from replay_rl.parallel import mesh as mesh_lib
from replay_rl.parallel import processes
from replay_rl.run import evaluation
from replay_rl.run import iteration
from replay_rl.run import sampler_mesh
from replay_rl.tasks import task as task_lib

# (run, generation, rewards) -> (run, metrics)
FinishFn = Callable[
  [iteration.RunState, iteration.Generation, base.Array | np.ndarray],
  tuple[iteration.RunState, base.Metrics],
]


def iterate_fn(
  parts: iteration.Parts,
  task: task_lib.TextTask,
  *,
  mesh: jax.sharding.Mesh,
  act: sampler_mesh.ActFn,
  finish: FinishFn,
) -> Callable[[iteration.RunState], tuple[iteration.RunState, base.Metrics]]:
  """Returns the iteration, of arrays with a leading axis `[S]` of seeds.

  Args:
    parts: what an iteration is made of.
    task: the task.
    mesh: the devices of the run.
    act: what comes before the judging, as `sampler_mesh.act_fn`.
    finish: what comes after it.
  """

  def iterate(run):
    seeds, iterations = jax.device_get((run.seed, run.iteration))
    prompts = [
      task.prompts_fn(int(seed), int(index), parts.num_prompts)
      for seed, index in zip(seeds, iterations, strict=True)
    ]
    run, generation = act(
      run, _place(jax.tree.map(_stack, *prompts), mesh, parts.num_prompts)
    )
    judgement = _judge(
      task, generation.completions, generation.prompts.references
    )
    run, measured = finish(run, generation, judgement.rewards)
    return run, measured | _measure(judgement, task.statuses)

  return iterate


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

  Beside it, the program that it calls. The result is greedy `[S, P, 1]` and
  sampled `[S, P, n]`.

  Args:
    parts: what an iteration is made of.
    task: the task.
    over_seeds: maps a function over seeds, as `seeds.over_seeds`.
    num_prompts: P.
    num_samples: n.
    move_fn: takes a program to the mesh of the sampler.
  """

  def of_one_seed(params, seed, prompts):
    def sample(generate_fn, num_samples):
      return evaluation.sample(
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
    prompts = task.eval_prompts_fn(num_prompts)
    greedy, sampled = (
      _judge(task, *found).is_correct.reshape(len(run.seed), num_prompts, -1)
      for found in program(run, prompts)
    )
    return jnp.asarray(greedy, jnp.float32), jnp.asarray(sampled, jnp.float32)

  return score, program


def _place(
  prompts: base.Prompts, mesh: jax.sharding.Mesh, num_prompts: int
) -> base.Prompts:
  """Returns prompts `[S, P, ...]` as global arrays.

  A process copies to its devices the prompts of their rows, and no others.
  Where the devices do not divide the prompts, each gets all of them.
  """
  sharding = mesh_lib.whole(mesh)
  if num_prompts % mesh_lib.num_parts(mesh, 'rows') == 0:
    sharding = jax.sharding.NamedSharding(mesh, mesh_lib.spec((None, 'rows')))
  return jax.tree.map(
    lambda leaf: jax.make_array_from_callback(
      leaf.shape, sharding, lambda index: leaf[index]
    ),
    prompts,
  )


def _judge(
  task: task_lib.TextTask,
  completions: base.Completions,
  references: base.Array,
) -> task_lib.Judgement:
  """Judges the responses of all seeds together; fields are `[S, F]`.

  Each response is judged by one process, for a verifier may run out of time on
  one host and not on another.
  """
  rows, (responses, *vectors) = _share(
    (
      completions.responses,
      completions.lengths,
      completions.is_finished,
      references,
    )
  )
  shape = responses.shape[:2]
  # As int32, to be summed over processes: rewards bit by bit, right or not, and
  # the number of the status.
  found = np.zeros((3, shape[0], completions.lengths.shape[1]), np.int32)
  with processes.together('the verifier'):
    if len(rows):
      judgement = task.judge_fn(
        responses.reshape(-1, responses.shape[2]),
        *(vector.reshape(-1) for vector in vectors),
      )
      numbers = {status: number for number, status in enumerate(task.statuses)}
      fields = (
        judgement.rewards.view(np.int32),
        judgement.is_correct,
        [numbers[status] for status in judgement.statuses.tolist()],
      )
      for whole, field in zip(found, fields, strict=True):
        whole[:, rows] = np.reshape(field, shape)
  rewards, is_correct, statuses = processes.total(found)
  return task_lib.Judgement(
    rewards=rewards.view(np.float32),
    is_correct=is_correct.astype(bool),
    statuses=np.array(task.statuses)[statuses],
  )


def _share(
  arrays: Sequence[base.Array],
) -> tuple[np.ndarray, list[np.ndarray]]:
  """Returns which rows of arrays `[S, F, ...]` this process judges, and them.

  Those that its devices hold. Where several processes hold a row, the first
  takes it; where all hold all, each takes an equal part.
  """
  like = arrays[0]
  num_rows = like.shape[1]
  if like.is_fully_replicated or like.is_fully_addressable:
    rows = np.array_split(np.arange(num_rows), jax.process_count())
    own = rows[jax.process_index()]
    return own, [np.asarray(array)[:, own] for array in arrays]
  rows, found = [np.arange(0)], []
  for array in arrays:
    parts = {
      shard.index[1].start: np.asarray(shard.data)
      for shard in array.addressable_shards
      if shard.replica_id == 0
    }
    starts = sorted(parts)
    none = np.zeros((array.shape[0], 0, *array.shape[2:]), array.dtype)
    found.append(
      np.concatenate([none, *(parts[start] for start in starts)], axis=1)
    )
    if array is like:
      rows += [start + np.arange(parts[start].shape[1]) for start in starts]
  return np.concatenate(rows), found


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
