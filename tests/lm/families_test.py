"""Tests for `replay_rl.lm.families` against the published numbers."""

import json
import math
import unittest

import jax
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
  def test_every_published_model_is_named_with_its_numbers_and_size(self):
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
        leaves = jax.tree.leaves(hf_layout.abstract_params(config))
        for count in (
          architecture.num_params(config),
          sum(leaf.size for leaf in leaves),
          sum(math.prod(t.shape) for t in hf_layout.tensors(config).values()),
        ):
          self.assertEqual(count, entry['param_count_computed'])

  def test_a_shape_is_the_model_with_the_callers_context(self):
    config = families.shape(
      'Llama-3.2-1B', max_context=512, compute_dtype='float32'
    )
    self.assertEqual(
      (config.max_context, config.compute_dtype), (512, 'float32')
    )
    self.assertEqual(config.rope_scaling.factor, 32.0)
    longest = families.shape(
      'Qwen2.5-Math-1.5B', max_context=4096, compute_dtype='bfloat16'
    )
    self.assertEqual(longest, families.MODELS['Qwen2.5-Math-1.5B'])

  def test_a_wrong_argument_is_named(self):
    with self.assertRaisesRegex(
      ValueError, "name = 'Qwen3-9B': must be one of"
    ):
      families.shape('Qwen3-9B', max_context=1, compute_dtype='float32')
    with self.assertRaisesRegex(
      ValueError,
      'max_context = 4097: must be at most 4096 for Qwen2.5-Math-1.5B',
    ):
      families.shape(
        'Qwen2.5-Math-1.5B', max_context=4097, compute_dtype='float32'
      )
