"""Attention, and which implementation of it reads a sequence.

`plain` holds the scores of all pairs of tokens, which for long sequences are
far more bytes than the rest of a layer. The other functions hold those of a few
tokens at a time, also in the backward pass. Letters are those of `layers`.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from replay_rl import base

# The scores of sequences up to this length may all be held: 32 heads of a
# sequence have 34 MB of them in float32.
SHORT = 512
# Queries whose scores exist at once, in `chunked`.
_BLOCK = 256
# Tiles of the TPU kernel, whose sides must be multiples of the last one.
_TILES = (512, 256, 128)
_CUDNN_MULTIPLE = 64
_ROWS, _HEADS = ('data', 'fsdp'), 'tensor'

# (queries [B, K, G, T, d], keys and values [B, K, T, d], ids [B, T] or None)
# -> heads [B, K, G, T, d]. A token attends to those before it, and to itself,
# that have its id; None is the same id for all.
AttendFn = Callable[
  [base.Array, base.Array, base.Array, base.Array | None], base.Array
]


def choose(
  platform: str,
  *,
  num_tokens: int,
  head_dim: int,
  dtype: Any,
  is_packed: bool,
) -> AttendFn:
  """Returns the implementation for sequences that attend to themselves.

  Args:
    platform: of the devices: 'cpu', 'gpu' or 'tpu'.
    num_tokens: T.
    head_dim: d.
    dtype: of queries, keys and values.
    is_packed: whether the tokens have ids. cuDNN would hold a mask of all pairs
      of tokens for them.
  """
  if num_tokens <= SHORT:
    return causal
  if platform == 'tpu':
    return splash
  is_known_to_cudnn = (
    jnp.dtype(dtype) == jnp.bfloat16 and head_dim <= 128 and head_dim % 8 == 0
  )
  if platform == 'gpu' and is_known_to_cudnn and not is_packed:
    return cudnn
  return chunked


def platform() -> str:
  """Returns the platform of the current mesh, or else of this process.

  The chips of a mesh may be described and not be here, see `fit.topology`.
  """
  device = jax.sharding.get_abstract_mesh().abstract_device
  return jax.default_backend() if device is None else device.platform


def automatic(
  q_BKGTd: base.Array,
  keys_BKTd: base.Array,
  values_BKTd: base.Array,
  ids_BT: base.Array | None,
) -> base.Array:
  """Attends with what `choose` returns, an `AttendFn`."""
  attend = choose(
    platform(),
    num_tokens=q_BKGTd.shape[3],
    head_dim=q_BKGTd.shape[4],
    dtype=q_BKGTd.dtype,
    is_packed=ids_BT is not None,
  )
  return attend(q_BKGTd, keys_BKTd, values_BKTd, ids_BT)


def plain(
  q_BKGTd: base.Array,
  keys_BKSd: base.Array,
  values_BKSd: base.Array,
  mask_BTS: base.Array,
) -> base.Array:
  """Returns grouped-query attention `[B, K, G, T, d]`, softmax in float32.

  Ainslie et al., 'GQA', arXiv:2305.13245. The query heads of a group are rows
  of one matrix, so that keys and values need not be repeated.

  Args:
    q_BKGTd: `[B, K, G, T, d]`.
    keys_BKSd, values_BKSd: `[B, K, S, d]`.
    mask_BTS: `[B, T, S]` bool, True where a token attends to a column.
  """
  scores_BKGTS = _read_keys(q_BKGTd, keys_BKSd) * q_BKGTd.shape[-1] ** -0.5
  scores_BKGTS = jnp.where(
    mask_BTS[:, None, None], scores_BKGTS, jnp.finfo(jnp.float32).min
  )
  return _mix_values(jax.nn.softmax(scores_BKGTS), values_BKSd)


def causal(
  q_BKGTd: base.Array,
  keys_BKTd: base.Array,
  values_BKTd: base.Array,
  ids_BT: base.Array | None,
) -> base.Array:
  """Attends with the scores of all pairs of tokens, an `AttendFn`."""
  num_tokens = q_BKGTd.shape[3]
  mask_BTT = _mask(jnp.arange(num_tokens), num_tokens, ids_BT, ids_BT)
  return plain(q_BKGTd, keys_BKTd, values_BKTd, mask_BTT)


def chunked(
  q_BKGTd: base.Array,
  keys_BKTd: base.Array,
  values_BKTd: base.Array,
  ids_BT: base.Array | None,
) -> base.Array:
  """Attends with the scores of some queries at a time, an `AttendFn`.

  The backward pass computes the scores again. Rabe and Staats, 'Self-attention
  Does Not Need O(n^2) Memory', arXiv:2112.05682, but with all keys at once.
  """
  B, K, G, T, d = q_BKGTd.shape
  num_blocks = -(-T // _BLOCK)
  extra = num_blocks * _BLOCK - T
  q_BKGTd = jnp.pad(q_BKGTd, ((0, 0),) * 3 + ((0, extra), (0, 0)))
  q_blocks = jnp.moveaxis(q_BKGTd.reshape(B, K, G, num_blocks, _BLOCK, d), 3, 0)
  id_blocks = None
  if ids_BT is not None:
    id_blocks = jnp.pad(ids_BT, ((0, 0), (0, extra)))
    id_blocks = id_blocks.reshape(B, num_blocks, _BLOCK).swapaxes(0, 1)
  # Their gradients are sums over the blocks, in float32.
  exact = jax.tree.map(
    lambda leaf: leaf.astype(jnp.float32), (keys_BKTd, values_BKTd)
  )
  dtype = q_BKGTd.dtype

  def attend(exact, q_block, ids_block, first):
    keys, values = jax.tree.map(lambda leaf: leaf.astype(dtype), exact)
    mask = _mask(first + jnp.arange(_BLOCK), T, ids_block, ids_BT)
    return plain(q_block, keys, values, mask)

  again = jax.checkpoint(attend, prevent_cse=False)  # A loop shares nothing.
  heads = jax.lax.map(
    lambda block: again(exact, *block),
    (q_blocks, id_blocks, _BLOCK * jnp.arange(num_blocks)),
  )
  return jnp.moveaxis(heads, 0, 3).reshape(B, K, G, -1, d)[:, :, :, :T]


def splash(
  q_BKGTd: base.Array,
  keys_BKTd: base.Array,
  values_BKTd: base.Array,
  ids_BT: base.Array | None,
) -> base.Array:
  """Attends with the splash kernel of JAX for TPUs, an `AttendFn`.

  It skips tiles of scores after the diagonal. On a mesh, each device computes
  its rows and heads; rows that the mesh does not divide are on all devices.
  """
  if ids_BT is None:
    ids_BT = jnp.zeros(q_BKGTd.shape[::3][:2], jnp.int32)
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty or mesh.size == 1:
    return _splash_of_device(q_BKGTd, keys_BKTd, values_BKTd, ids_BT)
  spec = jax.sharding.PartitionSpec
  num_parts = mesh.shape['data'] * mesh.shape['fsdp']
  rows = _ROWS if q_BKGTd.shape[0] % num_parts == 0 else None
  of_heads = spec(rows, _HEADS)
  return jax.shard_map(
    _splash_of_device,
    in_specs=(of_heads, of_heads, of_heads, spec(rows)),
    out_specs=of_heads,
    check_vma=False,  # A kernel does not say over what its result varies.
  )(q_BKGTd, keys_BKTd, values_BKTd, ids_BT)


def _splash_of_device(
  q_BKGTd: base.Array,
  keys_BKTd: base.Array,
  values_BKTd: base.Array,
  ids_BT: base.Array,
  is_interpreted: bool = False,
) -> base.Array:
  # The module is slow to import, and no other platform needs it.
  from jax.experimental.pallas.ops.tpu import splash_attention as kernels

  B, K, G, T, d = q_BKGTd.shape
  extra = -T % _TILES[-1]
  tile = next(tile for tile in _TILES if (T + extra) % tile == 0)
  # No token attends to the columns that fill the last tile.
  q_BHTd, keys_BKTd, values_BKTd = (
    jnp.pad(leaf, ((0, 0), (0, 0), (0, extra), (0, 0)))
    for leaf in (
      (q_BKGTd * d**-0.5).reshape(B, K * G, T, d),
      *(keys_BKTd, values_BKTd),
    )
  )
  ids_BT = jnp.pad(ids_BT, ((0, 0), (0, extra)))
  mask = kernels.CausalMask((T + extra, T + extra))
  attend = kernels.make_splash_mha(
    kernels.MultiHeadMask([mask] * (K * G)),
    block_sizes=kernels.BlockSizes(
      block_q=tile,
      block_kv=tile,
      block_q_dkv=tile,
      block_kv_dkv=tile,
      block_q_dq=tile,
      block_kv_dq=tile,
    ),
    head_shards=1,
    q_seq_shards=1,
    interpret=is_interpreted,
  )
  segments = kernels.SegmentIds(ids_BT, ids_BT)
  heads_BHTd: Any = jax.vmap(attend)(q_BHTd, keys_BKTd, values_BKTd, segments)
  return heads_BHTd[:, :, :T].reshape(B, K, G, T, d)


def cudnn(
  q_BKGTd: base.Array,
  keys_BKTd: base.Array,
  values_BKTd: base.Array,
  ids_BT: base.Array | None,
) -> base.Array:
  """Attends with the flash kernel of cuDNN for GPUs, an `AttendFn`.

  Raises:
    ValueError: there are ids.
  """
  if ids_BT is not None:
    raise ValueError(f'ids = an array of {ids_BT.shape}: must be None')
  B, K, G, T, d = q_BKGTd.shape
  # Its backward pass knows no odd lengths. No token attends to what fills up.
  extra = -T % _CUDNN_MULTIPLE
  heads_BTHd = jax.nn.dot_product_attention(
    *(
      jnp.pad(leaf, ((0, 0), (0, 0), (0, extra), (0, 0))).swapaxes(1, 2)
      for leaf in (q_BKGTd.reshape(B, K * G, T, d), keys_BKTd, values_BKTd)
    ),
    is_causal=True,
    implementation='cudnn',
  )
  return heads_BTHd[:, :T].swapaxes(1, 2).reshape(B, K, G, T, d)


def _mask(
  columns_Q: base.Array,
  num_tokens: int,
  q_ids_BQ: base.Array | None,
  ids_BT: base.Array | None,
) -> base.Array:
  """Returns which tokens the queries at some columns attend to, `[B, Q, T]`."""
  mask_BQT = (jnp.arange(num_tokens)[None, :] <= columns_Q[:, None])[None]
  if q_ids_BQ is None or ids_BT is None:
    return mask_BQT
  return mask_BQT & (q_ids_BQ[:, :, None] == ids_BT[:, None, :])


def _read_keys(q_BKGTd: base.Array, keys_BKSd: base.Array) -> base.Array:
  B, K, G, T, d = q_BKGTd.shape
  if T == 1:
    # Reading the keys takes most of the time of a single query. A product and a
    # sum are then faster than a tiny matmul for each row and head.
    products_BKGSd = q_BKGTd * keys_BKSd[:, :, None]
    return jnp.sum(products_BKGSd, -1, dtype=jnp.float32)[:, :, :, None]
  scores = jnp.einsum(
    'bkmd,bksd->bkms',
    q_BKGTd.reshape(B, K, G * T, d),
    keys_BKSd,
    preferred_element_type=jnp.float32,
  )
  return scores.reshape(B, K, G, T, -1)


def _mix_values(
  weights_BKGTS: base.Array, values_BKSd: base.Array
) -> base.Array:
  B, K, G, T, S = weights_BKGTS.shape
  weights_BKGTS = weights_BKGTS.astype(values_BKSd.dtype)
  if T == 1:
    products_BKGSd = (
      weights_BKGTS[:, :, :, 0, :, None] * values_BKSd[:, :, None]
    )
    mixed = jnp.sum(products_BKGSd, -2, dtype=jnp.float32)
    return mixed[:, :, :, None].astype(values_BKSd.dtype)
  mixed = jnp.einsum(
    'bkms,bksd->bkmd', weights_BKGTS.reshape(B, K, G * T, S), values_BKSd
  )
  return mixed.reshape(B, K, G, T, -1)
