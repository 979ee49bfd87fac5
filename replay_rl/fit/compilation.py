"""Compiles the programs of a run for devices that need not be there.

Nothing is allocated: arguments are shapes with shardings, and the devices of
the mesh may be descriptions, from `topology`. Bytes are those of one device.
"""

import functools
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from replay_rl import base
from replay_rl.fit import hlo
from replay_rl.fit import hlo_costs
from replay_rl.lm import arguments
from replay_rl.run import build
from replay_rl.run import config as config_lib
from replay_rl.run import generation as generation_lib
from replay_rl.run import maker as maker_lib
from replay_rl.run import programs as programs_lib
from replay_rl.run import schedule
from replay_rl.run import state


class ProgramMemory(NamedTuple):
  """Bytes on each device while one program runs, as XLA counts them.

  arguments, outputs: with the padding of the device's layout.
  aliased: outputs that take the place of donated arguments.
  temporaries: intermediate results.
  alive: the most bytes of these four at one time. For a TPU this is the peak
    that the compiler reports, without what is on the host; it may be less than
    the sum. For a CPU the compiler's peak leaves out temporaries, so this is
    the sum: arguments + outputs - aliased + temporaries.
  code: the program itself.
  rest_of_run: arrays of the run that are not arguments, and stay.
  """

  arguments: int
  outputs: int
  aliased: int
  temporaries: int
  alive: int
  code: int
  rest_of_run: int

  @property
  def peak(self) -> int:
    """Bytes in use while the program runs, at the most."""
    return self.alive + self.code + self.rest_of_run


class Program(NamedTuple):
  """A program as it was compiled.

  name: as in `programs.Programs.jitted`; 'checkpoint' copies the run.
  memory: None if it did not compile.
  flops: of its matrix products on one device, loops included.
  collectives: what the devices exchange; None if XLA could not write the
    program as text.
  error: why it did not compile or could not be read; None if it did and could.
  seconds: time to compile.
  """

  name: str
  memory: ProgramMemory | None
  flops: hlo.Times | None
  collectives: list[hlo_costs.Collective] | None
  error: str | None
  seconds: float


def measure(
  name: str,
  function: Any,
  *arguments: Any,
  mesh: jax.sharding.Mesh,
  size_of_run: int,
) -> Program:
  """Compiles a function and returns what it needs.

  Args:
    name: of the result.
    function: jitted.
    *arguments: pytrees of `jax.ShapeDtypeStruct`s, and static values.
    mesh: current while the function is traced.
    size_of_run: bytes of the run on each device; 0 for a program that makes it.
  """
  with jax.set_mesh(mesh):
    lowered = function.lower(*arguments)
  started = time.perf_counter()
  try:
    compiled = lowered.compile()
  except jax.errors.JaxRuntimeError as error:
    seconds = time.perf_counter() - started
    return Program(name, None, None, None, _first_line(error), seconds)
  seconds = time.perf_counter() - started
  analysis = compiled.memory_analysis()
  assert analysis is not None
  memory = ProgramMemory(
    arguments=analysis.argument_size_in_bytes,
    outputs=analysis.output_size_in_bytes,
    aliased=analysis.alias_size_in_bytes,
    temporaries=analysis.temp_size_in_bytes,
    alive=_alive(analysis, mesh.devices.flat[0].platform),
    code=analysis.generated_code_size_in_bytes,
    rest_of_run=max(0, size_of_run - analysis.argument_size_in_bytes),
  )
  program = Program(name, memory, None, None, None, seconds)
  try:
    module = hlo.parse(compiled.as_text() or '')
  except jax.errors.JaxRuntimeError as error:
    return program._replace(error=_first_line(error))
  return program._replace(
    flops=hlo_costs.flops(module), collectives=hlo_costs.collectives(module)
  )


def programs(
  config: config_lib.Config,
  experiment: build.Experiment,
  mesh: jax.sharding.Mesh,
  sampler_mesh: jax.sharding.Mesh | None = None,
) -> Iterator[Program]:
  """Yields each program of a run, in the order in which a run needs them.

  It ends after 'init' if that does not compile, because there is no run then.
  The cycle is the one with the most updates of the schedule.

  Args:
    config: the run.
    experiment: what was built from it.
    mesh: the devices.
    sampler_mesh: another mesh of them, to generate on; None for `mesh`.
  """
  parts = experiment.parts
  task = None if config.text else build.task(config)
  # Outside of `jax.set_mesh`: no array can be made on described devices.
  jitted = programs_lib.build(
    parts,
    task,
    maker_lib.settings_of(config, mesh=mesh, sampler_mesh=sampler_mesh),
  ).jitted
  params = jax.eval_shape(parts.init_params_fn, jax.random.key(0))
  seeds = jax.ShapeDtypeStruct((config.num_seeds,), np.uint32)
  hyper = jax.eval_shape(lambda: state.of_seeds(parts.hyper, config.num_seeds))
  with jax.set_mesh(mesh):
    run = jitted['init'].eval_shape(params, seeds, hyper)
  if config.model.checkpoint is not None:
    # Weights of a checkpoint are read onto the devices that keep them.
    params = jax.tree.map(_of_one_seed, run.learner.params)
  first = measure(
    'init', jitted['init'], params, seeds, hyper, mesh=mesh, size_of_run=0
  )
  yield first
  if first.memory is None:
    return
  where = {'mesh': mesh, 'size_of_run': first.memory.outputs}
  compile_one = functools.partial(measure, **where)
  events = max(
    map(
      experiment.schedule,
      range(min(config.num_iterations, schedule.MAX_CYCLES)),
    ),
    key=schedule.num_updates,
  )
  if 'cycle' in jitted:
    yield compile_one('cycle', jitted['cycle'], run, events)
  else:
    yield from _events(compile_one, jitted, run, parts, events, **where)
  if config.evaluation.is_on:
    learned = generation_lib.policy(run._replace(sampler=None))
    prompts = _prompts(parts, config.num_seeds, config.evaluation.num_prompts)
    yield compile_one('evaluate', jitted['evaluate'], learned, prompts)
  if config.logging.samples_every:
    yield compile_one('samples', jitted['samples'], run)
  # `checkpoint.save` holds a copy of each array beside the run.
  copy = jax.jit(lambda run: jax.tree.map(jnp.copy, run))
  yield compile_one('checkpoint', copy, run)


def _events(
  compile_one: Callable,
  jitted: Mapping[str, Any],
  run: state.RunState,
  parts: state.Parts,
  events: tuple[schedule.Event, ...],
  *,
  mesh: jax.sharding.Mesh,
  size_of_run: int,
) -> Iterator[Program]:
  """Yields the programs of a cycle whose events are separate programs."""
  num_seeds = run.seed.shape[0]
  policy = generation_lib.policy(run._replace(sampler=None))
  if parts.num_spans:
    numbers = jax.ShapeDtypeStruct((num_seeds, parts.num_spans), np.int32)
    spans = arguments.Spans(numbers, numbers)  # pyright: ignore
    policy = generation_lib.policy(run, spans)
  prompts = _prompts(parts, num_seeds, parts.num_prompts)
  generate = compile_one('generate', jitted['generate'], policy, prompts)
  is_copied = parts.num_publications and not parts.num_spans
  if is_copied and generate.memory is not None:
    # Its weights are a copy of those in the ring, so the whole run stays.
    memory = generate.memory._replace(rest_of_run=size_of_run)
    generate = generate._replace(memory=memory)
  yield generate
  with jax.set_mesh(mesh):
    generation = jitted['generate'].eval_shape(policy, prompts)
    rewards = jax.ShapeDtypeStruct(generation.group_id.shape, jnp.float32)
    _, fresh, _ = jitted['remember'].eval_shape(run, generation, rewards)
  yield compile_one('remember', jitted['remember'], run, generation, rewards)
  for event in events:
    if isinstance(event, schedule.Learn):
      yield compile_one('learn', jitted['learn'], run, fresh, event.num_updates)


def _prompts(
  parts: state.Parts, num_seeds: int, num_prompts: int
) -> base.Prompts:
  """Returns the shapes of the prompts of a task in text, `[S, P]`."""
  return jax.eval_shape(
    lambda: state.empty_prompts(parts.shape, num_seeds, num_prompts)
  )


def _alive(analysis: Any, platform: str) -> int:
  if platform == 'tpu':
    return (
      analysis.peak_memory_in_bytes
      - analysis.host_argument_size_in_bytes
      - analysis.host_output_size_in_bytes
      + analysis.host_alias_size_in_bytes
      - analysis.host_temp_size_in_bytes
    )
  return (
    analysis.argument_size_in_bytes
    + analysis.output_size_in_bytes
    - analysis.alias_size_in_bytes
    + analysis.temp_size_in_bytes
  )


def _of_one_seed(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
  """Returns a weight without its axis of seeds."""
  sharding = leaf.sharding
  assert isinstance(sharding, jax.sharding.NamedSharding)
  return jax.ShapeDtypeStruct(
    leaf.shape[1:],
    leaf.dtype,
    sharding=sharding.update(
      spec=jax.sharding.PartitionSpec(*sharding.spec[1:])
    ),
  )


def _first_line(error: Exception) -> str:
  return str(error).splitlines()[0]
