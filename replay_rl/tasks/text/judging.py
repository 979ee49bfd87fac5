"""Prompts and verdicts of a task in text, which the host judges.

With many processes, each process copies prompts to its own devices, judges its
share of the responses and sends the rewards to the others.
"""

from collections.abc import Callable
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from replay_rl import base
from replay_rl.parallel import mesh as mesh_lib
from replay_rl.parallel import processes
from replay_rl.tasks import task as task_lib


def prompts_and_judge(
  task: task_lib.TextTask | None,
  *,
  num_prompts: int,
  num_fresh: int,
  mesh: jax.sharding.Mesh,
) -> tuple[Callable, Callable]:
  """Returns the functions that draw prompts and judge responses.

  Args:
    task: the task; None if nobody calls the functions.
    num_prompts: P of a generation.
    num_fresh: F, rollouts of a generation.
    mesh: the devices of the run.

  Returns:
    draw: (seeds `[S]`, rollouts generated before `[S]`) -> prompts `[S, P]`.
    judge: (completions `[S, F]`, references `[S, F]`) -> (rewards `[S, F]`,
      metrics `[S]`).
  """

  def draw(seeds: base.Array, num_rollouts: base.Array) -> base.Prompts:
    assert task is not None
    seeds, num_rollouts = jax.device_get((seeds, num_rollouts))
    prompts = [
      task.prompts_fn(int(seed), int(first) // num_fresh, num_prompts)
      for seed, first in zip(seeds, num_rollouts, strict=True)
    ]
    return _place(
      jax.tree.map(lambda *leaves: np.stack(leaves), *prompts),
      mesh,
      num_prompts,
    )

  def judge(
    completions: base.Completions, references: base.Array
  ) -> tuple[np.ndarray, base.Metrics]:
    assert task is not None
    judgement = _judge(task, completions, references)
    return judgement.rewards, measure(judgement, task.statuses)

  return draw, judge


def evaluation(
  task: task_lib.TextTask | None, *, num_prompts: int
) -> tuple[Callable, Callable]:
  """Returns the functions that draw and judge the prompts of an evaluation.

  Args:
    task: the task; None if nobody calls the functions.
    num_prompts: P.

  Returns:
    draw: seeds `[S]` -> prompts `[S, P]`, the same for each seed.
    judge: (greedy, sampled), each (completions, references) -> float32
      `[S, P, 1]` and `[S, P, n]`: 1 for a right answer and 0 for a wrong one.
  """

  def draw(seeds: base.Array) -> base.Prompts:
    assert task is not None and task.eval_prompts_fn is not None
    prompts = task.eval_prompts_fn(num_prompts)
    return jax.tree.map(lambda leaf: np.stack([leaf] * seeds.shape[0]), prompts)

  def judge(*sampled: base.PyTree) -> tuple[base.Array, ...]:
    assert task is not None
    verdicts = (_judge(task, *one).is_correct for one in sampled)
    return tuple(
      jnp.asarray(
        is_correct.reshape(is_correct.shape[0], num_prompts, -1), jnp.float32
      )
      for is_correct in verdicts
    )

  return draw, judge


def _place(
  prompts: base.Prompts, mesh: jax.sharding.Mesh, num_prompts: int
) -> base.Prompts:
  """Returns prompts `[S, P, ...]` as global arrays.

  Each device gets the prompts of its rows, or all prompts if the number of
  devices does not divide P.
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
  """Judges the responses of all seeds together; the fields are `[S, F]`.

  One process judges each response, because a verifier could run out of time on
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
  verdicts = no_verdicts(*completions.lengths.shape)
  with processes.together('the verifier'):
    if len(rows):
      found = verify(
        task,
        responses.reshape(-1, responses.shape[2]),
        *(vector.reshape(-1) for vector in vectors),
      )
      verdicts[:, :, rows] = found.reshape(3, *responses.shape[:2])
  return together(task, verdicts)


def no_verdicts(num_seeds: int, num_rows: int) -> np.ndarray:
  """Returns room for the verdicts `[3, S, F]` of `verify`."""
  return np.zeros((3, num_seeds, num_rows), np.int32)


def verify(task: task_lib.TextTask, *responses: np.ndarray) -> np.ndarray:
  """Returns the verdicts on B responses as numbers, `[3, B]` int32.

  A sum over processes needs int32: the bits of the reward, whether the answer
  is right, and the number of the status.

  Args:
    task: the task.
    *responses: what its `judge_fn` takes.
  """
  judgement = task.judge_fn(*responses)
  numbers = {status: number for number, status in enumerate(task.statuses)}
  return np.array(
    [
      judgement.rewards.view(np.int32),
      judgement.is_correct,
      [numbers[status] for status in judgement.statuses.tolist()],
    ],
    np.int32,
  )


def together(
  task: task_lib.TextTask, verdicts: np.ndarray
) -> task_lib.Judgement:
  """Returns what all processes found, `[S, F]`; all processes must call it.

  Args:
    task: the task.
    verdicts: `[3, S, F]` of this process, 0 where another one judges.
  """
  rewards, is_correct, statuses = processes.total(verdicts)
  return task_lib.Judgement(
    rewards=rewards.view(np.float32),
    is_correct=is_correct.astype(bool),
    statuses=np.array(task.statuses)[statuses],
  )


def _share(
  arrays: Sequence[base.Array],
) -> tuple[np.ndarray, list[np.ndarray]]:
  """Returns the row numbers that this process judges, and these rows.

  A process judges the rows on its devices. If several processes hold a row, the
  one with replica 0 judges it. If all hold all rows, each judges an equal part.

  Args:
    arrays: `[S, F, ...]` each, with the same rows on each device.
  """
  like = arrays[0]
  num_rows = like.shape[1]
  if like.is_fully_replicated or like.is_fully_addressable:
    rows = np.array_split(np.arange(num_rows), jax.process_count())
    own = rows[jax.process_index()]
    return own, [np.asarray(array)[:, own] for array in arrays]
  rows, own_rows = [np.arange(0)], []
  for array in arrays:
    parts = {
      shard.index[1].start: np.asarray(shard.data)
      for shard in array.addressable_shards
      if shard.replica_id == 0
    }
    starts = sorted(parts)
    none = np.zeros((array.shape[0], 0, *array.shape[2:]), array.dtype)
    own_rows.append(
      np.concatenate([none, *(parts[start] for start in starts)], axis=1)
    )
    if array is like:
      rows += [start + np.arange(parts[start].shape[1]) for start in starts]
  return np.concatenate(rows), own_rows


def measure(
  judgement: task_lib.Judgement, statuses: tuple[str, ...]
) -> base.Metrics:
  """Returns the metrics of a judgement, `[S]` each."""
  return {'accuracy': jnp.mean(judgement.is_correct, axis=1)} | {
    f'verifier/{status}': jnp.asarray(
      np.sum(judgement.statuses == status, axis=1)
    )
    for status in statuses
  }
