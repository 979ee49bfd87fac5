"""Makes the programs of a run, each over an axis of seeds."""

import functools
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import jax
import numpy as np

from replay_rl import base
from replay_rl.lm import model
from replay_rl.parallel import host_memory
from replay_rl.parallel import mesh as mesh_lib
from replay_rl.parallel import processes
from replay_rl.run import config as config_lib
from replay_rl.run import evaluation
from replay_rl.run import events as events_lib
from replay_rl.run import generation as generation_lib
from replay_rl.run import judged_beside
from replay_rl.run import metrics
from replay_rl.run import placement
from replay_rl.run import state
from replay_rl.run import timing
from replay_rl.tasks import task as task_lib
from replay_rl.tasks.text import judging


class Settings(NamedTuple):
  """How the programs of a run are compiled, and the sizes of an evaluation.

  num_seeds: S.
  vmap_seeds: see `over_seeds`.
  num_eval_prompts, num_eval_samples: P and n of an evaluation.
  num_shown: rollouts of the buffer that `Programs.samples` returns.
  mesh: the devices.
  sampler_mesh: another mesh of these devices, to generate on; None for `mesh`.
  buffer_memory: 'device' or 'pinned_host', see `host_memory.place`.
  time_events: see `config.Logging`.
  """

  num_seeds: int
  vmap_seeds: bool
  num_eval_prompts: int
  num_eval_samples: int
  num_shown: int
  mesh: jax.sharding.Mesh
  sampler_mesh: jax.sharding.Mesh | None
  buffer_memory: str
  time_events: bool


def settings_of(
  config: config_lib.Config,
  *,
  mesh: jax.sharding.Mesh,
  sampler_mesh: jax.sharding.Mesh | None,
) -> Settings:
  """Returns the settings of a config, on these meshes."""
  return Settings(
    num_seeds=config.num_seeds,
    vmap_seeds=config.vmap_seeds,
    num_eval_prompts=config.evaluation.num_prompts,
    num_eval_samples=config.evaluation.num_samples,
    num_shown=config.logging.num_samples,
    mesh=mesh,
    sampler_mesh=sampler_mesh,
    buffer_memory=config.mesh.buffer_memory,
    time_events=config.logging.time_events,
  )


def over_seeds(vmap: bool, function: Callable, *args: base.PyTree) -> Any:
  """Maps a function over a leading axis of seeds, as one program.

  Args:
    vmap: True computes all seeds together, which fills an accelerator. False
      computes one after the other: each seed has the result that it has alone,
      bit for bit, and a CPU is faster.
    function: of the arrays of one seed.
    *args: pytrees of arrays `[S, ...]`.
  """
  num_seeds = jax.tree.leaves(args)[0].shape[0]
  if num_seeds == 1:
    result = function(*jax.tree.map(lambda leaf: leaf[0], args))
    return jax.tree.map(lambda leaf: leaf[None], result)
  if vmap:
    return jax.vmap(function)(*args)
  return jax.lax.map(lambda one: function(*one), args)


class Maker(NamedTuple):
  """Makes the programs of one run, whose arrays live as `shardings` says."""

  parts: state.Parts
  settings: Settings
  shardings: state.RunState

  @property
  def whole(self) -> jax.sharding.NamedSharding:
    """Each device has the whole array, so that each process can read it."""
    return mesh_lib.whole(self.settings.mesh)

  @property
  def rows(self) -> jax.sharding.NamedSharding:
    """The devices split the rows of each seed."""
    return jax.sharding.NamedSharding(
      self.settings.mesh, mesh_lib.spec((None, 'rows'))
    )

  def program(
    self, function: Callable, out_shardings: Any = None, **options: Any
  ) -> Callable:
    """Returns a program of arrays `[S, ...]` and of static arguments.

    Args:
      function: of the arrays of one seed, and of the static arguments.
      out_shardings: None for `whole`.
      **options: `donate_argnums` and `static_argnums` of `jax.jit`; the static
        arguments are the last ones.
    """
    num_static = len(options.get('static_argnums', ()))

    def mapped(*args):
      arrays = args[: len(args) - num_static]
      static = args[len(arrays) :]
      return over_seeds(
        self.settings.vmap_seeds, lambda *one: function(*one, *static), *arrays
      )

    # The name that a profile and the compiler show.
    mapped.__name__ = getattr(function, 'func', function).__name__
    return processes.aligned(
      jax.jit(mapped, out_shardings=out_shardings or self.whole, **options),
      options.get('static_argnums', ()),
    )

  def init(self) -> Callable:
    """Returns the program that makes a run."""

    def init(params, seeds, hyper):
      run = jax.vmap(
        lambda seed, hyper: state.init(self.parts, params, seed, hyper)
      )(seeds, hyper)
      rollouts = jax.tree.map(
        host_memory.init_in_place,
        run.buffer.rollouts,
        self.shardings.buffer.rollouts,
      )
      return run._replace(buffer=run.buffer._replace(rollouts=rollouts))

    return processes.aligned(jax.jit(init, out_shardings=self.shardings))

  def cycle(self, task: task_lib.Task) -> Callable:
    """Returns a whole cycle as one program."""
    return self.program(
      functools.partial(
        events_lib.cycle, actions=events_lib.in_jax(self.parts, task)
      ),
      (self.shardings, self.whole),
      donate_argnums=0,
      static_argnums=(1,),
    )

  def actions(
    self,
    task: task_lib.Task | task_lib.TextTask | None,
    timed: Callable[[str, Callable], Callable],
    watch: judged_beside.Watch,
  ) -> tuple[events_lib.Actions, dict[str, Callable]]:
    """Returns the actions of a cycle, and the programs that they call.

    `timed` takes the name of an event and its function, and may time it;
    `watch` says whether to stop within a generation in pieces.
    """
    parts, whole, rows = self.parts, self.whole, self.rows
    generate = self._on_sampler_mesh(
      functools.partial(generation_lib.generate, parts=parts),
      out_shardings=rows,
      num_leading_axes=1 if parts.num_spans else 0,
    )
    fresh = base.Batch(rows, rows, rows, rows, rows, num_eligible=whole)  # pyright: ignore
    remember = self.program(
      functools.partial(events_lib.remember, parts=parts),
      (self.shardings, fresh, whole),
      donate_argnums=0,
    )
    learn = self.program(
      lambda run, fresh, num_updates: events_lib.learn(
        run, fresh, parts, num_updates=num_updates
      ),
      (self.shardings, whole),
      donate_argnums=0,
      static_argnums=(2,),
    )
    publish = events_lib.publish
    if parts.num_publications:
      publish = self.program(publish, self.shardings, donate_argnums=0)
    observe = self.program(
      functools.partial(metrics.of_buffer, num_bins=parts.histogram_bins)
    )
    of_run = self._policy()
    draw, judge = self._draw_and_judge(task)

    def read(run, event):
      return of_run(run, generation_lib.spans_of(event, parts)), draw(run)

    judge = timed(timing.JUDGE, judge)
    if not isinstance(task, task_lib.Task):
      judge = timed(timing.WAIT, judge)  # The devices wait for the host.
    sample = timed(
      timing.GENERATE, lambda run, event: generate(*read(run, event))
    )

    def generate_and_judge(run, event):
      generation = sample(run, event)
      return generation, *judge(generation)

    if parts.judges_beside:
      assert not isinstance(task, task_lib.Task)
      generate_and_judge = judged_beside.action(
        *(read, self._pieces(), task),
        num_rows=parts.num_fresh,
        timed=timed,
        watch=watch,
      )
    return (
      events_lib.Actions(
        generate_and_judge,
        timed(timing.REMEMBER, remember),
        timed(timing.LEARN, learn),
        timed(timing.PUBLISH, publish),
        # Without the rows, which may be on the host.
        lambda run: observe(run.buffer._replace(rollouts=None)),
      ),
      {'generate': generate, 'remember': remember, 'learn': learn},
    )

  def _pieces(self) -> judged_beside.PiecePrograms:
    """Returns the programs of a generation in pieces."""
    parts, settings = self.parts, self.settings
    one_set, growing = judged_beside.places(
      parts, settings.sampler_mesh or settings.mesh
    )

    def program(function, out_shardings, num_leading_axes=0, **options):
      return self._on_sampler_mesh(
        functools.partial(function, parts=parts),
        out_shardings=out_shardings,
        num_leading_axes=num_leading_axes,
        **options,
      )

    return judged_beside.PiecePrograms(
      one_set=program(
        generation_lib.one_set, one_set, 1 if parts.num_spans else 0
      ),
      begin=program(generation_lib.begin, growing),
      advance=program(
        generation_lib.advance, (growing, self.whole), donate_argnums=2
      ),
      harvested_before=program(generation_lib.harvested_before, self.whole),
      complete=program(generation_lib.complete, self.rows),
    )

  def _draw_and_judge(
    self, task: task_lib.Task | task_lib.TextTask | None
  ) -> tuple[Callable, Callable]:
    """Returns run -> prompts, and generation -> (rewards, metrics)."""
    parts = self.parts
    if isinstance(task, task_lib.Task):
      prompts = self.program(
        functools.partial(generation_lib.draw_prompts, parts=parts, task=task)
      )
      judge = self.program(functools.partial(generation_lib.judge, task=task))
      return (
        lambda run: prompts(
          run._replace(
            sampler=None,
            reference_params=None,
            learner=None,
            buffer=run.buffer._replace(rollouts=None),
          )
        ),
        judge,
      )
    draw, judge = judging.prompts_and_judge(
      task,
      num_prompts=parts.num_prompts,
      num_fresh=parts.num_fresh,
      mesh=self.settings.mesh,
    )
    return (
      lambda run: draw(run.seed, run.clock.num_rollouts),
      lambda generation: judge(
        generation.completions, generation.prompts.references
      ),
    )

  def evaluate(
    self, task: task_lib.Task | task_lib.TextTask | None
  ) -> tuple[Callable, Callable]:
    """Returns the evaluation, and the program that samples for it."""
    num_prompts = self.settings.num_eval_prompts
    sample = self._on_sampler_mesh(
      functools.partial(
        evaluation.samples_of_seed,
        parts=self.parts,
        num_samples=self.settings.num_eval_samples,
      ),
      out_shardings=self.whole,
      num_leading_axes=0,
    )
    if isinstance(task, task_lib.Task):
      draw, judge = (
        self.program(
          functools.partial(function, task=task, num_prompts=num_prompts)
        )
        for function in (evaluation.prompts_of_seed, evaluation.rewards_of_seed)
      )
    else:
      draw, judge = judging.evaluation(task, num_prompts=num_prompts)

    def evaluate(run):
      # Evaluates the learner's weights, also if the sampler has older ones.
      learned = generation_lib.policy(run._replace(sampler=None))
      return judge(*sample(learned, draw(run.seed)))

    return evaluate, sample

  def _policy(self) -> Callable:
    """Returns (run, spans `[K]` or None) -> the policy that generates."""
    if self.parts.num_spans:
      return lambda run, spans: generation_lib.policy(
        run,
        jax.tree.map(
          lambda one: np.stack([one] * self.settings.num_seeds), spans
        ),
      )
    if not self.parts.num_publications:
      # This needs no program, because it indexes no array.
      return lambda run, spans: generation_lib.policy(run)
    # Published weights are split as the learner's.
    places = generation_lib.policy(self.shardings._replace(sampler=None))
    oldest = self.program(generation_lib.policy, places)
    return lambda run, spans: oldest(run)

  def _on_sampler_mesh(
    self,
    function: Callable,
    *,
    out_shardings: Any,
    num_leading_axes: int,
    **options: Any,
  ) -> Callable:
    """Returns a program of a policy and more, on the mesh of the sampler.

    A learner splits its weights over `fsdp` to save memory. A sampler reads all
    weights for every token, so it splits them over `tensor` or not at all. If
    the sampler has its own mesh, the program first rounds the weights and moves
    them there, once for all tokens.

    Args:
      function: of the policy of one seed; or also of its prompts; or also of
        what is on the mesh of the sampler.
      out_shardings: of its results, on the mesh of the run.
      num_leading_axes: of the weights of one seed, see `placement.of_params`.
      **options: see `program`.
    """
    mesh = self.settings.sampler_mesh
    if mesh is None:
      return self.program(function, out_shardings, **options)
    transformer = self.parts.transformer
    weights = placement.of_params(
      model.logical_axes(transformer), mesh, num_leading_axes=num_leading_axes
    )
    whole = mesh_lib.whole(mesh)

    @functools.wraps(getattr(function, 'func', function))
    def there(policy, *more):
      prompts, others = more[:1], more[1:]
      with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        places = jax.tree.map(lambda _: whole, policy)._replace(params=weights)
        params = model.rounded(transformer, policy.params)
        policy, prompts = jax.lax.with_sharding_constraint(
          (policy._replace(params=params), prompts),
          (places, jax.tree.map(lambda _: whole, prompts)),
        )
        return function(policy, *prompts, *others)

    return self.program(there, out_shardings, **options)
