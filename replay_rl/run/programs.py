"""The compiled programs of a run, each over an axis of seeds."""

import functools
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import jax
import numpy as np

from replay_rl import base
from replay_rl.lm import architecture
from replay_rl.lm import model
from replay_rl.parallel import mesh as mesh_lib
from replay_rl.parallel import processes
from replay_rl.replay import storage
from replay_rl.run import evaluation
from replay_rl.run import host_judged
from replay_rl.run import iteration
from replay_rl.run import ledger
from replay_rl.run import logs
from replay_rl.run import placement
from replay_rl.run import sampler_mesh as sampler_mesh_lib
from replay_rl.run import samples as samples_lib
from replay_rl.run import seeds as seeds_lib
from replay_rl.tasks import task as task_lib


class Programs(NamedTuple):
  """What a run executes; every array has a leading axis `[S]` of seeds.

  init: (params without that axis, seeds) -> run.
  iterate: run -> (run, metrics); the run is donated.
  evaluate: run -> rewards, greedy `[S, P, 1]` and sampled `[S, P, n]`; of a
    task in text, 1 for a right answer and 0 for a wrong one.
  samples: run -> rollouts of its buffer to look at.
  jitted: the functions that these four call and that JAX compiles, by name:
    'init', 'samples', 'evaluate' and 'iterate', or in place of that 'act',
    'remember' and 'learn' of an iteration in steps. They can be lowered alone,
    but where there is a mesh of the sampler.
  """

  init: Callable[[base.PyTree, base.Array], iteration.RunState]
  iterate: Callable[
    [iteration.RunState], tuple[iteration.RunState, base.Metrics]
  ]
  evaluate: Callable[[iteration.RunState], tuple[base.Array, base.Array]]
  samples: Callable[[iteration.RunState], samples_lib.Samples]
  jitted: Mapping[str, Any]


def build(
  parts: iteration.Parts,
  *,
  num_seeds: int,
  vmap_seeds: bool,
  num_eval_prompts: int,
  num_eval_samples: int,
  num_shown: int,
  mesh: jax.sharding.Mesh,
  buffer_memory: str,
  sampler_mesh: jax.sharding.Mesh | None = None,
) -> Programs:
  """Returns the programs of a run; they compile at their first call.

  An iteration is one program if the task is in JAX and everything is in one
  place. Otherwise it goes in steps, with a verifier between them, or moving
  weights; and a buffer on the host is written by another program than reads it,
  since the TPU compiler would move all of it to the device in between.

  Args:
    parts: what an iteration is made of.
    num_seeds: S.
    vmap_seeds: see `seeds.over_seeds`.
    num_eval_prompts: P, prompts of an evaluation.
    num_eval_samples: n, samples per prompt.
    num_shown: rollouts of the buffer to look at.
    mesh: the devices.
    buffer_memory: 'device' or 'pinned_host', see `storage.place`.
    sampler_mesh: another mesh of them, to generate on; None for the same.
  """

  params = jax.eval_shape(parts.init_params_fn, jax.random.key(0))
  shapes = jax.eval_shape(
    functools.partial(_init, parts),
    params,
    jax.ShapeDtypeStruct((num_seeds,), np.uint32),
  )
  shardings = placement.of_run(
    shapes,
    model.logical_axes(parts.transformer),
    parts.optimizer,
    mesh,
    buffer_memory=buffer_memory,
  )
  # What a host reads is whole on every device: each process has it all.
  whole = mesh_lib.whole(mesh)
  over_seeds = functools.partial(seeds_lib.over_seeds, vmap_seeds)
  act = sampler_mesh_lib.act_fn(
    parts,
    over_seeds=over_seeds,
    shardings=shardings,
    mesh=mesh,
    sampler_mesh=sampler_mesh,
  )
  if sampler_mesh is None:
    act = processes.aligned(act)

  def move(program):
    if sampler_mesh is None:
      return processes.aligned(jax.jit(program, out_shardings=whole))
    return sampler_mesh_lib.moved(
      program, parts, mesh=sampler_mesh, out_shardings=whole
    )

  finish, steps = _finish_fn(
    parts, over_seeds=over_seeds, shardings=shardings, mesh=mesh
  )
  jitted = {'act': act} | steps
  if isinstance(parts.task, task_lib.TextTask):
    iterate = host_judged.iterate_fn(
      parts, parts.task, mesh=mesh, act=act, finish=finish
    )
    score, jitted['evaluate'] = host_judged.evaluate_fn(
      parts,
      parts.task,
      over_seeds=over_seeds,
      num_prompts=num_eval_prompts,
      num_samples=num_eval_samples,
      move_fn=move,
    )
  else:
    if sampler_mesh is None and buffer_memory == 'device':
      iterate = processes.aligned(
        jax.jit(
          functools.partial(
            over_seeds, functools.partial(iteration.iterate, parts=parts)
          ),
          donate_argnums=0,
          out_shardings=(shardings, whole),
        )
      )
      jitted = {'iterate': iterate}
    else:
      iterate = _iterate_in_steps(parts, over_seeds, act=act, finish=finish)
    score = jitted['evaluate'] = move(
      _evaluate_fn(
        parts,
        parts.task,
        over_seeds=over_seeds,
        num_prompts=num_eval_prompts,
        num_samples=num_eval_samples,
      )
    )
  jitted['init'] = processes.aligned(
    jax.jit(
      functools.partial(_init_in_place, parts, shardings),
      out_shardings=shardings,
    )
  )
  read = functools.partial(samples_lib.read, num_samples=num_shown)
  jitted['samples'] = processes.aligned(
    jax.jit(functools.partial(over_seeds, read), out_shardings=whole)
  )
  return Programs(
    init=jitted['init'],
    iterate=iterate,
    evaluate=score,
    samples=jitted['samples'],
    jitted=jitted,
  )


def _init(
  parts: iteration.Parts, params: base.PyTree, seeds: base.Array
) -> iteration.RunState:
  return jax.vmap(lambda seed: iteration.init(parts, params, seed))(seeds)


def _init_in_place(
  parts: iteration.Parts,
  shardings: iteration.RunState,
  params: base.PyTree,
  seeds: base.Array,
) -> iteration.RunState:
  run = _init(parts, params, seeds)
  rollouts = jax.tree.map(
    storage.init_in_place, run.buffer.rollouts, shardings.buffer.rollouts
  )
  return run._replace(buffer=run.buffer._replace(rollouts=rollouts))


def _finish_fn(
  parts: iteration.Parts,
  *,
  over_seeds: Callable,
  shardings: iteration.RunState,
  mesh: jax.sharding.Mesh,
) -> tuple[host_judged.FinishFn, dict[str, Callable]]:
  """Returns what follows the judging, and the two programs that it calls."""
  whole = mesh_lib.whole(mesh)
  rows = jax.sharding.NamedSharding(mesh, mesh_lib.spec((None, 'rows')))
  remember, learn = (
    processes.aligned(
      jax.jit(
        lambda *args, step=step: over_seeds(
          functools.partial(step, parts=parts), *args
        ),
        donate_argnums=0,
        out_shardings=out_shardings,
      )
    )
    for step, out_shardings in (
      (iteration.remember, (shardings, rows, whole)),
      (iteration.learn, (shardings, whole)),
    )
  )

  def finish(run, generation, rewards):
    run, fresh, remembered = remember(run, generation, rewards)
    run, learned = learn(run, fresh)
    return run, remembered | learned

  return finish, {'remember': remember, 'learn': learn}


def _iterate_in_steps(
  parts: iteration.Parts,
  over_seeds: Callable,
  *,
  act: sampler_mesh_lib.ActFn,
  finish: host_judged.FinishFn,
) -> Callable[[iteration.RunState], tuple[iteration.RunState, base.Metrics]]:
  """Returns the iteration of a task in JAX, program by program."""
  draw_prompts, judge = (
    processes.aligned(
      jax.jit(
        lambda arrays, step=step: over_seeds(
          functools.partial(step, parts=parts), arrays
        )
      )
    )
    for step in (iteration.draw_prompts, iteration.judge)
  )

  def iterate(run):
    run, generation = act(run, draw_prompts(run))
    return finish(run, generation, judge(generation))

  return iterate


def _evaluate_fn(
  parts: iteration.Parts,
  task: task_lib.Task,
  *,
  over_seeds: Callable,
  num_prompts: int,
  num_samples: int,
) -> Callable[[iteration.RunState], tuple[base.Array, base.Array]]:
  def of_one_seed(params, seed):
    def rewards(generate_fn, num_samples):
      return evaluation.sample_rewards(
        params,
        seed,
        task=task,
        generate_fn=generate_fn,
        num_prompts=num_prompts,
        num_samples=num_samples,
      )

    return rewards(parts.greedy_fn, 1), rewards(parts.unbiased_fn, num_samples)

  return jax.jit(
    lambda run: over_seeds(of_one_seed, run.learner.params, run.seed)
  )


def lines(
  run: iteration.RunState,
  measured: base.Metrics,
  transformer: architecture.TransformerConfig,
  mu: float,
) -> list[dict[str, Any]]:
  """Returns the metrics of the iteration just done, one line per seed."""
  run_ledger, host, seeds, steps, iterations = jax.device_get(
    (run.ledger, measured, run.seed, run.learner.step, run.iteration)
  )
  found = []
  for index, seed in enumerate(seeds.tolist()):
    one = ledger.Ledger(*(counter[index] for counter in run_ledger))
    prices = ledger.prices(one, transformer, mu)
    found.append(
      {
        'iteration': int(iterations[index]) - 1,
        'seed': seed,
        'learner_step': int(steps[index]),
      }
      | {
        name: logs.plain(np.asarray(values[index]))
        for name, values in host.items()
      }
      | {f'ledger/{name}': value for name, value in prices.items()}
      | {'replay_ratio': prices['trained_rollouts'] / prices['rollouts']}
    )
  return found


def scores(
  programs: Programs, run: iteration.RunState
) -> list[dict[str, float]]:
  """Evaluates each seed."""
  greedy, sampled = jax.device_get(programs.evaluate(run))
  return [
    evaluation.summarize(*pair) for pair in zip(greedy, sampled, strict=True)
  ]
