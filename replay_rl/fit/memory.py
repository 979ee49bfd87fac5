"""The memory that a run needs on each device, before anything is allocated.

The bytes that a run keeps are exact: `state` gives the shapes and `placement`
how they are split, as for the run itself. The bytes that a program needs while
it runs are an estimate: `working_memory` traces the functions of the run on the
rows, heads and vocabulary of one device.
"""

import dataclasses
import math
from collections.abc import Callable
from collections.abc import Mapping
from typing import NamedTuple

import jax

from replay_rl.fit import working_memory
from replay_rl.lm import architecture
from replay_rl.lm import model
from replay_rl.lm import prefill
from replay_rl.parallel import mesh as mesh_lib
from replay_rl.run import config as config_lib
from replay_rl.run import microbatches
from replay_rl.run import placement
from replay_rl.run import state

# Field of a transformer -> logical axis. Weights are gathered along 'embed'
# before they are used, so that a device computes on the whole width.
_SPLIT_FIELDS = {
  'vocab_size': 'vocab',
  'num_heads': 'heads',
  'num_kv_heads': 'kv_heads',
  'd_ff': 'mlp',
}


class Memory(NamedTuple):
  """Bytes on each device, by what they hold.

  kept: from the first iteration to the last.
  on_host: of the buffer, in the memory of the host, for each device.
  programs: bytes while a program runs, by program and by what they hold.
  checkpoint: bytes of one checkpoint on disk, before compression.
  """

  kept: dict[str, int]
  on_host: int
  programs: dict[str, dict[str, int]]
  checkpoint: int

  @property
  def largest_program(self) -> str:
    """The program at which memory peaks."""
    return max(
      self.programs, key=lambda name: sum(self.programs[name].values())
    )

  @property
  def total(self) -> int:
    """Bytes on each device at the peak."""
    largest = self.programs[self.largest_program]
    return sum(self.kept.values()) + sum(largest.values())

  @property
  def terms_at_peak(self) -> dict[str, int]:
    """Bytes on each device at the peak, by what they hold."""
    return self.kept | self.programs[self.largest_program]

  @property
  def largest_term(self) -> str:
    """The name of the largest term at the peak."""
    terms = self.terms_at_peak
    return max(terms, key=lambda name: terms[name])


def abstract_mesh(shape: Mapping[str, int]) -> jax.sharding.AbstractMesh:
  """Returns a mesh of devices that this machine need not have.

  Raises:
    ValueError: other axes than `mesh.AXES`, or sizes that are not positive.
  """
  if set(shape) != set(mesh_lib.AXES):
    raise ValueError(
      f'mesh = {dict(shape)}: must name the axes {mesh_lib.AXES}'
    )
  if any(not isinstance(n, int) or n < 1 for n in shape.values()):
    raise ValueError(
      f'mesh = {dict(shape)}: must have positive sizes, not -1, because there '
      'are no devices to count'
    )
  return jax.sharding.AbstractMesh(
    tuple(shape[axis] for axis in mesh_lib.AXES),
    mesh_lib.AXES,
    axis_types=(jax.sharding.AxisType.Auto,) * len(mesh_lib.AXES),
  )


def memory(
  config: config_lib.Config,
  parts: state.Parts,
  mesh: jax.sharding.AbstractMesh,
  sampler_mesh: jax.sharding.AbstractMesh | None = None,
) -> Memory:
  """Returns the memory that a run needs on each device.

  Args:
    config: the run.
    parts: what was built from it.
    mesh: the devices.
    sampler_mesh: the devices that generate; None for `mesh`.

  Raises:
    ValueError: a mesh does not divide the weights, the rows or the heads.
  """
  run = state.shapes_of_run(parts, config.num_seeds)
  share = share_of_device(parts.transformer, mesh)
  kept, on_host, untied = _kept(run, parts, mesh, config.mesh.buffer_memory)
  # Of one seed: the sum over the microbatches, and the latest of several.
  is_summed = parts.num_microbatches > 1 or parts.packed is not None
  gradients = untied // config.num_seeds * (1 + is_summed)
  gradients *= 1 + parts.age_grad_norms  # That of one bucket of ages.
  programs = _sampling(
    config, parts, mesh, sampler_mesh, working_memory.sampling
  )
  if parts.num_publications:
    programs['sampler']['copy of published weights'] = (
      kept['parameters'] // config.num_seeds
    )
  programs['learner'] = {
    'gradients': gradients,
    'histograms of updates': _histograms(config),
  } | working_memory.activations(
    share if parts.packed is None else _packed(share, parts.packed),
    num_rows=_rows_of_microbatch(parts, mesh),
    chunk_size=config.optimizer.logits_chunk,
    remat=config.optimizer.remat,
  )
  if 'row_grad_norms' in parts.loss_reads:
    programs['learner']['gradient of a row'] = untied // config.num_seeds
  if 'proximal_logprobs' in parts.loss_reads:
    programs['learner']['proximal weights'] = (
      kept['parameters'] // config.num_seeds
    )
  return _total(run, kept, on_host, _of_seeds_at_once(config, programs))


def least(
  config: config_lib.Config,
  parts: state.Parts,
  mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh,
  sampler_mesh: jax.sharding.Mesh | None,
) -> Memory:
  """Returns the memory that a run needs on each device at the very least.

  These are the arrays that exist whatever the compiler does. No model is
  traced, so that it takes an instant for a model of any size.

  Args:
    config: the run.
    parts: what was built from it.
    mesh: the devices.
    sampler_mesh: the devices that generate; None for `mesh`.

  Raises:
    ValueError: a mesh does not divide the weights, the rows or the heads.
  """
  run = state.shapes_of_run(parts, config.num_seeds)
  kept, on_host, _ = _kept(run, parts, mesh, config.mesh.buffer_memory)
  programs = _sampling(
    config, parts, mesh, sampler_mesh, working_memory.held_by_sampling
  )
  programs['learner'] = {
    # All of them at once, because their global norm is clipped.
    'gradients': kept['parameters'] // config.num_seeds,
    'histograms of updates': _histograms(config),
  }
  return _total(run, kept, on_host, _of_seeds_at_once(config, programs))


def _total(
  run: state.RunState,
  kept: dict[str, int],
  on_host: int,
  programs: dict[str, dict[str, int]],
) -> Memory:
  """Returns the memory of these programs, and of writing a checkpoint."""
  # A checkpoint is written from a copy of the run on the device.
  copy = {'checkpoint': {'copy of the run': sum(kept.values())}}
  return Memory(
    kept={name: size for name, size in kept.items() if size},
    on_host=on_host,
    programs=programs | copy,
    checkpoint=sum(map(working_memory.num_bytes, jax.tree.leaves(run))),
  )


def share_of_device(
  transformer: architecture.TransformerConfig,
  mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh,
) -> architecture.TransformerConfig:
  """Returns the transformer that one device computes, by `mesh.RULES`.

  Raises:
    ValueError: the mesh does not divide a field.
  """
  return dataclasses.replace(
    transformer,
    **{
      name: _divide(getattr(transformer, name), f'model.{name}', axis, mesh)
      for name, axis in _SPLIT_FIELDS.items()
    },
  )


def _kept(
  run: state.RunState,
  parts: state.Parts,
  mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh,
  buffer_memory: str,
) -> tuple[dict[str, int], int, int]:
  """Returns bytes kept on a device, on the host, and of untied weights."""
  shardings = placement.of_run(
    run,
    model.logical_axes(parts.transformer),
    parts.bind(parts.hyper).update,
    mesh,  # pyright: ignore
    buffer_memory=buffer_memory,
  )

  def size(shapes, shardings, is_on_host=False):
    try:
      return sum(
        math.prod(sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf, sharding in zip(
          jax.tree.leaves(shapes), jax.tree.leaves(shardings), strict=True
        )
        if (sharding.memory_kind == 'pinned_host') == is_on_host
      )
    except ValueError as error:
      raise ValueError(
        f'mesh = {dict(mesh.shape)}: must divide the arrays ({error})'
      ) from error

  kept = {
    'parameters': size(run.learner.params, shardings.learner.params),
    'optimizer state': size(run.learner.opt_state, shardings.learner.opt_state),
    'published weights': size(run.sampler, shardings.sampler),
    'reference weights': size(run.reference_params, shardings.reference_params),
    'replay buffer': size(run.buffer, shardings.buffer),
    'state of the gate': size(
      run.learner.gate_state, shardings.learner.gate_state
    ),
  }
  untied = (
    model.untie(tree) for tree in (run.learner.params, shardings.learner.params)
  )
  return kept, size(run.buffer, shardings.buffer, True), size(*untied)


def _sampling(
  config: config_lib.Config,
  parts: state.Parts,
  mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh,
  sampler_mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh | None,
  needs_fn: Callable[..., dict[str, int]],
) -> dict[str, dict[str, int]]:
  """Returns what each program that generates needs beside the run.

  `needs_fn` takes the transformer, the shape and the rows of one device.
  """
  generates = mesh if sampler_mesh is None else sampler_mesh
  share = share_of_device(parts.transformer, generates)
  programs = {
    name: needs_fn(share, parts.shape, rows)
    for name, rows in _sampled_rows(config, parts, generates).items()
  }
  weights = working_memory.weights_to_sample_with(
    parts.transformer, mesh, generates
  )
  if not weights:
    return programs
  for name, terms in programs.items():
    # With spans all publications move there, and each span takes one of them.
    is_of_all = name == 'sampler' and parts.num_spans and sampler_mesh
    num_sets = parts.num_publications if is_of_all else 1
    terms['weights to sample with'] = num_sets * weights
  return programs


def _sampled_rows(
  config: config_lib.Config,
  parts: state.Parts,
  mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh,
) -> dict[str, working_memory.SampledRows]:
  """Returns what a device reads and writes when it generates, by program."""
  num_parts = mesh_lib.num_parts(mesh, 'rows')

  def rows(num_responses, num_prompts, group_size):
    reads = prefill.prompt_reads(num_prompts, group_size, num_parts)
    num_slots = num_responses
    if config.sampler.num_slots is not None:
      num_slots = _divide(
        config.sampler.num_slots, 'sampler.num_slots', 'rows', mesh
      )
    return working_memory.SampledRows(
      num_responses,
      num_prompts * reads // num_parts,
      min(num_slots, num_responses),
    )

  name = 'sampler.num_prompts x sampler.group_size'
  num_responses = _divide(parts.num_fresh, name, 'rows', mesh)
  of_programs = {
    'sampler': rows(num_responses, parts.num_prompts, parts.group_size)
  }
  if config.evaluation.is_on:
    evaluation = config.evaluation
    num_prompts = _divide(
      evaluation.num_prompts, 'evaluation.num_prompts', 'rows', mesh
    )
    of_programs['evaluation'] = rows(
      num_prompts * evaluation.num_samples,
      evaluation.num_prompts,
      evaluation.num_samples,
    )
  return of_programs


def _rows_of_microbatch(
  parts: state.Parts,
  mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh,
) -> int:
  """Returns the rows of a microbatch on a device, those that fill it too.

  Of packed rows, these are sequences.
  """
  num_parts = mesh_lib.num_parts(mesh, 'rows')
  if parts.packed is not None:
    return -(-min(parts.packed.num_sequences, parts.num_rows) // num_parts)
  num_rows = microbatches.padded_rows(
    parts.num_rows, parts.num_microbatches, num_parts
  )
  return num_rows // (parts.num_microbatches * num_parts)


def _packed(
  transformer: architecture.TransformerConfig, packed: microbatches.Packing
) -> architecture.TransformerConfig:
  """Returns a transformer whose rows are as long as packed sequences."""
  # The last token of a row is not read.
  return dataclasses.replace(transformer, max_context=packed.capacity + 1)


def _histograms(config: config_lib.Config) -> int:
  """Returns the bytes of the int32 histograms of all updates of a cycle."""
  num_updates = math.ceil(config.replay.updates_per_iteration or 0)
  return num_updates * (2 * config.logging.histogram_bins + 1) * 4


def _of_seeds_at_once(
  config: config_lib.Config, programs: dict[str, dict[str, int]]
) -> dict[str, dict[str, int]]:
  """Returns the bytes of programs of one seed, for all that run together."""
  at_once = config.num_seeds if config.vmap_seeds else 1
  return {
    program: {name: at_once * size for name, size in terms.items()}
    for program, terms in programs.items()
  }


def _divide(
  size: int,
  name: str,
  axis: str,
  mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh,
) -> int:
  mesh_lib.check(mesh, 'mesh', [(name, axis, size)])
  return size // mesh_lib.num_parts(mesh, axis)
