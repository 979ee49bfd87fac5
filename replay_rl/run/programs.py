"""The compiled programs of a run, each over an axis of seeds."""

import functools
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import jax

from replay_rl import base
from replay_rl.lm import model
from replay_rl.parallel import mesh as mesh_lib
from replay_rl.parallel import processes
from replay_rl.replay import storage
from replay_rl.run import config as config_lib
from replay_rl.run import evaluation
from replay_rl.run import events as events_lib
from replay_rl.run import placement
from replay_rl.run import samples as samples_lib
from replay_rl.run import schedule
from replay_rl.run import state
from replay_rl.tasks import task as task_lib
from replay_rl.tasks.text import judging

Events = tuple[schedule.Event, ...]


class Settings(NamedTuple):
  """How programs are made, beside what a run is made of.

  num_seeds: S.
  vmap_seeds: all seeds at once, which fills an accelerator; else in turn, which
    gives what each seed gives alone, bit for bit, and is faster on a CPU.
  num_eval_prompts, num_eval_samples: P and n of an evaluation.
  num_shown: rollouts of the buffer to look at.
  mesh: the devices.
  sampler_mesh: another mesh of these devices, to generate on; None for the
    same.
  buffer_memory: 'device' or 'pinned_host', see `storage.place`.
  """

  num_seeds: int
  vmap_seeds: bool
  num_eval_prompts: int
  num_eval_samples: int
  num_shown: int
  mesh: jax.sharding.Mesh
  sampler_mesh: jax.sharding.Mesh | None
  buffer_memory: str


def settings_of(
  config: config_lib.Config,
  *,
  mesh: jax.sharding.Mesh,
  sampler_mesh: jax.sharding.Mesh | None,
) -> Settings:
  """Returns the settings that a config gives."""
  return Settings(
    num_seeds=config.num_seeds,
    vmap_seeds=config.vmap_seeds,
    num_eval_prompts=config.evaluation.num_prompts,
    num_eval_samples=config.evaluation.num_samples,
    num_shown=config.logging.num_samples,
    mesh=mesh,
    sampler_mesh=sampler_mesh,
    buffer_memory=config.mesh.buffer_memory,
  )


class Programs(NamedTuple):
  """What a run executes; every array has a leading axis `[S]` of seeds.

  init: (params without that axis, seeds, hyper) -> run.
  cycle: (run, events) -> (run, what it measured); the run is donated.
  evaluate: run -> rewards, greedy `[S, P, 1]` and sampled `[S, P, n]`; of a
    task in text, 1 for a right answer and 0 for a wrong one.
  samples: run -> rollouts of its buffer to look at.
  jitted: the functions that these four call and that JAX compiles, by name:
    'init', 'samples', 'evaluate', and 'cycle' or in its place 'generate',
    'remember' and 'learn'. On the mesh of the run they can be lowered alone.
  """

  init: Callable[[base.PyTree, base.Array, state.Hyper], state.RunState]
  cycle: Callable[
    [state.RunState, Events], tuple[state.RunState, events_lib.Measured]
  ]
  evaluate: Callable[[state.RunState], tuple[base.Array, base.Array]]
  samples: Callable[[state.RunState], samples_lib.Shown]
  jitted: Mapping[str, Any]


def build(
  parts: state.Parts,
  task: task_lib.Task | task_lib.TextTask | None,
  settings: Settings,
) -> Programs:
  """Returns the programs of a run; they compile at their first call.

  A cycle is one program if the task is in JAX and everything is in one place.
  Otherwise its events are programs of their own, with a verifier or a transfer
  of weights between them. A buffer on the host is read by another program than
  the one that writes it, because the TPU compiler would move all of it to the
  device in between.

  Args:
    parts: what the run is made of.
    task: the task; None for a task in text whose programs are only compiled.
    settings: how to make the programs.
  """
  shardings = _shardings(parts, settings)
  make = _Maker(parts, settings, shardings)
  jitted = {'init': make.init(), 'samples': make.samples()}
  evaluate, jitted['evaluate'] = make.evaluate(task)
  is_whole = settings.sampler_mesh is None and (
    settings.buffer_memory == 'device'
  )
  if is_whole and isinstance(task, task_lib.Task):
    cycle = jitted['cycle'] = make.cycle(task)
  else:
    actions, separate = make.actions(task)
    jitted |= separate
    cycle = functools.partial(events_lib.cycle, actions=actions)
  return Programs(
    init=jitted['init'],
    cycle=cycle,
    evaluate=evaluate,
    samples=jitted['samples'],
    jitted=jitted,
  )


def over_seeds(vmap: bool, function: Callable, *args: base.PyTree) -> Any:
  """Maps a function over a leading axis of seeds, as one program.

  Args:
    vmap: whether all seeds go through each operation together. Otherwise they
      go one after the other, and each gives what it gives alone, bit for bit.
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


class _Maker(NamedTuple):
  """Makes the programs of one run.

  parts, settings: as of `build`.
  shardings: where the arrays of the run live.
  """

  parts: state.Parts
  settings: Settings
  shardings: state.RunState

  @property
  def whole(self) -> jax.sharding.NamedSharding:
    """What a host reads is whole on every device: each process has it all."""
    return mesh_lib.whole(self.settings.mesh)

  @property
  def rows(self) -> jax.sharding.NamedSharding:
    """Of arrays `[S, F, ...]`."""
    return jax.sharding.NamedSharding(
      self.settings.mesh, mesh_lib.spec((None, 'rows'))
    )

  def over_seeds(self, function: Callable, *args: base.PyTree) -> Any:
    """Maps a function over the seeds as the settings say."""
    return over_seeds(self.settings.vmap_seeds, function, *args)

  def init(self) -> Callable:
    """Returns the program that makes a run."""

    def init(params, seeds, hyper):
      run = jax.vmap(
        lambda seed, hyper: state.init(self.parts, params, seed, hyper)
      )(seeds, hyper)
      rollouts = jax.tree.map(
        storage.init_in_place,
        run.buffer.rollouts,
        self.shardings.buffer.rollouts,
      )
      return run._replace(buffer=run.buffer._replace(rollouts=rollouts))

    return processes.aligned(jax.jit(init, out_shardings=self.shardings))

  def samples(self) -> Callable:
    """Returns the program that reads rollouts of the buffer."""
    read = functools.partial(
      samples_lib.read, num_samples=self.settings.num_shown
    )
    return processes.aligned(
      jax.jit(
        functools.partial(self.over_seeds, read), out_shardings=self.whole
      )
    )

  def cycle(self, task: task_lib.Task) -> Callable:
    """Returns a whole cycle as one program."""
    actions = events_lib.in_jax(self.parts, task)

    def cycle(run, events):
      return self.over_seeds(
        lambda run: events_lib.cycle(run, events, actions), run
      )

    return processes.aligned(
      jax.jit(
        cycle,
        static_argnums=1,
        donate_argnums=0,
        out_shardings=(self.shardings, self.whole),
      ),
      static_argnums=(1,),
    )

  def actions(
    self, task: task_lib.Task | task_lib.TextTask | None
  ) -> tuple[events_lib.Actions, dict[str, Callable]]:
    """Returns the events of a cycle, and the programs that they call."""
    parts = self.parts
    generate = self._on_sampler_mesh(
      functools.partial(events_lib.generate, parts=parts),
      out_shardings=self.rows,
    )
    rows, whole = self.rows, self.whole
    fresh = base.Batch(rows, rows, rows, rows, rows, num_eligible=whole)  # pyright: ignore
    remember = self._changing(
      functools.partial(events_lib.remember, parts=parts),
      (self.shardings, fresh, whole),
    )

    def learn(run, fresh, num_updates):
      return self.over_seeds(
        functools.partial(
          events_lib.learn, parts=parts, num_updates=num_updates
        ),
        run,
        fresh,
      )

    learn = processes.aligned(
      jax.jit(
        learn,
        static_argnums=2,
        donate_argnums=0,
        out_shardings=(self.shardings, self.whole),
      ),
      static_argnums=(2,),
    )
    publish = events_lib.publish
    if parts.num_publications:
      publish = self._changing(publish, self.shardings)
    read_policy = self._policy()
    if isinstance(task, task_lib.Task):
      draw_in_jax = self._reading(
        functools.partial(events_lib.draw_prompts, parts=parts, task=task)
      )
      judge_in_jax = self._reading(
        functools.partial(events_lib.judge, task=task)
      )
    else:
      draw_text, judge_text = judging.prompts_and_judge(
        task,
        num_prompts=parts.num_prompts,
        num_fresh=parts.num_fresh,
        mesh=self.settings.mesh,
      )

    def generate_and_judge(run):
      policy = read_policy(run)
      if isinstance(task, task_lib.Task):
        generation = generate(policy, draw_in_jax(run.seed, run.clock))
        return generation, judge_in_jax(generation), {}
      prompts = draw_text(run.seed, run.clock.num_rollouts)
      generation = generate(policy, prompts)
      judged = judge_text(generation.completions, generation.prompts.references)
      return generation, *judged

    return (
      events_lib.Actions(generate_and_judge, remember, learn, publish),
      {'generate': generate, 'remember': remember, 'learn': learn},
    )

  def evaluate(
    self, task: task_lib.Task | task_lib.TextTask | None
  ) -> tuple[Callable, Callable]:
    """Returns the evaluation, and the program that samples for it."""
    num_prompts = self.settings.num_eval_prompts
    num_samples = self.settings.num_eval_samples
    sample = self._on_sampler_mesh(
      functools.partial(
        evaluation.samples_of_seed, parts=self.parts, num_samples=num_samples
      ),
      out_shardings=self.whole,
    )
    if isinstance(task, task_lib.Task):
      draw = self._reading(
        functools.partial(
          evaluation.prompts_of_seed, task=task, num_prompts=num_prompts
        )
      )
      judge = self._reading(
        functools.partial(
          evaluation.rewards_of_seed, task=task, num_prompts=num_prompts
        )
      )
    else:
      draw, judge = judging.evaluation(task, num_prompts=num_prompts)

    def evaluate(run):
      # The learner's own weights, whatever the sampler generates with.
      learned = events_lib.policy(run._replace(sampler=None))
      return judge(*sample(learned, draw(run.seed)))

    return evaluate, sample

  def _changing(self, function: Callable, out_shardings: Any) -> Callable:
    """Returns a program that takes the place of the run it is given."""
    return processes.aligned(
      jax.jit(
        functools.partial(self.over_seeds, function),
        donate_argnums=0,
        out_shardings=out_shardings,
      )
    )

  def _reading(self, function: Callable, out_shardings: Any = None) -> Callable:
    """Returns a program that changes nothing; its results are whole."""
    return processes.aligned(
      jax.jit(
        functools.partial(self.over_seeds, function),
        out_shardings=out_shardings or self.whole,
      )
    )

  def _policy(self) -> Callable:
    if not self.parts.num_publications:
      return events_lib.policy  # Reads the arrays as they are, with their axis.
    # The weights are split as the learner's own, of a run without a ring.
    places = events_lib.policy(self.shardings._replace(sampler=None))
    return self._reading(events_lib.policy, places)

  def _on_sampler_mesh(
    self, function: Callable, *, out_shardings: Any
  ) -> Callable:
    """Returns a program of a policy and prompts, computed where one generates.

    A learner wants its weights spread thin, over `fsdp`. A sampler reads all of
    them for every token, and so wants them near, over `tensor` or whole. On a
    mesh of its own the weights go there before, and the result comes back.
    """
    mesh = self.settings.sampler_mesh
    if mesh is None:
      return self._reading(function, out_shardings)
    program = jax.jit(functools.partial(self.over_seeds, function))
    whole = mesh_lib.whole(mesh)
    weights = placement.of_params(
      model.logical_axes(self.parts.transformer), mesh, num_leading_axes=1
    )

    def call(policy, prompts):
      places = jax.tree.map(lambda _: whole, policy)._replace(params=weights)
      policy = jax.device_put(policy, places)
      prompts = jax.device_put(prompts, whole)
      with jax.set_mesh(mesh):
        result = program(policy, prompts)
      return jax.device_put(result, out_shardings)

    return call


def _shardings(parts: state.Parts, settings: Settings) -> state.RunState:
  run = state.shapes_of_run(parts, settings.num_seeds)
  return placement.of_run(
    run,
    model.logical_axes(parts.transformer),
    parts.bind(parts.hyper).update.optimizer,
    settings.mesh,
    buffer_memory=settings.buffer_memory,
  )
