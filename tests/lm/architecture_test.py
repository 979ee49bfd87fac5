"""Tests for `replay_rl.lm.architecture`."""

import dataclasses

from absl.testing import parameterized

from replay_rl.lm import architecture
from replay_rl.lm import families
from tests.lm import small_models

_CONFIG = dataclasses.replace(
  small_models.TIED, vocab_size=10, d_model=8, num_layers=3, d_ff=5
)


class ArchitectureTest(parameterized.TestCase):
  def test_counts_of_a_small_model_worked_out_by_hand(self):
    # A layer: queries 8 x 24, keys 8 x 12, values 8 x 12, output 24 x 8, three
    # feed-forward matrices 8 x 5: 192 + 96 + 96 + 192 + 120 = 696 weights.
    # Three layers and the output layer 8 x 10: 3 x 696 + 80 = 2168.
    self.assertEqual(architecture.flops_per_token(_CONFIG), 2 * 2168)
    # Norms: two of 8 in each layer and one at the end.
    self.assertEqual(architecture.num_params(_CONFIG), 2168 + 3 * 16 + 8)
    # Scores and mixing: 2 x 24 multiply-adds for each of 7 tokens, 3 layers.
    self.assertEqual(architecture.attention_flops(_CONFIG, 7), 2 * 48 * 7 * 3)

  def test_options_add_their_parameters(self):
    def count(**options):
      changed = dataclasses.replace(_CONFIG, **options)
      plain = architecture.num_params(_CONFIG)
      return architecture.num_params(changed) - plain

    self.assertEqual(count(tied_embeddings=False), 80)
    self.assertEqual(count(qk_norm=True), 3 * 2 * 6)
    self.assertEqual(count(qkv_bias=True), 3 * (24 + 12 + 12))

  def test_published_checkpoints_have_their_published_size(self):
    for name, count in (
      ('Qwen3-0.6B-Base', 596_049_920),
      ('Qwen2.5-7B', 7_615_616_512),
      ('Llama-3.2-1B', 1_235_814_400),
    ):
      self.assertEqual(architecture.num_params(families.MODELS[name]), count)

  @parameterized.parameters(
    ({'vocab_size': 0}, 'vocab_size = 0: must be positive'),
    ({'num_layers': -1}, 'num_layers = -1: must be positive'),
    ({'norm_eps': 0.0}, 'norm_eps = 0.0: must be positive'),
    ({'rope_theta': 0.0}, 'rope_theta = 0.0: must be positive'),
    ({'max_context': 0}, 'max_context = 0: must be positive'),
    (
      {'num_kv_heads': 3},
      'num_heads = 4: must be a multiple of num_kv_heads = 3',
    ),
    ({'head_dim': 5}, 'head_dim = 5: must be even'),
    (
      {'compute_dtype': 'float16'},
      "compute_dtype = 'float16': must be float32 or bfloat16",
    ),
  )
  def test_a_wrong_field_is_named(self, change, message):
    with self.assertRaisesRegex(ValueError, message):
      dataclasses.replace(_CONFIG, **change)
