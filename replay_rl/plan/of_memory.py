"""Says what a run needs of its devices.

    python -m replay_rl.plan memory --config=configs/gsm8k_qwen3_0_6b.py \\
        --device=h200

It prints the memory on each device, by what the memory holds, lower bounds of
the time of an iteration, and how much an iteration generates and learns from.
It allocates nothing and reads neither weights nor data: any machine will do.
The exit status is 1 if the run does not fit, and 2 if a flag is wrong.
"""

import dataclasses
import json
import sys
from collections.abc import Mapping
from typing import Any

import jax
import rich.box
import rich.console
import rich.table
from absl import flags
from absl import logging as absl_logging
from ml_collections import config_flags

from replay_rl import overrides
from replay_rl.fit import advice
from replay_rl.fit import bounds
from replay_rl.fit import chips
from replay_rl.fit import fitting
from replay_rl.fit import memory as memory_lib
from replay_rl.lm import architecture
from replay_rl.parallel import mesh as mesh_lib
from replay_rl.run import build
from replay_rl.run import config as config_lib
from replay_rl.run import placement
from replay_rl.run import schedule

# Of a device's memory; the runtime and fragments take the rest.
USABLE = 0.9

# Its own flags, so that other programs can be imported beside this one.
FLAGS = flags.FlagValues()
_CONFIG = config_flags.DEFINE_config_file(
  'config',
  None,
  'File of configs/, with --config.field=value to override.',
  flag_values=FLAGS,
)
_DEVICE = flags.DEFINE_string(
  'device', None, f'One of {", ".join(chips.DEVICES)}.', flag_values=FLAGS
)
_MESH = flags.DEFINE(
  overrides.DictParser(),
  'mesh',
  None,
  'As JSON, such as {"data": 1, "fsdp": 8, "tensor": 1}; else the config\'s.',
  flag_values=FLAGS,
)
_JSON = flags.DEFINE_bool(
  'json', False, 'Print one JSON object instead.', flag_values=FLAGS
)


@dataclasses.dataclass(frozen=True)
class Plan:
  """What a run needs.

  Attributes:
    device: name of the device.
    mesh: sizes of the axes.
    sampler_mesh: those of the mesh that generates; None for `mesh`.
    num_params: of the model.
    limit: bytes of a device that can be used.
    memory: bytes on each device.
    times: seconds per iteration, lower bounds.
    replay: what an iteration generates and learns from.
    total_if_joined: bytes on each device at the peak if generation had the mesh
      of `mesh.joined`; None if no token collects weights.
  """

  device: str
  mesh: Mapping[str, int]
  sampler_mesh: Mapping[str, int] | None
  num_params: int
  limit: float
  memory: memory_lib.Memory
  times: bounds.LowerBounds
  replay: bounds.ReplayCounts
  total_if_joined: int | None

  @property
  def fits(self) -> bool:
    """Whether the run fits."""
    return self.memory.total <= self.limit


def plan(
  config: config_lib.Config, *, device: str, mesh: Mapping[str, int]
) -> Plan:
  """Returns what a run needs; see the fields of `Plan`.

  Args:
    config: the run.
    device: a key of `chips.DEVICES`.
    mesh: sizes of the axes of `mesh.AXES`.

  Raises:
    ValueError: a setting that is not allowed, or a mesh that does not divide
      the run.
  """
  chip = chips.named(device)
  abstract_mesh = memory_lib.abstract_mesh(mesh)
  experiment = build.experiment(config, build.planned_shape(config))
  parts = experiment.parts
  updates_per_iteration = schedule.mean_updates(
    experiment.schedule, min(config.num_iterations, schedule.MAX_CYCLES)
  )
  sampler_shape = placement.sampler_shape(config, mesh)
  sampler_mesh = (
    None if sampler_shape is None else memory_lib.abstract_mesh(sampler_shape)
  )
  memory = memory_lib.memory(config, parts, abstract_mesh, sampler_mesh)
  generates = sampler_mesh or abstract_mesh
  total_if_joined = None
  if generates.shape['fsdp'] > 1:
    joined = memory_lib.abstract_mesh(mesh_lib.joined(mesh))
    total_if_joined = memory_lib.memory(
      config, parts, abstract_mesh, joined
    ).total
  seeds_at_once = config.num_seeds if config.vmap_seeds else 1
  return Plan(
    device=device,
    mesh=dict(mesh),
    sampler_mesh=sampler_shape,
    num_params=architecture.num_params(parts.transformer),
    limit=USABLE * chip.memory,
    memory=memory,
    times=bounds.times(
      config,
      parts,
      generates,
      chip,
      updates_per_iteration=updates_per_iteration,
      cache_bytes=memory.programs['sampler']['KV cache'] // seeds_at_once,
    ),
    replay=bounds.replay(
      parts,
      updates_per_iteration=updates_per_iteration,
      mu=config.mu,
    ),
    total_if_joined=total_if_joined,
  )


def as_json(needs: Plan) -> dict[str, Any]:
  """Returns a plan as a JSON object: bytes, seconds and counts."""
  return {
    'device': needs.device,
    'mesh': needs.mesh,
    'sampler_mesh': needs.sampler_mesh,
    'total_if_joined': needs.total_if_joined,
    'num_params': needs.num_params,
    'fits': needs.fits,
    'limit': needs.limit,
    'total': needs.memory.total,
    'largest_program': needs.memory.largest_program,
    'largest_term': needs.memory.largest_term,
    'kept': needs.memory.kept,
    'on_host': needs.memory.on_host,
    'programs': needs.memory.programs,
    'checkpoint': needs.memory.checkpoint,
    'lower_bounds': needs.times._asdict(),
    'replay': needs.replay._asdict(),
  }


def table(needs: Plan) -> rich.table.Table:
  """Returns the memory of a plan, a line for each term."""
  memory, largest = needs.memory, needs.memory.largest_program
  mesh = fitting.axes(needs.mesh)
  if needs.sampler_mesh is not None:
    mesh += f', generation on {fitting.axes(needs.sampler_mesh)}'
  grid = rich.table.Table(
    title=f'GB on each {needs.device} of a mesh {mesh}; '
    f'{needs.num_params / 1e9:.3f} G parameters',
    box=rich.box.SIMPLE_HEAD,
  )
  grid.add_column('when')
  grid.add_column('what')
  grid.add_column('GB', justify='right')
  for name, size in memory.kept.items():
    grid.add_row('always', name, _gigabytes(size))
  for program, terms in memory.programs.items():
    grid.add_section()
    for name, size in terms.items():
      grid.add_row(f'+ {program}', name, _gigabytes(size))
  grid.add_section()
  grid.add_row('peak', f'always + {largest}', _gigabytes(memory.total))
  grid.add_row('device', f'{USABLE:.0%} of its memory', _gigabytes(needs.limit))
  if memory.on_host:
    grid.add_row('host', 'replay buffer', _gigabytes(memory.on_host))
  return grid


def sentences(needs: Plan) -> list[str]:
  """Returns the rest of a plan, a line each."""
  times, replay = needs.times, needs.replay
  lines = [
    f'Checkpoint on disk: {_gigabytes(needs.memory.checkpoint)} GB, before '
    'compression.',
    'Lower bounds of an iteration with responses of full length: prefill '
    f'{times.prefill:.3g} s, decode {times.decode:.3g} s, learner '
    f'{times.learner:.3g} s.',
    f'An iteration: {replay.fresh_rollouts} fresh rollouts, at most '
    f'{replay.generated_tokens} generated tokens; {_count(replay.updates)} '
    f'updates on {_count(replay.trained_rollouts)} rows, at most '
    f'{_count(replay.trained_tokens)} trained tokens.',
    f'Replay ratio {replay.replay_ratio:.3g}; {replay.cost_units:.5g} cost '
    f'units; the buffer holds {replay.buffer_iterations:.3g} iterations.',
  ]
  if needs.total_if_joined is not None:
    joined = json.dumps(mesh_lib.joined(needs.mesh))
    fits = needs.total_if_joined <= needs.limit
    lines.append(
      'The sampler collects the weights that fsdp splits for every token. With '
      f'mesh.sampler_shape = {joined} it would collect them once a generation, '
      f'and the peak would be {_gigabytes(needs.total_if_joined)} GB'
      + ('.' if fits else ', too much: mesh.shape needs more tensor.')
    )
  term = needs.memory.largest_term
  if needs.fits:
    return [*lines, 'It fits.']
  return [
    *lines,
    f'It does not fit: {_gigabytes(needs.memory.total)} GB of '
    f'{_gigabytes(needs.limit)}. The largest term is {term!r}. What helps: '
    f'{advice.ADVICE[term]}.',
  ]


def main(argv: list[str]) -> None:
  """Prints the plan that the flags ask for."""
  if len(argv) > 1:
    print(f'error: arguments = {argv[1:]}: must be flags', file=sys.stderr)
    sys.exit(2)
  absl_logging.set_verbosity(absl_logging.WARNING)
  jax.config.update('jax_platforms', 'cpu')  # Leaves an accelerator alone.
  try:
    if _CONFIG.value is None or _DEVICE.value is None:
      name = '--config' if _CONFIG.value is None else '--device'
      raise ValueError(f'{name} = None: must be given')
    config = _CONFIG.value
    needs = plan(
      config,
      device=_DEVICE.value,
      mesh=_MESH.value or config.mesh.shape,
    )
  except ValueError as error:
    print(f'error: {error}', file=sys.stderr)
    sys.exit(2)
  if _JSON.value:
    print(json.dumps(as_json(needs)))
  else:
    console = rich.console.Console()
    console.print(table(needs))
    for line in sentences(needs):
      console.print(line, highlight=False, markup=False)
  if not needs.fits:
    sys.exit(1)


def _count(number: float) -> str:
  """Returns a number, without a point if it is whole."""
  return f'{number:.0f}' if number == int(number) else f'{number}'


def _gigabytes(num_bytes: float) -> str:
  return f'{num_bytes / 1e9:.2f}'
