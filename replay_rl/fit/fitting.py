"""Compares the memory that a run needs with the memory of a chip."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

from replay_rl.fit import compilation
from replay_rl.fit import memory as memory_lib
from replay_rl.fit import topology as topology_lib
from replay_rl.parallel import mesh as mesh_lib
from replay_rl.run import build
from replay_rl.run import config as config_lib

# Program -> programs of `memory_lib.memory`; the largest of them counts.
_PLANNED = {
  'generate': ('sampler',),
  'learn': ('learner',),
  'cycle': ('sampler', 'learner'),
  'evaluate': ('evaluation',),
  'checkpoint': ('checkpoint',),
}


class Check(NamedTuple):
  """A run compiled for a mesh.

  topology: the chips.
  mesh: sizes of the axes.
  sampler_mesh: those of the mesh that generates; None for `mesh`.
  planned: bytes at the peak, by program, that `memory_lib.memory` expects.
  programs: as compiled.
  problems: reasons why the run does not fit, a line each.
  """

  topology: topology_lib.Topology
  mesh: Mapping[str, int]
  sampler_mesh: Mapping[str, int] | None
  planned: Mapping[str, int]
  programs: list[compilation.Program]
  problems: list[str]


def check(
  config: config_lib.Config,
  experiment: build.Experiment,
  topology: topology_lib.Topology,
  mesh_shape: Mapping[str, int],
  sampler_shape: Mapping[str, int] | None,
  *,
  stops_early: bool,
  say: Callable[[str], None],
) -> Check:
  """Compiles all programs of a run.

  Args:
    config: the run.
    experiment: what was built from it.
    topology: the chips.
    mesh_shape: sizes of the axes of `mesh.AXES`.
    sampler_shape: of the mesh that generates; None for the same.
    stops_early: whether to stop after the first program that does not fit.
    say: called with a line for each program, once it is compiled.

  Raises:
    ValueError: a mesh that does not divide the run.
  """
  mesh = mesh_lib.make(mesh_shape, topology.devices, field='mesh')
  shape, sampler_mesh = dict(mesh.shape), None
  if sampler_shape is not None:
    sampler_mesh = mesh_lib.make(
      sampler_shape, mesh.devices.flatten().tolist(), 'mesh.sampler_shape'
    )
  planned = planned_peaks(config, experiment, shape, sampler_shape)
  result = Check(topology, shape, sampler_shape, planned, [], [])
  for program in compilation.programs(config, experiment, mesh, sampler_mesh):
    result.programs.append(program)
    say(
      f'{topology.name} {axes(shape)}: {program.name} took '
      f'{program.seconds:.0f} s'
    )
    result.problems.extend(_problems(program, topology.memory))
    if stops_early and result.problems:
      break
  return result


def planned_peaks(
  config: config_lib.Config,
  experiment: build.Experiment,
  mesh_shape: Mapping[str, int],
  sampler_shape: Mapping[str, int] | None,
) -> dict[str, int]:
  """Returns the bytes that `memory.memory` expects, by name of a program."""
  memory = memory_lib.memory(
    config,
    experiment.parts,
    memory_lib.abstract_mesh(mesh_shape),
    None if sampler_shape is None else memory_lib.abstract_mesh(sampler_shape),
  )
  kept = sum(memory.kept.values())
  terms = {
    name: kept + sum(terms.values()) for name, terms in memory.programs.items()
  }
  return {
    name: max(terms[planned] for planned in names)
    for name, names in _PLANNED.items()
    if all(planned in terms for planned in names)
  }


def smallest(
  config: config_lib.Config,
  experiment: build.Experiment,
  generation: str,
  mesh_shape: Mapping[str, int] | None,
  *,
  memory: float | None,
  say: Callable[[str], None],
) -> Iterator[Check | str]:
  """Yields what was tried, until a slice fits.

  The sampler has the mesh of `mesh.joined`, so that no token collects weights.

  Args:
    config: the run.
    experiment: what was built from it.
    generation: of TPU.
    mesh_shape: the mesh to try, with -1; None for all of `topology.meshes`, in
      the order of their planned bytes.
    memory: bytes of a chip, instead of what its maker says.
    say: see `check`.

  Yields:
    A check, or a line about a mesh that is not compiled: the mesh does not
    divide the run, or the run and its copy, whose size is exact, do not fit.
  """
  for name in topology_lib.slices(generation):
    topology = topology_lib.make(name, memory=memory)
    shapes = [mesh_shape] if mesh_shape else None
    candidates = []
    for shape in shapes or topology_lib.meshes(len(topology.devices)):
      try:
        made = mesh_lib.make(shape, topology.devices, field='mesh')
        shape = dict(made.shape)
        planned = planned_peaks(config, experiment, shape, _to_sample_on(shape))
      except ValueError as error:
        yield f'{name} {axes(shape)}: {error}'
        continue
      if planned['checkpoint'] > topology.memory:
        needed = gigabytes(planned['checkpoint'])
        yield (
          f'{name} {axes(shape)}: the run and its copy for a checkpoint take '
          f'{needed} GB of {gigabytes(topology.memory)}'
        )
        continue
      candidates.append((max(planned.values()), shape))
    for _, shape in sorted(candidates, key=lambda candidate: candidate[0]):
      result = check(
        *(config, experiment, topology, shape, _to_sample_on(shape)),
        stops_early=True,
        say=say,
      )
      yield result
      if not result.problems:
        return


def _to_sample_on(mesh_shape: Mapping[str, int]) -> dict[str, int] | None:
  """Returns the mesh to generate on; None for the same, without `fsdp`."""
  return None if mesh_shape['fsdp'] == 1 else mesh_lib.joined(mesh_shape)


def as_json(result: Check) -> dict[str, Any]:
  """Returns a check as a JSON object of bytes, FLOPs and counts."""
  return {
    'topology': result.topology.name,
    'memory': result.topology.memory,
    'mesh': dict(result.mesh),
    'sampler_mesh': result.sampler_mesh and dict(result.sampler_mesh),
    'num_chips': len(result.topology.devices),
    'fits': not result.problems,
    'problems': result.problems,
    'programs': {
      program.name: {
        'memory': program.memory
        and program.memory._asdict() | {'peak': program.memory.peak},
        'planned': result.planned.get(program.name),
        'peak_over_planned': _ratio(program, result.planned),
        'flops': program.flops and program.flops._asdict(),
        'collectives': program.collectives
        and [
          collective._asdict() | {'times': collective.times._asdict()}
          for collective in program.collectives
        ],
        'error': program.error,
        'seconds': round(program.seconds, 1),
      }
      for program in result.programs
    },
  }


def _ratio(
  program: compilation.Program, planned: Mapping[str, int]
) -> float | None:
  if program.memory is None or program.name not in planned:
    return None
  return program.memory.peak / planned[program.name]


def axes(mesh_shape: Mapping[str, int]) -> str:
  """Returns the sizes of a mesh in words."""
  return ' x '.join(f'{axis} {size}' for axis, size in mesh_shape.items())


def gigabytes(num_bytes: float) -> str:
  """Returns bytes in GB of 10^9 bytes."""
  return f'{num_bytes / 1e9:.3f}'


def _problems(program: compilation.Program, memory: float) -> Iterator[str]:
  if program.memory is None:
    yield f'{program.name} does not compile: {program.error}'
  elif program.memory.peak > memory:
    yield (
      f'{program.name} does not fit: {gigabytes(program.memory.peak)} GB of '
      f'{gigabytes(memory)}'
    )
