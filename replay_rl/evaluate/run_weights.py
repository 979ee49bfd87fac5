"""Reads the model of a run: its configuration, and weights of a checkpoint."""

import argparse
import pathlib
import zlib
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp

from replay_rl import base
from replay_rl import json_files
from replay_rl import overrides
from replay_rl.lm import architecture
from replay_rl.lm.hf import layout as hf_layout
from replay_rl.parallel import checksums
from replay_rl.run import config as config_lib
from replay_rl.run import workdir as workdir_lib


class TrainedRun(NamedTuple):
  """What the config of a run says about its model.

  folder: of the run.
  model: shape of the model.
  text: its problems, prompts and verifier.
  seeds: those trained side by side.
  mesh: axis -> devices along it.
  """

  folder: pathlib.Path
  model: config_lib.Model
  text: config_lib.Text
  seeds: tuple[int, ...]
  mesh: dict[str, int]


def read_run(folder: pathlib.Path) -> TrainedRun:
  """Reads the configuration of a run.

  Raises:
    ValueError: if there is none, it cannot be read, or the task of the run is
      not in text.
  """
  path = folder / workdir_lib.CONFIG
  try:
    config = json_files.read_object(
      path, advice='name a folder that replay_rl.train wrote'
    )['config']
    text = config['text']
    if text is None:
      raise ValueError(
        f'task = {config["task"]!r}: must be {config_lib.TEXT_TASK!r}'
      )
    return TrainedRun(
      folder=folder,
      model=config_lib.Model(**config['model']),
      text=config_lib.Text(**text),
      seeds=tuple(config['seed'] + i for i in range(config['num_seeds'])),
      mesh=config['mesh']['shape'],
    )
  except (ValueError, KeyError, TypeError, AttributeError) as error:
    raise ValueError(
      f'workdir = {str(folder)!r}: must hold the config of a run in text '
      f'({error!r})'
    ) from error


def architecture_of(
  model: config_lib.Model,
  *,
  vocab_size: int,
  max_context: int,
  compute_dtype: str,
) -> architecture.TransformerConfig:
  """Returns the architecture of a run's model.

  Args:
    model: the section of its config.
    vocab_size: of the tokenizer, where the config has None.
    max_context: tokens of prompt and response.
    compute_dtype: 'float32' or 'bfloat16'.
  """
  shape: dict[str, Any] = vars(model) | {'compute_dtype': compute_dtype}
  del shape['checkpoint']
  if shape['vocab_size'] is None:
    shape['vocab_size'] = vocab_size
  if shape['rope_scaling'] is not None:
    shape['rope_scaling'] = architecture.RopeScaling(**shape['rope_scaling'])
  return architecture.TransformerConfig(max_context=max_context, **shape)


def pick_step(folder: pathlib.Path, step: int | None) -> int:
  """Returns the iterations done at a checkpoint of a run.

  Args:
    folder: of the run.
    step: the checkpoint; None for the newest.

  Raises:
    ValueError: if there is no such checkpoint.
  """
  with _open(folder) as manager:
    steps = sorted(manager.all_steps())
  if not steps or step not in (None, *steps):
    raise ValueError(
      f'step = {step}: must be one of {steps}, the checkpoints of {folder}'
    )
  return steps[-1] if step is None else step


def add_place_flags(parser: argparse.ArgumentParser) -> None:
  """Adds the flags that name a checkpoint of a run and one of its seeds."""
  parser.add_argument(
    '--iteration',
    type=overrides.integer,
    help='iterations done at the checkpoint (default: the newest)',
  )
  parser.add_argument(
    '--seed',
    type=overrides.integer,
    help='seed of the run, if it trained several',
  )


def pick_seed(
  folder: pathlib.Path, seeds: Sequence[int], seed: int | None
) -> int:
  """Returns which of the seeds of a run to read.

  Raises:
    ValueError: if the run has no such seed, or several and none was named.
  """
  if seed is None and len(seeds) == 1:
    return seeds[0]
  if seed is None or seed not in seeds:
    raise ValueError(
      f'seed = {seed}: must be one of {list(seeds)}, the seeds of {folder}'
    )
  return seed


def restore(
  folder: pathlib.Path,
  seeds: Sequence[int],
  config: architecture.TransformerConfig,
  *,
  step: int,
  seed: int,
  shardings: base.PyTree,
) -> base.PyTree:
  """Returns the weights of one seed at a checkpoint of a run.

  Reads neither the buffer nor the optimizer. The host holds the weights of all
  seeds for a moment.

  Args:
    folder: of the run.
    seeds: of the run.
    config: architecture of its model.
    step: of the checkpoint.
    seed: one of `seeds`.
    shardings: of each weight, as `placement.of_params` returns them.

  Raises:
    ValueError: if the checkpoint is damaged, or of another architecture.
  """
  row = list(seeds).index(seed)
  item = {
    'seed': jax.ShapeDtypeStruct((len(seeds),), np.uint32),
    'learner': {
      'params': jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(
          (len(seeds), *leaf.shape), leaf.dtype
        ),
        hf_layout.abstract_params(config),
      )
    },
  }
  where = folder / 'checkpoints' / str(step)
  try:
    with _open(folder) as manager:
      restored = manager.restore(
        step,
        args=ocp.args.Composite(
          run=ocp.args.PyTreeRestore(
            item=item,
            restore_args=jax.tree.map(
              lambda _: ocp.RestoreArgs(restore_type=np.ndarray), item
            ),
            partial_restore=True,
          ),
          checksums=ocp.args.JsonRestore(),
        ),
      )
  except Exception as error:  # Orbax and TensorStore raise many kinds.
    raise ValueError(
      f'checkpoint = {str(where)!r}: must be readable ({error})'
    ) from error
  params = restored['run']['learner']['params']
  _check(params, item['learner']['params'], restored['checksums'], where)
  stored = restored['run']['seed'].tolist()
  if stored != list(seeds):
    raise ValueError(
      f'seeds of {where} = {stored}: must be those of the config, {list(seeds)}'
    )
  return jax.tree.map(
    lambda leaf, sharding: jax.device_put(leaf[row], sharding),
    params,
    shardings,
  )


def fingerprint(params: base.PyTree) -> str:
  """Returns a checksum of weights, the same on any mesh."""
  sums = np.array(list(checksums.of_tree(params).values()), np.uint32)
  return f'{zlib.crc32(sums.tobytes()):08x}'


def _open(folder: pathlib.Path) -> ocp.CheckpointManager:
  """Opens the checkpoints of a run, which may still be training."""
  path = (folder / 'checkpoints').resolve()
  if not path.is_dir():
    raise ValueError(
      f'workdir = {str(folder)!r}: must hold a run with checkpoints'
    )
  return ocp.CheckpointManager(
    path, options=ocp.CheckpointManagerOptions(read_only=True)
  )


def _check(
  params: base.PyTree,
  wanted: base.PyTree,
  saved: dict[str, Any],
  where: pathlib.Path,
) -> None:
  """Raises ValueError if weights are damaged or of another shape."""
  leaves, _ = jax.tree_util.tree_flatten_with_path(params)
  problems = []
  for (path, leaf), like in zip(leaves, jax.tree.leaves(wanted), strict=True):
    # `checkpoint.save` names the fields of a NamedTuple with a dot.
    name = f'.learner.params{jax.tree_util.keystr(path)}'
    if leaf.shape != like.shape:
      problems.append(f'shape of {name} = {leaf.shape}: must be {like.shape}')
    # Leaf by leaf, since one device may lack room for all.
    elif (actual := checksums.of_tree([leaf])['[0]']) != saved.get(name):
      problems.append(
        f'checksum of {name} = {actual}: must be {saved.get(name)}, as saved'
      )
  if problems:
    start = f'checkpoint = {str(where)!r}: must fit the model:'
    raise ValueError('\n  '.join([start, *problems]))
