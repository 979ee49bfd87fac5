"""The place of each tensor of a Hugging Face checkpoint in our parameters.

`TABLE` is the one definition. Loading, saving and the checks all read it.
"""

import functools
import math
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from replay_rl import base
from replay_rl.lm import architecture
from replay_rl.lm import model

_LAYERS = 'layers'


class Row(NamedTuple):
  """One kind of tensor.

  name: in the checkpoint; `{}` stands for the index of the layer.
  leaf: path in our parameters.
  theirs: dimensions in the checkpoint, by the letters of `letter_sizes`. The
    letters of a word are one dimension, in which the last changes fastest.
  ours: dimensions in the leaf, without the one of the layers. A digit is an
    index in a dimension that fuses two tensors.
  """

  name: str
  leaf: tuple[str, ...]
  theirs: str
  ours: str


TABLE = (
  Row('model.embed_tokens.weight', ('embedding',), 'V D', 'V D'),
  *(
    Row(f'model.layers.{{}}.{name}', (_LAYERS, leaf), theirs, ours)
    for name, leaf, theirs, ours in (
      ('input_layernorm.weight', 'attention_norm', 'D', 'D'),
      ('self_attn.q_proj.weight', 'query', 'Hd D', 'D H d'),
      ('self_attn.q_proj.bias', 'query_bias', 'Hd', 'H d'),
      ('self_attn.k_proj.weight', 'key_value', 'Kd D', 'D 0 K d'),
      ('self_attn.k_proj.bias', 'key_value_bias', 'Kd', '0 K d'),
      ('self_attn.v_proj.weight', 'key_value', 'Kd D', 'D 1 K d'),
      ('self_attn.v_proj.bias', 'key_value_bias', 'Kd', '1 K d'),
      ('self_attn.q_norm.weight', 'query_norm', 'd', 'd'),
      ('self_attn.k_norm.weight', 'key_norm', 'd', 'd'),
      ('self_attn.o_proj.weight', 'output', 'D Hd', 'H d D'),
      ('post_attention_layernorm.weight', 'mlp_norm', 'D', 'D'),
      ('mlp.gate_proj.weight', 'gate_up', 'F D', 'D 0 F'),
      ('mlp.up_proj.weight', 'gate_up', 'F D', 'D 1 F'),
      ('mlp.down_proj.weight', 'down', 'D F', 'F D'),
    )
  ),
  Row('model.norm.weight', ('final_norm',), 'D', 'D'),
  Row('lm_head.weight', ('unembedding',), 'V D', 'V D'),
)


class Tensor(NamedTuple):
  """One tensor of a checkpoint.

  row: its kind.
  layer: index of its layer; None if it belongs to no layer.
  shape: in the checkpoint.
  """

  row: Row
  layer: int | None
  shape: tuple[int, ...]


class Box(NamedTuple):
  """The part of a leaf that one device holds, as ranges of indices.

  starts, stops: one number for each dimension of the leaf.
  """

  starts: tuple[int, ...]
  stops: tuple[int, ...]

  @property
  def shape(self) -> tuple[int, ...]:
    """Size of each dimension."""
    return tuple(
      stop - start for start, stop in zip(self.starts, self.stops, strict=True)
    )


def abstract_params(config: architecture.TransformerConfig) -> base.PyTree:
  """Returns shapes and types of the parameters, `jax.ShapeDtypeStruct`s."""
  init = functools.partial(model.init, config)
  _, params = jax.eval_shape(init, jax.eval_shape(jax.random.key, 0))
  return params


def leaf_at(params: base.PyTree, path: tuple[str, ...]) -> Any:
  """Returns the leaf at a path of keys."""
  return functools.reduce(lambda node, key: node[key], path, params)


def paths(params: base.PyTree) -> list[tuple[str, ...]]:
  """Returns the path of each leaf, in the order of `jax.tree.leaves`."""
  leaves, _ = jax.tree_util.tree_flatten_with_path(params)
  return [tuple(str(entry.key) for entry in path) for path, _ in leaves]


def letter_sizes(config: architecture.TransformerConfig) -> Mapping[str, int]:
  """Returns the size of each dimension, by the letters of `TABLE`."""
  return {
    'V': config.vocab_size,
    'D': config.d_model,
    'H': config.num_heads,
    'K': config.num_kv_heads,
    'd': config.head_dim,
    'F': config.d_ff,
  }


def tensors(config: architecture.TransformerConfig) -> dict[str, Tensor]:
  """Returns the tensors that a checkpoint of this architecture has, by name."""
  leaves = set(paths(abstract_params(config)))
  sizes = letter_sizes(config)
  result = {}
  for row in TABLE:
    if row.leaf not in leaves:
      continue
    shape = tuple(
      math.prod(sizes[letter] for letter in word) for word in row.theirs.split()
    )
    if row.leaf[0] == _LAYERS:
      for layer in range(config.num_layers):
        result[row.name.format(layer)] = Tensor(row, layer, shape)
    else:
      result[row.name] = Tensor(row, None, shape)
  return result


class Piece(NamedTuple):
  """The part of one tensor that lies in a box of its leaf.

  ranges: of the indices to read, for each dimension in the checkpoint. split:
  shape of the part that was read, with one dimension for each letter. inner:
  ranges to keep of it; only letters of a longer word have shorter ranges.
  starts: the place in the box.
  """

  ranges: tuple[slice, ...]
  split: tuple[int, ...]
  inner: tuple[slice, ...]
  starts: tuple[int, ...]


def piece_in_box(
  tensor: Tensor, box: Box, sizes: Mapping[str, int]
) -> Piece | None:
  """Returns the part of a tensor that a device needs; None for no part."""
  row = tensor.row
  dims = row.ours.split()
  if tensor.layer is not None:
    dims = [str(tensor.layer), *dims]
  starts, wanted = [], {}
  for dim, start, stop in zip(dims, box.starts, box.stops, strict=True):
    if not dim.isdigit():
      wanted[dim] = (start, stop)
      starts.append(0)
    elif start <= int(dim) < stop:
      starts.append(int(dim) - start)
    else:
      return None
  ranges, split, inner = [], [], []
  for lead, *rest in row.theirs.split():
    # Rows of the first letter are contiguous. `inner` cuts the other letters.
    start, stop = wanted[lead]
    stride = math.prod(sizes[letter] for letter in rest)
    ranges.append(slice(start * stride, stop * stride))
    split += [stop - start, *(sizes[letter] for letter in rest)]
    inner += [slice(None), *(slice(*wanted[letter]) for letter in rest)]
  return Piece(tuple(ranges), tuple(split), tuple(inner), tuple(starts))


@functools.partial(jax.jit, static_argnames='row', donate_argnames='leaf')
def write(
  leaf: base.Array, piece: base.Array, starts: base.Array, *, row: Row
) -> base.Array:
  """Returns the leaf, or a box of it, with a piece of one tensor.

  Args:
    leaf: donated.
    piece: of any float type, with one dimension for each letter.
    starts: `[leaf.ndim]` int32, the place of the piece.
    row: the kind of the tensor.
  """
  letters = row.theirs.replace(' ', '')
  dims = row.ours.split()
  piece = piece.transpose([letters.index(dim) for dim in _letters(dims)])
  fused = [axis for axis, dim in enumerate(dims) if dim.isdigit()]
  piece = jnp.expand_dims(piece, fused)
  if row.leaf[0] == _LAYERS:
    piece = piece[None]
  return jax.lax.dynamic_update_slice(
    leaf, piece.astype(leaf.dtype), list(starts)
  )


@functools.partial(jax.jit, static_argnames=('row', 'dtype'))
def read(
  leaf: base.Array, layer: base.Array, *, row: Row, dtype: str
) -> base.Array:
  """Returns one tensor as the checkpoint has it, the inverse of `write`.

  Args:
    leaf: whole.
    layer: `[]` int32, ignored for a leaf without layers.
    row: the kind of the tensor.
    dtype: type of the result.
  """
  if row.leaf[0] == _LAYERS:
    leaf = leaf[layer]
  dims = row.ours.split()
  leaf = leaf[tuple(int(d) if d.isdigit() else slice(None) for d in dims)]
  ours = list(_letters(dims))
  sizes = dict(zip(ours, leaf.shape, strict=True))
  leaf = leaf.transpose([ours.index(x) for x in row.theirs.replace(' ', '')])
  shape = [math.prod(sizes[x] for x in word) for word in row.theirs.split()]
  return leaf.reshape(shape).astype(dtype)


def boxes(
  shape: tuple[int, ...], sharding: jax.sharding.Sharding | None
) -> dict[Box, list[Any]]:
  """Returns the boxes of a leaf on this host, and the devices that hold each.

  Without a sharding, the whole leaf is one box, on the default device: None.
  """
  if sharding is None:
    return {Box((0,) * len(shape), shape): [None]}
  holders = {}
  for device, index in sharding.addressable_devices_indices_map(shape).items():
    ranges = [
      part.indices(size)[:2]
      for part, size in zip(index or (), shape, strict=True)
    ]
    starts, stops = zip(*ranges, strict=True)
    holders.setdefault(Box(starts, stops), []).append(device)
  return holders


def _letters(dims: list[str]) -> Iterator[str]:
  return (dim for dim in dims if not dim.isdigit())


def read_to_host(leaf: base.Array, tensor: Tensor, *, dtype: str) -> np.ndarray:
  """Returns one tensor of the checkpoint on the host."""
  layer = jax.device_put(np.int32(tensor.layer or 0))
  return jax.device_get(read(leaf, layer, row=tensor.row, dtype=dtype))
