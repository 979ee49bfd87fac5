"""Tests for `replay_rl.lm.families` against the published numbers."""

import json
import unittest

from absl.testing import absltest
from absl.testing import parameterized

from replay_rl.lm import architecture
from replay_rl.lm import families
from replay_rl.lm.hf import config as hf_config
from replay_rl.lm.hf import layout as hf_layout
from tests import shared_data

_FOLDER = shared_data.folder()
# Not known to the file: see the issues of the model's repository.
_CONTEXTS = {'Qwen2.5-Math-1.5B': 4096}


def _published():
  path = _FOLDER / 'configs' / 'model_configs.json'
  entries = json.loads(path.read_text())
  for name, entry in entries.items():
    if entry['max_position_embeddings'] is None:
      entry['max_position_embeddings'] = _CONTEXTS[name]
  return entries


class FamiliesTest(parameterized.TestCase):
  @unittest.skipIf(_FOLDER is None, shared_data.ABSENT)
  def test_every_published_model_is_named_with_its_numbers(self):
    entries = _published()
    self.assertEqual(set(entries), set(families.MODELS))
    self.assertLen(entries, 11)
    for name, entry in entries.items():
      with self.subTest(name):
        config = hf_config.config_from_numbers(
          entry,
          max_context=entry['max_position_embeddings'],
          compute_dtype='bfloat16',
        )
        self.assertEqual(config, families.MODELS[name])

  @unittest.skipIf(_FOLDER is None, shared_data.ABSENT)
  def test_counts_and_shapes_are_those_of_the_checkpoints(self):
    for name, entry in _published().items():
      with self.subTest(name):
        config = families.MODELS[name]
        shapes = _leaf_shapes(entry)
        params = hf_layout.abstract_params(config)
        found = {
          '.'.join(path): hf_layout.leaf_at(params, path).shape
          for path in hf_layout.paths(params)
        }
        self.assertEqual(found, shapes)
        count = entry['param_count_computed']
        self.assertEqual(architecture.num_params(config), count)
        self.assertEqual(sum(map(_product, found.values())), count)
        tensors = hf_layout.tensors(config)
        self.assertEqual(
          sum(_product(tensor.shape) for tensor in tensors.values()), count
        )

  def test_a_shape_is_the_model_with_the_callers_context(self):
    config = families.shape(
      'Llama-3.2-1B', max_context=512, compute_dtype='float32'
    )
    self.assertEqual(
      (config.max_context, config.compute_dtype), (512, 'float32')
    )
    self.assertEqual(config.rope_scaling.factor, 32.0)
    self.assertEqual(architecture.num_params(config), 1_235_814_400)
    longest = families.shape(
      'Qwen2.5-Math-1.5B', max_context=4096, compute_dtype='bfloat16'
    )
    self.assertEqual(longest, families.MODELS['Qwen2.5-Math-1.5B'])

  def test_a_wrong_argument_is_named(self):
    with self.assertRaisesRegex(ValueError, "name='Qwen3-9B' must be one of"):
      families.shape('Qwen3-9B', max_context=1, compute_dtype='float32')
    with self.assertRaisesRegex(
      ValueError, 'max_context=4097 exceeds the 4096 of Qwen2.5-Math-1.5B'
    ):
      families.shape(
        'Qwen2.5-Math-1.5B', max_context=4097, compute_dtype='float32'
      )


def _leaf_shapes(entry):
  """Returns the shapes of our parameters, worked out from the numbers."""
  N, D, F = (
    entry['num_hidden_layers'],
    entry['hidden_size'],
    entry['intermediate_size'],
  )
  V, d = entry['vocab_size'], entry['head_dim']
  H, K = entry['num_attention_heads'], entry['num_key_value_heads']
  shapes = {
    'embedding': (V, D),
    'final_norm': (D,),
    'layers.attention_norm': (N, D),
    'layers.mlp_norm': (N, D),
    'layers.query': (N, D, H, d),
    'layers.key_value': (N, D, 2, K, d),
    'layers.output': (N, H, d, D),
    'layers.gate_up': (N, D, 2, F),
    'layers.down': (N, F, D),
  }
  if not entry['tie_word_embeddings']:
    shapes['unembedding'] = (V, D)
  if entry['model_type'] == 'qwen3':
    shapes |= {'layers.query_norm': (N, d), 'layers.key_norm': (N, d)}
  if entry['model_type'] == 'qwen2':
    shapes['layers.query_bias'] = (N, H, d)
    shapes['layers.key_value_bias'] = (N, 2, K, d)
  return shapes


def _product(shape):
  result = 1
  for size in shape:
    result *= size
  return result


if __name__ == '__main__':
  absltest.main()
