"""Tests of `replay_rl.lm.hf.checkpoint`: loading; `save_test` tests saving."""

import dataclasses
import functools
import json
import pathlib
from unittest import mock

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from absl.testing import parameterized
from safetensors import numpy as safetensors_numpy

from replay_rl.lm import model
from replay_rl.lm.hf import checkpoint as hf
from replay_rl.lm.hf import files as hf_files
from replay_rl.lm.hf import layout as hf_layout
from replay_rl.parallel import mesh as mesh_lib
from tests.lm.hf import checkpoint_models

_LAYER = 'model.layers.1.'


def _tensors(config, seed=0):
  """Returns random tensors with the names and shapes of a checkpoint."""
  rng = np.random.default_rng(seed)
  # Exact in every type, and all different with high probability.
  return {
    name: rng.integers(-128, 128, tensor.shape).astype(np.float32) / 64
    for name, tensor in hf_layout.tensors(config).items()
  }


def _expected(config, tensors):
  """Returns our parameters by hand, from the names of published files."""
  H, K, d = config.num_heads, config.num_kv_heads, config.head_dim
  layers = []
  for layer in range(config.num_layers):
    own = {
      name.removeprefix(f'model.layers.{layer}.'): value
      for name, value in tensors.items()
    }
    keys, values = (
      own[f'self_attn.{x}_proj.weight'].T.reshape(-1, K, d) for x in 'kv'
    )
    gate, up = (own[f'mlp.{x}_proj.weight'].T for x in ('gate', 'up'))
    result = {
      'attention_norm': own['input_layernorm.weight'],
      'query': own['self_attn.q_proj.weight'].T.reshape(-1, H, d),
      'key_value': np.stack([keys, values], axis=1),
      'output': own['self_attn.o_proj.weight'].T.reshape(H, d, -1),
      'mlp_norm': own['post_attention_layernorm.weight'],
      'gate_up': np.stack([gate, up], axis=1),
      'down': own['mlp.down_proj.weight'].T,
    }
    if config.qk_norm:
      result['query_norm'] = own['self_attn.q_norm.weight']
      result['key_norm'] = own['self_attn.k_norm.weight']
    if config.qkv_bias:
      result['query_bias'] = own['self_attn.q_proj.bias'].reshape(H, d)
      result['key_value_bias'] = np.stack(
        [own[f'self_attn.{x}_proj.bias'].reshape(K, d) for x in 'kv']
      )
    layers.append(result)
  params = {
    'embedding': tensors['model.embed_tokens.weight'],
    'final_norm': tensors['model.norm.weight'],
    'layers': jax.tree.map(lambda *leaves: np.stack(leaves), *layers),
  }
  if not config.tied_embeddings:
    params['unembedding'] = tensors['lm_head.weight']
  return params


def _shardings(config, shape):
  mesh = mesh_lib.make(shape)
  return jax.tree.map(
    lambda axes: jax.sharding.NamedSharding(mesh, mesh_lib.spec(axes)),
    model.logical_axes(config),
    is_leaf=lambda node: isinstance(node, tuple),
  )


class LoadTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.create_tempdir().full_path)

  def _write(self, tensors, dtype=np.float32, file='model.safetensors'):
    safetensors_numpy.save_file(
      {name: value.astype(dtype) for name, value in tensors.items()},
      self.folder / file,
    )

  def _write_sharded(self, tensors):
    names = sorted(tensors)
    weight_map = {}
    for part in range(2):
      file = f'model-0000{part + 1}-of-00002.safetensors'
      self._write({name: tensors[name] for name in names[part::2]}, file=file)
      weight_map |= dict.fromkeys(names[part::2], file)
    self._write_index(weight_map)
    return weight_map

  def _write_index(self, weight_map):
    text = json.dumps({'metadata': {}, 'weight_map': weight_map})
    (self.folder / 'model.safetensors.index.json').write_text(text)

  def _assert_refused(self, *messages, config=checkpoint_models.QWEN3):
    """Asserts that these are the complaints, and that nothing is read."""
    with (
      mock.patch.object(hf_layout, 'write', side_effect=AssertionError),
      self.assertRaises(ValueError) as caught,
    ):
      hf.load(self.folder, config)
    head, *lines = str(caught.exception).split('\n  ')
    self.assertEqual(head, f"folder = '{self.folder}': must be loadable:")
    self.assertLen(lines, len(messages), lines)
    for line, message in zip(sorted(lines), sorted(messages), strict=True):
      self.assertStartsWith(line, message)

  def _assert_trees_equal(self, actual, wanted):
    self.assertEqual(jax.tree.structure(actual), jax.tree.structure(wanted))
    jax.tree.map(np.testing.assert_array_equal, actual, wanted)

  @parameterized.parameters(
    (checkpoint_models.QWEN3, np.float32),
    (checkpoint_models.QWEN2, np.float16),
    (checkpoint_models.QWEN3, ml_dtypes.bfloat16),
  )
  def test_every_tensor_goes_to_its_place(self, config, dtype):
    tensors = _tensors(config)
    self._write(tensors, dtype)
    params = hf.load(self.folder, config)
    self._assert_trees_equal(params, _expected(config, tensors))
    init = functools.partial(model.init, config)
    _, like = jax.eval_shape(init, jax.random.key(0))
    for leaf, wanted in zip(
      jax.tree.leaves(params), jax.tree.leaves(like), strict=True
    ):
      self.assertEqual((leaf.shape, leaf.dtype), (wanted.shape, wanted.dtype))
      # As fresh parameters, they may be used together with any others.
      self.assertFalse(leaf.committed)

  def test_several_files_are_read_as_one(self):
    tensors = _tensors(checkpoint_models.QWEN2)
    self._write_sharded(tensors)
    self._assert_trees_equal(
      hf.load(self.folder, checkpoint_models.QWEN2),
      _expected(checkpoint_models.QWEN2, tensors),
    )

  @parameterized.parameters(
    {'data': 1, 'fsdp': 2, 'tensor': 2},
    {'data': 2, 'fsdp': 3, 'tensor': 1},
  )
  def test_each_device_gets_its_part(self, **shape):
    tensors = _tensors(checkpoint_models.QWEN2)
    self._write(tensors, ml_dtypes.bfloat16)
    shardings = _shardings(checkpoint_models.QWEN2, shape)
    sizes = []
    read = hf_files.read

    def spy(stored, name, ranges):
      values = read(stored, name, ranges)
      sizes.append((name, values.size))
      return values

    with mock.patch.object(hf_files, 'read', spy):
      params = hf.load(self.folder, checkpoint_models.QWEN2, shardings)
    self._assert_trees_equal(
      params, _expected(checkpoint_models.QWEN2, tensors)
    )
    jax.tree.map(
      lambda leaf, sharding: self.assertEqual(leaf.sharding, sharding),
      params,
      shardings,
    )
    # No part is read twice, not even those that several devices hold.
    for name, value in tensors.items():
      self.assertEqual(sum(n for key, n in sizes if key == name), value.size)

  @parameterized.parameters(
    (('query',), (None, None, 'a', 'b')),  # Heads and their channels.
    (('key_value',), ('b', 'a')),  # Two of four layers on each device.
    (('key_value',), (None, None, 'a', 'b')),  # Keys here, values there.
  )
  def test_a_leaf_may_be_split_in_any_way(self, path, axes):
    config = dataclasses.replace(checkpoint_models.QWEN3, num_layers=4)
    tensors = _tensors(config)
    self._write(tensors)
    mesh = jax.make_mesh(
      (2, 2), ('a', 'b'), axis_types=(jax.sharding.AxisType.Auto,) * 2
    )
    whole = jax.sharding.NamedSharding(mesh, jax.P())
    shardings = jax.tree.map(lambda _: whole, hf_layout.abstract_params(config))
    split = jax.sharding.NamedSharding(mesh, jax.P(*axes))
    shardings['layers'][path[0]] = split
    params = hf.load(self.folder, config, shardings)
    self._assert_trees_equal(params, _expected(config, tensors))
    self.assertEqual(params['layers'][path[0]].sharding, split)

  def test_a_leaf_is_filled_in_place(self):
    row = hf_layout.tensors(checkpoint_models.QWEN3)['model.norm.weight'].row
    leaf = jnp.zeros(12)
    filled = hf_layout.write(leaf, np.ones(12, 'f'), np.zeros(1, 'i'), row=row)
    self.assertTrue(leaf.is_deleted())
    np.testing.assert_array_equal(filled, 1.0)

  def test_a_host_reads_what_its_own_devices_hold(self):
    shape = (3, 12, 2, 2, 6)
    devices = jax.devices()[:2]
    sharding = mock.Mock()
    sharding.addressable_devices_indices_map.return_value = {
      # All others are on another host.
      device: (slice(None), slice(3, 6), slice(None), slice(1, 2), slice(None))
      for device in devices
    }
    ((box, holders),) = hf_layout.boxes(shape, sharding).items()
    self.assertEqual(holders, devices)
    self.assertEqual(box.shape, (3, 3, 2, 1, 6))
    row = hf_layout.tensors(checkpoint_models.QWEN3)[
      _LAYER + 'self_attn.v_proj.weight'
    ]
    piece = hf_layout.piece_in_box(
      row, box, hf_layout.letter_sizes(checkpoint_models.QWEN3)
    )
    # The second of two heads of six rows, and three columns; layer 1, values.
    self.assertEqual(piece.ranges, (slice(6, 12), slice(3, 6)))
    self.assertEqual(piece.starts, (1, 0, 1, 0, 0))

  def test_all_that_is_wrong_with_the_tensors_is_listed_at_once(self):
    tensors = _tensors(checkpoint_models.QWEN3)
    del tensors['model.norm.weight']
    name = _LAYER + 'mlp.down_proj.weight'
    tensors[name] = tensors[name].T
    tensors[_LAYER + 'self_attn.q_proj.bias'] = np.zeros(24, 'f')
    tensors['model.layers.3.mlp.up_proj.weight'] = np.zeros((10, 12), 'f')
    tensors['score.weight'] = np.zeros((1, 12), 'f')
    self._write(tensors)
    self._assert_refused(
      'model.norm.weight is missing; wanted shape [12]',
      f'{name} has shape [10, 12], wanted [12, 10]',
      f'{_LAYER}self_attn.q_proj.bias of shape [24] is not in the archi',
      'model.layers.3.mlp.up_proj.weight of shape [10, 12] is not in the',
      'score.weight of shape [1, 12] is not in the architecture',
    )

  def test_other_types_are_refused(self):
    tensors = _tensors(checkpoint_models.QWEN3)
    self._write(tensors, np.float64)
    self._assert_refused(
      *(f'{name} has type F64, wanted one of' for name in tensors)
    )

  def test_buffers_of_rotary_embeddings_are_tolerated(self):
    tensors = _tensors(checkpoint_models.QWEN3)
    buffers = {
      _LAYER + 'self_attn.rotary_emb.inv_freq': np.zeros(3, 'f'),
      'model.rotary_emb.inv_freq': np.zeros(3, 'f'),
    }
    self._write({**tensors, **buffers})
    self._assert_trees_equal(
      hf.load(self.folder, checkpoint_models.QWEN3),
      _expected(checkpoint_models.QWEN3, tensors),
    )

  def test_a_tied_output_layer_may_be_stored_if_it_is_the_embedding(self):
    config = dataclasses.replace(checkpoint_models.QWEN3, vocab_size=5000)
    tensors = _tensors(config)
    output = tensors['model.embed_tokens.weight'].copy()
    self._write({**tensors, 'lm_head.weight': output})
    self._assert_trees_equal(
      hf.load(self.folder, config), _expected(config, tensors)
    )
    for row in (0, 4999):
      changed = output.copy()
      changed[row, 11] += 1
      self._write({**tensors, 'lm_head.weight': changed})
      self._assert_refused(
        'lm_head.weight differs from model.embed_tokens.weight, though tie',
        config=config,
      )
    self._write({**tensors, 'lm_head.weight': output[:-1]})
    self._assert_refused('lm_head.weight differs', config=config)
    del tensors['model.embed_tokens.weight']
    self._write({**tensors, 'lm_head.weight': output})
    self._assert_refused('model.embed_tokens.weight is miss', config=config)

  def test_files_that_are_absent_or_ambiguous_are_named(self):
    either = (
      'must be either model.safetensors or model.safetensors.index.json; hf '
      f'download MODEL --local-dir {self.folder} gets the files'
    )
    self._assert_refused(f'files = []: {either}')
    tensors = _tensors(checkpoint_models.QWEN3)
    self._write(tensors)
    self._write_sharded(tensors)
    self._assert_refused(
      "files = ['model.safetensors', 'model.safetensors.index.json']: " + either
    )

  @parameterized.parameters(5, 900, -1)
  def test_a_truncated_file_is_named(self, length):
    self._write(_tensors(checkpoint_models.QWEN3))
    path = self.folder / 'model.safetensors'
    path.write_bytes(path.read_bytes()[:length])
    self._assert_refused('model.safetensors cannot be read: ')

  def test_all_that_is_wrong_with_several_files_is_listed_at_once(self):
    tensors = _tensors(checkpoint_models.QWEN3)
    weight_map = self._write_sharded(tensors)
    first, second = sorted(set(weight_map.values()))
    in_first = [name for name in weight_map if weight_map[name] == first]
    (self.folder / second).unlink()
    weight_map['extra.weight'] = first
    weight_map['model.norm.weight'] = 'gone.safetensors'
    self._write_index(weight_map)
    self._assert_refused(
      f'{second} is missing; the index says that it holds ',
      'gone.safetensors is missing; the index says that it holds 1 tensors',
      f'extra.weight is in index but not in {first}',
      *(
        [f'model.norm.weight is in {first} but not in index']
        if 'model.norm.weight' in in_first
        else []
      ),
    )

  def test_a_damaged_file_among_several_is_named_once(self):
    weight_map = self._write_sharded(_tensors(checkpoint_models.QWEN3))
    file = sorted(set(weight_map.values()))[1]
    path = self.folder / file
    path.write_bytes(path.read_bytes()[:-4])
    self._assert_refused(f'{file} cannot be read: ')

  @parameterized.parameters(
    (np.float32, checkpoint_models.QWEN3),
    (np.float16, checkpoint_models.QWEN2),
    (ml_dtypes.bfloat16, checkpoint_models.QWEN2),
  )
  def test_weights_that_are_not_finite_are_refused(self, dtype, config):
    tensors = _tensors(config)
    norm = 'model.layers.2.input_layernorm.weight'
    query = _LAYER + 'self_attn.q_proj.weight'
    tensors[norm][[3, 5]] = np.nan, -np.inf
    tensors[query][0, 0] = np.inf
    self._write(tensors, dtype)
    shape = {'data': 1, 'fsdp': 2, 'tensor': 2}
    for shardings in (None, _shardings(config, shape)):
      with self.assertRaises(ValueError) as caught:
        hf.load(self.folder, config, shardings)
      head, *lines = str(caught.exception).split('\n  ')
      self.assertEqual(head, f"folder = '{self.folder}': must be loadable:")
      self.assertCountEqual(
        lines,
        [
          f'{norm} has 2 values that are NaN or infinite',
          f'{query} has 1 values that are NaN or infinite',
        ],
      )

  def test_a_nan_of_a_tied_output_layer_is_no_difference(self):
    tensors = _tensors(checkpoint_models.QWEN3)
    tensors['model.embed_tokens.weight'][0, 0] = np.nan
    output = tensors['model.embed_tokens.weight'].copy()
    self._write({**tensors, 'lm_head.weight': output})
    with self.assertRaisesRegex(
      ValueError, 'embed_tokens.weight has 1 values that are NaN'
    ):
      hf.load(self.folder, checkpoint_models.QWEN3)

  def test_more_layers_than_tensors_are_refused_at_once(self):
    tensors = _tensors(checkpoint_models.QWEN3)
    self._write(tensors)
    self._assert_refused(
      f'num_layers = 1000000000: must be at most the {len(tensors)} stored',
      config=dataclasses.replace(checkpoint_models.QWEN3, num_layers=10**9),
    )

  def test_shardings_of_another_tree_are_refused(self):
    self._write(_tensors(checkpoint_models.QWEN3))
    shardings = _shardings(
      checkpoint_models.QWEN2, {'data': 1, 'fsdp': 1, 'tensor': 1}
    )
    with self.assertRaisesRegex(
      ValueError, r"missing .*key_norm.*surplus .*\['unembedding'\]"
    ):
      hf.load(self.folder, checkpoint_models.QWEN3, shardings)

  def test_the_package_that_is_missing_is_named(self):
    self._write(_tensors(checkpoint_models.QWEN3))
    with (
      mock.patch.dict('sys.modules', {'safetensors': None}),
      self.assertRaisesRegex(ImportError, r"pip install -e '\.\[math\]'"),
    ):
      hf.load(self.folder, checkpoint_models.QWEN3)
