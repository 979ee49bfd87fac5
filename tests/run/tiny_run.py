"""Parts, programs and tasks of the tiny run."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from replay_rl import base
from replay_rl.parallel import mesh as mesh_lib
from replay_rl.run import build
from replay_rl.run import maker as maker_lib
from replay_rl.run import metrics
from replay_rl.run import programs
from replay_rl.run import state
from replay_rl.tasks import task as task_lib
from tests import tiny

STATUSES = ('correct', 'wrong')
ONE_DEVICE = {'data': 1, 'fsdp': 1, 'tensor': 1}


def experiment(functions=None, **changes) -> build.Experiment:
  """Returns what the tiny config says, `functions` in place of its own."""
  config = tiny.config(**changes)
  return build.experiment(config, build.planned_shape(config), functions)


@functools.cache
def parts() -> state.Parts:
  """Returns the parts of the run without changes."""
  return experiment().parts


def task() -> task_lib.Task:
  """Returns addition, where a low first token is right: half of the time."""

  def first_token_is_low(responses, lengths, references):
    del lengths, references
    return (responses[:, 0] < 16).astype(jnp.float32)

  return dataclasses.replace(
    build.task(tiny.config()), reward_fn=first_token_is_low
  )


def with_functions(parts: state.Parts, **changes) -> state.Parts:
  """Returns the parts with some of their bound functions replaced."""

  def bind(hyper):
    return parts.bind(hyper)._replace(**changes)

  return parts._replace(bind=bind)


def started(parts: state.Parts, seed: int) -> state.RunState:
  """Returns a run of one seed that has done nothing, with random weights."""
  return jax.jit(
    lambda: state.init(
      parts,
      parts.init_params_fn(jax.random.key(1)),
      jnp.uint32(seed),
      state.as_arrays(parts.hyper),
    )
  )()


def numbers(measured) -> dict[str, np.ndarray]:
  """Returns the values that a cycle reports, of events and of updates."""
  host = jax.device_get(measured)
  return host.values | metrics.as_numbers(host.updates)


def settings(num_seeds=1, mesh=None, **changes) -> maker_lib.Settings:
  """Returns how to make programs, on one device unless a mesh is given."""
  return maker_lib.Settings(
    num_seeds=num_seeds,
    vmap_seeds=False,
    num_eval_prompts=4,
    num_eval_samples=2,
    num_shown=4,
    mesh=mesh or mesh_lib.make(ONE_DEVICE),
    sampler_mesh=None,
    buffer_memory='device',
    time_events=False,
  )._replace(**changes)


def first_run(
  built: programs.Programs, parts: state.Parts, seeds: list[int]
) -> state.RunState:
  """Returns a run of some seeds, as `train` makes it, with random weights."""
  return built.init(
    parts.init_params_fn(jax.random.key(1)),
    jnp.array(seeds, jnp.uint32),
    state.of_seeds(parts.hyper, len(seeds)),
  )


def text_task(calls: list | None = None) -> task_lib.TextTask:
  """Returns a task that NumPy judges by the first token of a response.

  Args:
    calls: gets the arguments of each call of the judge.
  """
  like = build.task(tiny.config())
  assert isinstance(like, task_lib.Task)

  def prompts(seed, iteration, num_prompts):
    rng = np.random.default_rng([seed, iteration])
    tokens = rng.integers(10, size=(num_prompts, like.shape.prompt_length))
    rows = (100 * iteration + np.arange(num_prompts)).astype(np.int32)
    return base.Prompts(
      tokens=tokens.astype(np.int32),
      lengths=np.full(num_prompts, like.shape.prompt_length, np.int32),
      prompt_id=rows.astype(np.uint32),
      references=rows,
    )

  def judge(responses, lengths, is_finished, references):
    if calls is not None:
      calls.append((responses, lengths, is_finished, references))
    is_correct = responses[:, 0] % 2 == references % 2
    return task_lib.Judgement(
      rewards=np.where(is_correct, 1.0, -0.5).astype(np.float32),
      is_correct=is_correct,
      statuses=np.where(is_correct, *STATUSES),
    )

  return task_lib.TextTask(
    shape=like.shape,
    prompts_fn=prompts,
    eval_prompts_fn=functools.partial(prompts, 99, 0),
    judge_fn=judge,
    reference_fn=lambda row: f'answer {row}',
    decode_fn=like.decode_fn,
    statuses=STATUSES,
    sources={},
    users=(),
    notes=(),
    close_fn=lambda: None,
  )
