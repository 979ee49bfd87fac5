"""The compiled programs of a run, each over an axis of seeds."""

from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import jax
import numpy as np

from replay_rl import base
from replay_rl.lm import architecture
from replay_rl.lm import model
from replay_rl.run import evaluate
from replay_rl.run import iteration
from replay_rl.run import ledger
from replay_rl.run import placement


class Programs(NamedTuple):
  """What a run executes; every array has a leading axis `[S]` of seeds.

  init: (params without that axis, seeds) -> run.
  iterate: run -> (run, metrics); the run is donated.
  evaluate: run -> rewards, greedy `[S, P, 1]` and sampled `[S, P, n]`.
  """

  init: Callable[[base.PyTree, base.Array], iteration.RunState]
  iterate: Callable[
    [iteration.RunState], tuple[iteration.RunState, base.Metrics]
  ]
  evaluate: Callable[[iteration.RunState], tuple[base.Array, base.Array]]


def build(
  parts: iteration.Parts,
  *,
  num_seeds: int,
  vmap_seeds: bool,
  num_eval_prompts: int,
  num_eval_samples: int,
  mesh: jax.sharding.Mesh,
) -> Programs:
  """Returns the programs of a run; they compile at their first call.

  Args:
    parts: what an iteration is made of.
    num_seeds: S.
    vmap_seeds: see `over_seeds`.
    num_eval_prompts: P, prompts of an evaluation.
    num_eval_samples: n, samples per prompt.
    mesh: the devices.
  """

  def init(params, seeds):
    return jax.vmap(lambda seed: iteration.init(parts, params, seed))(seeds)

  def iterate(run):
    return over_seeds(
      lambda one: iteration.iterate(one, parts), vmap_seeds, run
    )

  def score(run):
    def one_seed(params, seed):
      def sample(generate_fn, num_samples):
        return evaluate.sample_rewards(
          params,
          seed,
          task=parts.task,
          generate_fn=generate_fn,
          num_prompts=num_eval_prompts,
          num_samples=num_samples,
        )

      return (
        sample(parts.greedy_fn, 1),
        sample(parts.unbiased_fn, num_eval_samples),
      )

    return over_seeds(one_seed, vmap_seeds, run.learner.params, run.seed)

  params = jax.eval_shape(parts.init_params_fn, jax.random.key(0))
  seeds = jax.ShapeDtypeStruct((num_seeds,), np.uint32)
  shardings = placement.of_run(
    jax.eval_shape(init, params, seeds),
    model.logical_axes(parts.transformer),
    parts.optimizer,
    mesh,
  )
  return Programs(
    init=jax.jit(init, out_shardings=shardings),
    iterate=jax.jit(iterate, donate_argnums=0, out_shardings=(shardings, None)),
    evaluate=jax.jit(score),
  )


def over_seeds(function: Callable, vmap: bool, *args: base.PyTree) -> Any:
  """Maps a function over a leading axis of seeds, as one program.

  Args:
    function: of the arrays of one seed.
    vmap: whether all seeds go through each operation together, which fills an
      accelerator. Otherwise they go one after the other: each then gives what
      it gives alone, bit for bit, and a CPU is faster.
    *args: pytrees of arrays `[S, ...]`.
  """
  num_seeds = jax.tree.leaves(args)[0].shape[0]
  if num_seeds == 1:
    result = function(*jax.tree.map(lambda leaf: leaf[0], args))
    return jax.tree.map(lambda leaf: leaf[None], result)
  if vmap:
    return jax.vmap(function)(*args)
  return jax.lax.map(lambda one: function(*one), args)


def lines(
  run: iteration.RunState,
  measured: base.Metrics,
  transformer: architecture.TransformerConfig,
  mu: float,
) -> list[dict[str, Any]]:
  """Returns the metrics of the iteration just done, one line per seed."""
  run_ledger, host, seeds, steps = jax.device_get(
    (run.ledger, measured, run.seed, run.learner.step)
  )
  found = []
  for index, seed in enumerate(seeds.tolist()):
    one = ledger.Ledger(*(counter[index] for counter in run_ledger))
    prices = ledger.prices(one, transformer, mu)
    found.append(
      {
        'iteration': int(run.iteration[index]) - 1,
        'seed': seed,
        'learner_step': int(steps[index]),
      }
      | {
        name: _plain(np.asarray(values[index])) for name, values in host.items()
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
    evaluate.summarize(*pair) for pair in zip(greedy, sampled, strict=True)
  ]


def _plain(value: np.ndarray) -> Any:
  if value.ndim or not np.issubdtype(value.dtype, np.floating):
    return value.tolist()
  return float(str(value))  # The shortest text that reads as this float32.
