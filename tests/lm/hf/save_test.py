"""Tests for `replay_rl.lm.hf.checkpoint.save`."""

import dataclasses
import json
import os
import pathlib
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
from absl.testing import parameterized

from replay_rl.lm import architecture
from replay_rl.lm import model
from replay_rl.lm import tokenizer
from replay_rl.lm.hf import checkpoint as hf
from replay_rl.lm.hf import config as hf_config
from replay_rl.lm.hf import files as hf_files
from replay_rl.parallel import mesh as mesh_lib
from tests import tiny_tokenizer
from tests.lm.hf import checkpoint_models

_init_model = jax.jit(model.init, static_argnums=0)


def _init(config):
  _, params = _init_model(config, jax.random.key(0))
  rng = np.random.default_rng(0)
  return jax.tree.map(
    lambda leaf: jnp.asarray(
      np.asarray(leaf) + rng.normal(size=leaf.shape).astype('f')
    ),
    params,
  )


def _save(folder, config=checkpoint_models.QWEN3, params=None, **options):
  hf.save(
    folder,
    config,
    _init(config) if params is None else params,
    **{
      'dtype': 'float32',
      'max_file_bytes': 10**9,
      'max_position_embeddings': 16,
      'bos_id': None,
      'eos_ids': (1,),
      **options,
    },
  )


class SaveTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.parent = pathlib.Path(self.create_tempdir().full_path)
    self.folder = self.parent / 'model'

  def _load(self):
    config = hf_config.read_config(
      self.folder, max_context=16, compute_dtype='float32'
    )
    return config, hf.load(self.folder, config)

  @parameterized.parameters(
    (checkpoint_models.QWEN3, 'float32'),
    (checkpoint_models.QWEN2, 'bfloat16'),
    (checkpoint_models.LLAMA, 'float32'),
  )
  def test_what_is_saved_is_loaded(self, config, dtype):
    params = _init(config)
    _save(self.folder, config, params, dtype=dtype)
    actual, loaded = self._load()
    self.assertEqual(actual, config)
    rounded = jax.tree.map(
      lambda leaf: leaf.astype(dtype).astype('float32'), params
    )
    jax.tree.map(np.testing.assert_array_equal, loaded, rounded)
    self.assertEqual(
      {path.name for path in self.folder.iterdir()},
      {'config.json', 'generation_config.json', 'model.safetensors'},
    )
    self.assertLen(list(self.parent.iterdir()), 1)
    with safetensors.safe_open(
      self.folder / 'model.safetensors', framework='numpy'
    ) as file:
      self.assertEqual(file.metadata(), {'format': 'pt'})
      name = 'model.layers.2.self_attn.v_proj.weight'
      # Rows are the outputs: two heads of six channels.
      np.testing.assert_array_equal(
        file.get_tensor(name),
        np.asarray(rounded['layers']['key_value'])[2, :, 1]
        .reshape(12, 12)
        .T.astype(dtype),
      )

  @parameterized.parameters(3000, 9000)
  def test_no_file_exceeds_the_size_given(self, limit):
    params = _init(checkpoint_models.QWEN2)
    _save(self.folder, checkpoint_models.QWEN2, params, max_file_bytes=limit)
    files = sorted(self.folder.glob('*.safetensors'))
    self.assertGreater(len(files), 2)
    self.assertEqual(
      [path.name for path in files],
      [
        f'model-{i + 1:05d}-of-{len(files):05d}.safetensors'
        for i in range(len(files))
      ],
    )
    sizes = [path.stat().st_size for path in files]
    self.assertLessEqual(max(sizes), limit)
    # No two neighbors would fit into one file.
    for one, other in zip(sizes, sizes[1:], strict=False):
      self.assertGreater(one + other, limit)
    index = json.loads(
      (self.folder / 'model.safetensors.index.json').read_text()
    )
    num_bytes = 4 * architecture.num_params(checkpoint_models.QWEN2)
    self.assertEqual(index['metadata'], {'total_size': num_bytes})
    for path in files:
      # What comes before the data is a multiple of eight bytes.
      header = int.from_bytes(path.read_bytes()[:8], 'little')
      self.assertEqual(header % 8, 0)
    _, loaded = self._load()
    jax.tree.map(np.testing.assert_array_equal, loaded, params)

  def test_the_limit_is_met_to_the_byte(self):
    _save(self.folder)
    size = (self.folder / 'model.safetensors').stat().st_size
    for limit, count in ((size, 1), (size - 1, 2)):
      folder = self.parent / f'{limit}'
      _save(folder, max_file_bytes=limit)
      self.assertLen(list(folder.glob('*.safetensors')), count)
      has_index = (folder / 'model.safetensors.index.json').exists()
      self.assertEqual(has_index, count == 2)
    # That of the largest tensor; see the test of wrong arguments.
    _save(self.parent / 'least', max_file_bytes=1296)

  def test_one_tensor_at_a_time_is_on_the_host(self):
    largest = max(
      leaf.nbytes for leaf in jax.tree.leaves(_init(checkpoint_models.QWEN3))
    )
    fetched = []
    get = jax.device_get

    def spy(array):
      fetched.append(array.nbytes)
      return get(array)

    with mock.patch.object(jax, 'device_get', spy):
      _save(self.folder)
    self.assertLen(fetched, 2 + 3 * 11)
    self.assertLess(max(fetched), largest)

  def test_parameters_may_be_split_over_devices(self):
    params = _init(checkpoint_models.QWEN2)
    mesh = mesh_lib.make({'data': 2, 'fsdp': 2, 'tensor': 2})
    split = jax.tree.map(
      lambda leaf, axes: jax.device_put(
        leaf, jax.sharding.NamedSharding(mesh, mesh_lib.spec(axes))
      ),
      params,
      model.logical_axes(checkpoint_models.QWEN2),
    )
    _save(self.folder, checkpoint_models.QWEN2, split)
    _, loaded = self._load()
    jax.tree.map(np.testing.assert_array_equal, loaded, params)

  def test_tokenizer_files_are_copied(self):
    source = self.parent / 'tokenizer'
    source.mkdir()
    with self.assertRaisesRegex(
      ValueError, "tokenizer_folder = .*tokenizer': must have"
    ):
      _save(self.folder, tokenizer_folder=source)
    for name in ('tokenizer.json', 'merges.txt', 'chat_template.jinja'):
      (source / name).write_text(name)
    (source / 'pytorch_model.bin').write_text('weights')
    (source / 'config.json').write_text('another')
    _save(self.folder, tokenizer_folder=source)
    self.assertEqual(
      {path.name for path in self.folder.iterdir()},
      {
        'config.json',
        'generation_config.json',
        'model.safetensors',
        'tokenizer.json',
        'merges.txt',
        'chat_template.jinja',
      },
    )
    self.assertEqual((self.folder / 'merges.txt').read_text(), 'merges.txt')
    self._load()

  def test_an_exported_model_stops_where_its_source_stops(self):
    source = self.parent / 'tokenizer'
    source.mkdir()
    tiny_tokenizer.write(source)
    path = source / 'generation_config.json'
    tiny_tokenizer.change_json(path, temperature=0.6)
    words = tokenizer.load(source)
    self.assertLen(words.eos_ids, 2)
    config = dataclasses.replace(
      checkpoint_models.QWEN3, vocab_size=words.vocab_size
    )
    _save(self.folder, config, eos_ids=words.eos_ids, tokenizer_folder=source)
    exported = tokenizer.load(self.folder)
    for name in ('eos_ids', 'pad_id', 'bos_ids', 'content_hash'):
      self.assertEqual(getattr(exported, name), getattr(words, name))
    contents = [
      json.loads((self.folder / name).read_text())
      for name in ('config.json', 'generation_config.json')
    ]
    for content in contents:
      self.assertEqual(content['eos_token_id'], list(words.eos_ids))
    self.assertEqual(contents[1]['temperature'], 0.6)
    # The argument goes before the source.
    other = self.parent / 'other'
    _save(other, config, eos_ids=words.eos_ids[1:], tokenizer_folder=source)
    self.assertEqual(tokenizer.load(other).eos_ids, words.eos_ids[1:])
    # Then config.json says so.
    (self.folder / 'generation_config.json').unlink()
    self.assertEqual(tokenizer.load(self.folder).eos_ids, words.eos_ids)

  def test_a_damaged_generation_config_is_named_and_nothing_written(self):
    source = self.parent / 'tokenizer'
    source.mkdir()
    tiny_tokenizer.write(source)
    (source / 'generation_config.json').write_text('{')
    with self.assertRaisesRegex(ValueError, r'generation_config\.json'):
      _save(self.folder, tokenizer_folder=source)
    self.assertEqual(list(self.parent.iterdir()), [source])

  def test_nothing_is_overwritten(self):
    self.folder.mkdir()
    with self.assertRaisesRegex(
      ValueError, "folder = .*model': must not exist"
    ):
      _save(self.folder)
    self.assertEmpty(list(self.folder.iterdir()))

  def test_a_folder_made_meanwhile_is_kept(self):
    write = hf_files.write

    def slow(path, tensors, fetch):
      write(path, tensors, fetch)
      self.folder.mkdir()

    with (
      mock.patch.object(hf_files, 'write', slow),
      self.assertRaisesRegex(ValueError, 'must not appear meanwhile'),
    ):
      _save(self.folder)
    self.assertEqual(list(self.parent.iterdir()), [self.folder])
    self.assertEmpty(list(self.folder.iterdir()))

  def test_a_failure_leaves_nothing_behind(self):
    seen = []

    def fail(path, tensors, fetch):
      del tensors, fetch
      seen.append(path.parent)
      raise OSError('disk full')

    with (
      mock.patch.object(hf_files, 'write', fail),
      self.assertRaisesRegex(OSError, 'disk full'),
    ):
      _save(self.folder)
    self.assertEmpty(list(self.parent.iterdir()))
    # Beside the target, and hidden.
    self.assertEqual(seen[0].parent, self.parent)
    self.assertStartsWith(seen[0].name, '.model.partial')

  def test_the_folder_can_be_read_by_whoever_may_read_others(self):
    mask = os.umask(0o022)
    self.addCleanup(os.umask, mask)
    _save(self.folder)
    self.assertEqual(self.folder.stat().st_mode & 0o777, 0o755)

  @parameterized.parameters(
    ({'dtype': 'float16'}, "dtype = 'float16': must be float32 or bfloat16"),
    ({'max_file_bytes': 1000}, '= 1000: must be at least 1296 for model.l'),
    ({'eos_ids': (18,)}, r'eos_ids = \(18,\): must be in'),
    (
      {'max_position_embeddings': 15},
      ' = 15: must be at least max_context = 16',
    ),
  )
  def test_a_wrong_argument_is_named(self, options, message):
    with self.assertRaisesRegex(ValueError, message):
      _save(self.folder, **options)
    self.assertEmpty(list(self.parent.iterdir()))

  def test_parameters_of_another_architecture_are_refused(self):
    with self.assertRaisesRegex(
      ValueError, r"missing .*key_norm.*surplus = .*\['unembedding'\]"
    ):
      _save(
        self.folder, checkpoint_models.QWEN3, _init(checkpoint_models.QWEN2)
      )
    params = _init(checkpoint_models.QWEN3)
    params['embedding'] = params['embedding'][1:]
    params['layers']['down'] = params['layers']['down'].astype(jnp.bfloat16)
    params['final_norm'] = mock.Mock(
      shape=(12,), dtype=np.dtype('float32'), is_fully_addressable=False
    )
    with self.assertRaises(ValueError) as caught:
      _save(self.folder, checkpoint_models.QWEN3, params)
    self.assertEqual(
      str(caught.exception).split('; '),
      [
        'params.embedding = float32[17, 12]: must be float32[18, 12]',
        'params.final_norm = a part: must be whole on this host',
        'params.layers.down = bfloat16[3, 10, 12]: must be float32[3, 10, 12]',
      ],
    )
    self.assertEmpty(list(self.parent.iterdir()))
