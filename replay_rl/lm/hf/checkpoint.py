"""Loads and saves Hugging Face checkpoints of Qwen3, Qwen2.5 and Llama 3.

Weights go from the files to the devices that hold them. The host has one tensor
in memory at a time, or the part of it that its devices need.
"""

import collections
import os
import pathlib
import shutil
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replay_rl import base
from replay_rl import json_files
from replay_rl.lm import architecture
from replay_rl.lm.hf import config as hf_config
from replay_rl.lm.hf import files as hf_files
from replay_rl.lm.hf import layout as hf_layout

_EMBEDDING = 'model.embed_tokens.weight'
_OUTPUT = 'lm_head.weight'
# config.json determines them. Old versions of transformers stored them too.
_DERIVED = 'rotary_emb.inv_freq'
_TOKENIZER_FILES = (
  'tokenizer.json',
  'tokenizer.model',
  'tokenizer_config.json',
  'special_tokens_map.json',
  'added_tokens.json',
  'vocab.json',
  'merges.txt',
  'chat_template.jinja',
)
_GENERATION = 'generation_config.json'
_STORED_TYPES = {name: code for code, name in hf_files.TYPES.items()}


def load(
  folder: pathlib.Path,
  config: architecture.TransformerConfig,
  shardings: base.PyTree | None = None,
) -> base.PyTree:
  """Returns the parameters stored in a folder.

  A checkpoint may hold two things besides its parameters: the buffers
  `rotary_emb.inv_freq`, which are not read, and, if embeddings are tied, an
  `lm_head.weight` equal to the embedding. An unequal one is an error, since
  either the config or the weights are wrong.

  Args:
    folder: holds `model.safetensors`, or several files and their index. Types
      bfloat16, float16 and float32.
    config: the architecture, from `hf_config.read_config`.
    shardings: a `jax.sharding.Sharding` for each parameter, in the tree of
      `model.init`; each host reads the parts that its own devices hold. None
      for the default device.

  Returns:
    The nested dict of float32 arrays of `model.init`.

  Raises:
    ValueError: lists all tensors that are missing, surplus or of wrong shape or
      type, and all files that are missing or damaged; nothing is read then. Or
      lists all tensors with values that are NaN or infinite. A process checks
      the values that it reads, which are those of its own devices.
  """
  folder = pathlib.Path(folder)
  tensors, stored = _check_files(folder, config)
  sizes = hf_layout.letter_sizes(config)
  abstract = hf_layout.abstract_params(config)
  if shardings is not None:
    _check_tree(shardings, abstract, 'shardings')
  leaves = []
  num_bad = collections.Counter()
  for path, like in zip(
    hf_layout.paths(abstract), jax.tree.leaves(abstract), strict=True
  ):
    sharding = None
    if shardings is not None:
      sharding = hf_layout.leaf_at(shardings, path)
    parts = []
    for box, devices in hf_layout.boxes(like.shape, sharding).items():
      part = [
        jnp.zeros(box.shape, like.dtype, device=device) for device in devices
      ]
      for name, tensor in tensors.items():
        if tensor.row.leaf == path:
          part = _fill(
            part, devices, tensor, box, sizes, stored[name], name, num_bad
          )
      parts += part
    if sharding is None:
      leaves += parts
    else:
      leaves.append(
        jax.make_array_from_single_device_arrays(
          like.shape, sharding, parts, dtype=like.dtype
        )
      )
  _refuse(
    folder,
    [
      f'{name} has {count} values that are NaN or infinite'
      for name, count in num_bad.items()
      if count
    ],
  )
  return jax.tree.unflatten(jax.tree.structure(abstract), leaves)


def save(
  folder: pathlib.Path,
  config: architecture.TransformerConfig,
  params: base.PyTree,
  *,
  dtype: str,
  max_file_bytes: int,
  max_position_embeddings: int,
  bos_id: int | None,
  eos_ids: Sequence[int],
  tokenizer_folder: pathlib.Path | None = None,
  card: str | None = None,
) -> None:
  """Writes a checkpoint that transformers loads.

  `config.json` and `generation_config.json` have all of `eos_ids`, so that the
  model stops where it stops here. Other settings of the tokenizer folder's
  `generation_config.json`, such as its temperature, are kept.

  The folder appears once it is complete. A process that dies before leaves only
  a folder whose name begins with a dot.

  Args:
    folder: must not exist; its parent must.
    config: the architecture. It decides the family, see `hf_config.family_of`.
    params: the tree of `model.init`, on devices of this host.
    dtype: 'float32' or 'bfloat16', the type to store.
    max_file_bytes: size of the largest file of weights. Several files have an
      index.
    max_position_embeddings: longest context that the weights were trained for,
      at least `config.max_context`.
    bos_id: token that begins a text; None for none.
    eos_ids: tokens that end a text.
    tokenizer_folder: holds tokenizer files to copy; None for no tokenizer.
    card: what `README.md` says of the model; None writes none.

  Raises:
    ValueError: the folder exists, an argument is not as above, or the
      parameters are not those of the architecture. Nothing is written then.
  """
  folder = pathlib.Path(folder)
  if folder.exists():
    raise ValueError(f'folder = {str(folder)!r}: must not exist')
  if dtype not in ('float32', 'bfloat16'):
    raise ValueError(f'dtype = {dtype!r}: must be float32 or bfloat16')
  numbers = hf_config.numbers_of(
    config,
    max_position_embeddings=max_position_embeddings,
    bos_id=bos_id,
    eos_ids=eos_ids,
    dtype=dtype,
  )
  _check_params(params, config)
  tensors = hf_layout.tensors(config)
  itemsize = jnp.dtype(dtype).itemsize
  planned = [
    hf_files.Planned(
      name,
      tensor.shape,
      _STORED_TYPES[dtype],
      int(np.prod(tensor.shape)) * itemsize,
    )
    for name, tensor in tensors.items()
  ]
  files = hf_files.split(planned, max_file_bytes)
  tokenizer_files = _find_tokenizer(tokenizer_folder)
  generation = _generation(tokenizer_folder, numbers)

  def fetch(name):
    leaf = hf_layout.leaf_at(params, tensors[name].row.leaf)
    return hf_layout.read_to_host(leaf, tensors[name], dtype=dtype)

  # Beside the target, because a move is atomic only within one file system.
  partial = folder.with_name(f'.{folder.name}.partial-{os.getpid()}')
  partial.mkdir()
  try:
    hf_files.write_json(partial / hf_files.CONFIG, numbers)
    hf_files.write_json(partial / _GENERATION, generation)
    for file, group in files.items():
      hf_files.write(partial / file, group, fetch)
    if len(files) > 1:
      hf_files.write_index(partial, files)
    for path in tokenizer_files:
      shutil.copyfile(path, partial / path.name)
    if card is not None:
      (partial / 'README.md').write_text(card, encoding='utf-8')
    if folder.exists():  # A rename would replace an empty folder.
      raise ValueError(f'folder = {str(folder)!r}: must not appear meanwhile')
    partial.rename(folder)
  finally:
    shutil.rmtree(partial, ignore_errors=True)


def _fill(
  part: list[base.Array],
  devices: Sequence[Any],
  tensor: hf_layout.Tensor,
  box: hf_layout.Box,
  sizes: Mapping[str, int],
  stored: hf_files.Stored,
  name: str,
  num_bad: collections.Counter[str],
) -> list[base.Array]:
  """Returns a box of a leaf on its devices, with one tensor in it.

  Adds the values that are not finite to `num_bad`.
  """
  piece = hf_layout.piece_in_box(tensor, box, sizes)
  if piece is None:
    return part
  values = hf_files.read(stored, name, piece.ranges)
  num_bad[name] += hf_files.num_not_finite(values)
  values = values.reshape(piece.split)[piece.inner]
  starts = np.array(piece.starts, np.int32)
  written = [
    hf_layout.write(
      buffer,
      jax.device_put(values, device),
      jax.device_put(starts, device),
      row=tensor.row,
    )
    for buffer, device in zip(part, devices, strict=True)
  ]
  # Otherwise the host would read on and hold many tensors that wait for a copy.
  return jax.block_until_ready(written)


def _check_files(
  folder: pathlib.Path, config: architecture.TransformerConfig
) -> tuple[dict[str, hf_layout.Tensor], dict[str, hf_files.Stored]]:
  """Returns the tensors and the file of each.

  Raises:
    ValueError: lists all problems.
  """
  problems = []
  stored = hf_files.find(folder, problems)
  if stored and config.num_layers > len(stored):
    # A damaged config.json can have more layers than anyone could list.
    problems.append(
      f'num_layers = {config.num_layers}: must be at most the {len(stored)} '
      'stored tensors'
    )
    _refuse(folder, problems)
  tensors = hf_layout.tensors(config)
  # If no file can be read, each tensor is missing for that reason.
  names = list(tensors) if stored or not problems else []
  for name in names:
    wanted = list(tensors[name].shape)
    if name not in stored:
      problems.append(f'{name} is missing; wanted shape {wanted}')
    elif not hf_files.is_unreadable(stored[name]):
      shape, dtype = list(stored[name].shape), stored[name].dtype
      if shape != wanted:
        problems.append(f'{name} has shape {shape}, wanted {wanted}')
      if dtype not in hf_files.TYPES:
        problems.append(
          f'{name} has type {dtype}, wanted one of {sorted(hf_files.TYPES)}'
        )
  for name in sorted(set(stored) - set(tensors)):
    if name.endswith(_DERIVED):
      continue
    if name == _OUTPUT and config.tied_embeddings:
      # This reads the tensors, so it comes last.
      if not problems and not _is_tied(stored):
        problems.append(
          f'{name} differs from {_EMBEDDING}, though tie_word_embeddings'
        )
      continue
    problems.append(
      f'{name} of shape {list(stored[name].shape)} is not in the architecture'
    )
  _refuse(folder, problems)
  return tensors, stored


def _refuse(folder: pathlib.Path, problems: Sequence[str]) -> None:
  """Raises ValueError if there is a problem."""
  if problems:
    raise ValueError(
      '\n  '.join([f'folder = {str(folder)!r}: must be loadable:', *problems])
    )


def _is_tied(stored: Mapping[str, hf_files.Stored]) -> bool:
  """Returns whether output layer and embedding are equal, block by block."""
  output, embedding = stored[_OUTPUT], stored[_EMBEDDING]
  if output.shape != embedding.shape or output.dtype not in hf_files.TYPES:
    return False
  num_rows, block = embedding.shape[0], 4096
  for start in range(0, num_rows, block):
    ranges = (slice(start, min(start + block, num_rows)), slice(None))
    one, other = (
      hf_files.read(stored[name], name, ranges).astype(np.float32)
      for name in (_OUTPUT, _EMBEDDING)
    )
    # The reader refuses a NaN, and says so.
    if not np.array_equal(one, other, equal_nan=True):
      return False
  return True


def _check_params(
  params: base.PyTree, config: architecture.TransformerConfig
) -> None:
  abstract = hf_layout.abstract_params(config)
  _check_tree(params, abstract, 'params')
  problems = []
  for path in hf_layout.paths(abstract):
    leaf, like = (hf_layout.leaf_at(tree, path) for tree in (params, abstract))
    if leaf.shape != like.shape or leaf.dtype != like.dtype:
      problems.append(
        f'params.{".".join(path)} = {leaf.dtype}{list(leaf.shape)}: must be '
        f'{like.dtype}{list(like.shape)}'
      )
    elif not getattr(leaf, 'is_fully_addressable', True):
      problems.append(
        f'params.{".".join(path)} = a part: must be whole on this host'
      )
  if problems:
    raise ValueError('; '.join(problems))


def _check_tree(tree: base.PyTree, like: base.PyTree, name: str) -> None:
  given, wanted = (
    {jax.tree_util.keystr(path) for path, _ in flat}
    for flat, _ in map(jax.tree_util.tree_flatten_with_path, (tree, like))
  )
  if given != wanted:
    raise ValueError(
      f'missing leaves of {name} = {sorted(wanted - given)}, surplus = '
      f'{sorted(given - wanted)}: must be none'
    )


def _generation(
  tokenizer_folder: pathlib.Path | None, numbers: Mapping[str, Any]
) -> dict[str, Any]:
  """Returns the content of `generation_config.json`."""
  given = None
  if tokenizer_folder is not None:
    given = json_files.read_object_if_there(
      pathlib.Path(tokenizer_folder) / _GENERATION,
      advice=hf_files.download(tokenizer_folder),
    )
  names = ('bos_token_id', 'eos_token_id')
  return {**(given or {}), **{name: numbers[name] for name in names}}


def _find_tokenizer(folder: pathlib.Path | None) -> list[pathlib.Path]:
  if folder is None:
    return []
  paths = [pathlib.Path(folder) / name for name in _TOKENIZER_FILES]
  files = [path for path in paths if path.is_file()]
  if not files:
    raise ValueError(
      f'tokenizer_folder = {str(folder)!r}: must have one of {_TOKENIZER_FILES}'
    )
  return files
