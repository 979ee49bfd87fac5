"""Compiles a run for chips that are elsewhere, and says whether it fits.

    python -m replay_rl.compile_check --config=configs/math_qwen2_5_7b.py \\
        --topology=v5e:4x4

With `--smallest=v5e` instead, it searches for the smallest slice of a
generation that the run fits, and chooses the meshes: that of the sampler does
not split weights over fsdp, whatever `mesh.sampler_shape` says.

It prints, for each program, the bytes on each chip, the FLOPs and what the
chips exchange, as XLA's compiler for that chip lays the program out, and beside
them what `replay_rl.plan memory` expects. It needs no chip, no checkpoint and
no data set; for TPUs it needs the extra [tpu]. The exit status is 1 if a
program does not compile or does not fit, and 2 if a flag is wrong.
"""

import contextlib
import functools
import importlib.metadata
import json
import math
import pathlib
import re
import sys
from collections.abc import Iterator

import jax
import rich.box
import rich.console
import rich.table
from absl import app
from absl import flags
from absl import logging as absl_logging
from ml_collections import config_flags

from replay_rl import command_line
from replay_rl import overrides
from replay_rl.fit import compilation
from replay_rl.fit import fitting
from replay_rl.fit import hlo
from replay_rl.fit import hlo_costs
from replay_rl.fit import topology as topology_lib
from replay_rl.parallel import mesh as mesh_lib
from replay_rl.run import build
from replay_rl.run import placement

_WIDTH = 150  # Columns of the tables, the same in a terminal and in a file.
_LARGEST = 5  # Collectives of a program that are named.
# The start of the path of every operation, and what loops add to the path.
_PATH = re.compile(r'jit\([^/]*\)/|\b(while|body|closed_call)/')

_FLAGS = flags.FlagValues()
_CONFIG = config_flags.DEFINE_config_file(
  'config',
  None,
  'File of configs/, with --config.field=value to override.',
  flag_values=_FLAGS,
)
_TOPOLOGY = flags.DEFINE_string(
  'topology', None, f'{topology_lib.known()}.', flag_values=_FLAGS
)
_SMALLEST = flags.DEFINE_string(
  'smallest',
  None,
  'Instead of --topology: a generation, whose slices are tried upwards.',
  flag_values=_FLAGS,
)
_MESH = flags.DEFINE(
  overrides.DictParser(),
  'mesh',
  None,
  'As JSON, such as {"data": 1, "fsdp": -1, "tensor": 1}; else the config\'s, '
  'or, for --smallest, every split of the weights over all chips.',
  flag_values=_FLAGS,
)
_MEMORY = flags.DEFINE_float(
  'memory',
  None,
  'GB (10^9 bytes) of a chip, instead of what its maker says.',
  flag_values=_FLAGS,
)
_JSON = flags.DEFINE_string(
  'json', None, 'File to write the same to, as JSON.', flag_values=_FLAGS
)


def show(check: fitting.Check, console: rich.console.Console) -> None:
  """Prints the tables of a check and its verdict."""
  topology = check.topology
  used, there = math.prod(check.mesh.values()), len(topology.devices)
  console.print(
    f'{topology.name}, mesh {fitting.axes(check.mesh)}'
    + ('' if used == there else f': {used} of {there} chips are used')
  )
  if check.sampler_mesh is not None:
    console.print(f'generation on {fitting.axes(check.sampler_mesh)}')
  console.print(_memory_table(check))
  console.print(_collectives_table(check))
  for program in check.programs:
    if program.memory is not None and program.error is not None:
      _say(console, f'{program.name} cannot be read: {program.error}')
  for problem in check.problems or ['it fits.']:
    _say(console, f'{topology.name} {fitting.axes(check.mesh)}: {problem}')


def _memory_table(check: fitting.Check) -> rich.table.Table:
  available = check.topology.memory
  grid = rich.table.Table(
    title=f'GB on each chip, which has {fitting.gigabytes(available)}',
    box=rich.box.SIMPLE_HEAD,
    caption='alive: the most bytes at one time of the four before. peak: '
    'alive + code + rest of run. TFLOP: matrix products on each chip.',
  )
  grid.add_column('program', no_wrap=True)
  names = (*compilation.ProgramMemory._fields, 'peak')
  for name in names:
    grid.add_column(name.replace('_', ' '), justify='right')
  for name in ('of chip', 'planned', 'peak / planned', 'TFLOP'):
    grid.add_column(name, justify='right')
  for program in check.programs:
    memory, planned = program.memory, check.planned.get(program.name)
    row = ['-'] * (len(names) + 3)
    if memory is not None:
      row = [fitting.gigabytes(getattr(memory, name)) for name in names]
      row.append(f'{memory.peak / available:.0%}')
      row.append(fitting.gigabytes(planned) if planned else '-')
      row.append(f'{memory.peak / planned:.2f}' if planned else '-')
    elif planned:
      row[-2] = fitting.gigabytes(planned)
    row.append(_times(program.flops, 1e12) if program.flops else '-')
    grid.add_row(program.name, *row)
  return grid


def _collectives_table(check: fitting.Check) -> rich.table.Table:
  grid = rich.table.Table(
    title='Collectives on each chip, all of a kind and the largest ones',
    box=rich.box.SIMPLE_HEAD,
    caption='executed: with loops; "at most" where a loop may end early, '
    '"per pass" where the passes of a loop are unknown. total: executed x MB.',
  )
  grid.add_column('program', no_wrap=True)
  grid.add_column('kind', no_wrap=True)
  for name in ('number', 'executed', 'MB', 'total MB'):
    grid.add_column(name, justify='right')
  grid.add_column('shape, and where it comes from', overflow='fold')
  for program in check.programs:
    if program.collectives is None:
      continue  # The verdict says why.
    grid.add_section()
    for kind in hlo_costs.COLLECTIVES:
      of_kind = [c for c in program.collectives if c.kind == kind]
      if of_kind:
        total = hlo.total(c.times for c in of_kind)
        num_bytes = hlo.total(
          c.times._replace(number=c.num_bytes * c.times.number) for c in of_kind
        )
        grid.add_row(
          program.name,
          f'all {kind}',
          str(len(of_kind)),
          _times(total, 1),
          '',
          _times(num_bytes, 1e6),
          '',
        )
    for collective in sorted(
      program.collectives, key=lambda c: c.num_bytes, reverse=True
    )[:_LARGEST]:
      grid.add_row(
        '',
        collective.kind,
        '',
        _times(collective.times, 1),
        f'{collective.num_bytes / 1e6:.3f}',
        f'{collective.num_bytes * collective.times.number / 1e6:.3f}',
        f'{collective.shape} {_PATH.sub("", collective.source)}'.strip(),
      )
    if not program.collectives:
      grid.add_row(program.name, 'none', '', '', '', '', '')
  return grid


def main(argv: list[str]) -> None:
  """Prints the check that the flags ask for."""
  if len(argv) > 1:
    print(f'error: arguments = {argv[1:]}: must be flags', file=sys.stderr)
    sys.exit(2)
  absl_logging.set_verbosity(absl_logging.WARNING)
  jax.config.update('jax_platforms', 'cpu')  # Leaves an accelerator alone.
  console = rich.console.Console(width=_WIDTH, highlight=False, markup=False)
  _say(console, ', '.join(' '.join(pair) for pair in _versions().items()))
  checks, skipped = [], []
  try:
    for result in _results():
      if isinstance(result, str):
        skipped.append(result)
        _say(console, result)
      else:
        checks.append(result)
        show(result, console)
  except ValueError as error:
    print(f'error: {error}', file=sys.stderr)
    sys.exit(2)
  fits = bool(checks) and not checks[-1].problems
  if _SMALLEST.value is not None:
    _say(
      console,
      f'The smallest slice is {checks[-1].topology.name}.'
      if fits
      else f'It fits no slice of {_SMALLEST.value} that is known.',
    )
  if _JSON.value is not None:
    written = {
      'versions': _versions(),
      'checks': [fitting.as_json(one) for one in checks],
      'skipped': skipped,
    }
    pathlib.Path(_JSON.value).write_text(json.dumps(written, indent=1) + '\n')
  if not fits:
    sys.exit(1)


def _results() -> Iterator[fitting.Check | str]:
  """Yields the checks, and a line for each mesh that is not compiled."""
  if _CONFIG.value is None:
    raise ValueError('--config = None: must be given')
  generation = _SMALLEST.value
  if (_TOPOLOGY.value is None) == (generation is None):
    raise ValueError(
      f'--topology = {_TOPOLOGY.value!r}, --smallest = {generation!r}: must be '
      'one of the two, not both'
    )
  config = _CONFIG.value
  memory = None if _MEMORY.value is None else 1e9 * _MEMORY.value
  mesh_shape = _MESH.value
  if memory is not None and not memory > 0:
    raise ValueError(f'memory = {_MEMORY.value}: must be in (0, inf)')
  topology = None
  if _TOPOLOGY.value is not None:
    # Before any other use of JAX, which fixes the number of CPU devices.
    topology = topology_lib.make(_TOPOLOGY.value, memory=memory)
  experiment = build.experiment(config, build.planned_shape(config))
  if topology is not None:
    made = mesh_lib.make(
      mesh_shape or config.mesh.shape, topology.devices, field='mesh'
    )
    shape = dict(made.shape)
    sampler_shape = placement.sampler_shape(config, shape)
    yield fitting.check(
      *(config, experiment, topology, shape, sampler_shape),
      stops_early=False,
      say=_note,
    )
  elif generation is not None:
    yield from fitting.smallest(
      config, experiment, generation, mesh_shape, memory=memory, say=_note
    )


def _versions() -> dict[str, str]:
  """Returns the versions of the packages that compile."""
  versions = {}
  for package in ('jax', 'jaxlib', 'libtpu'):
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
      versions[package] = importlib.metadata.version(package)
  return versions


def _note(line: str) -> None:
  print(line, file=sys.stderr, flush=True)


def _say(console: rich.console.Console, line: str) -> None:
  console.print(line, soft_wrap=True)


def _times(times: hlo.Times, unit: float) -> str:
  number = times.number / unit
  written = f'{number:.0f}' if unit == 1 else f'{number:.3f}'
  return f'{times.certainty} {written}'.strip()


if __name__ == '__main__':
  app.run(
    main,
    flags_parser=functools.partial(
      command_line.parse, own=_FLAGS, description=__doc__
    ),
  )
