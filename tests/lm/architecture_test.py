"""Tests for `replay_rl.lm.architecture`."""

import dataclasses

from absl.testing import absltest
from absl.testing import parameterized

from replay_rl.lm import architecture

_CONFIG = architecture.TransformerConfig(
  vocab_size=10,
  d_model=8,
  num_layers=3,
  num_heads=4,
  num_kv_heads=2,
  head_dim=6,
  d_ff=5,
  rope_theta=10_000.0,
  rope_scaling=None,
  norm_eps=1e-6,
  qk_norm=False,
  qkv_bias=False,
  tied_embeddings=True,
  max_context=32,
  compute_dtype='float32',
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
    # The config.json files of Qwen/Qwen3-0.6B-Base and Qwen/Qwen2.5-7B.
    qwen3 = dataclasses.replace(
      _CONFIG,
      vocab_size=151936,
      d_model=1024,
      num_layers=28,
      num_heads=16,
      num_kv_heads=8,
      head_dim=128,
      d_ff=3072,
      qk_norm=True,
    )
    self.assertEqual(architecture.num_params(qwen3), 596_049_920)
    qwen25 = dataclasses.replace(
      _CONFIG,
      vocab_size=152064,
      d_model=3584,
      num_layers=28,
      num_heads=28,
      num_kv_heads=4,
      head_dim=128,
      d_ff=18944,
      qkv_bias=True,
      tied_embeddings=False,
    )
    self.assertEqual(architecture.num_params(qwen25), 7_615_616_512)

  @parameterized.parameters(
    ({'vocab_size': 0}, 'vocab_size=0 must be positive'),
    ({'num_layers': -1}, 'num_layers=-1 must be positive'),
    ({'norm_eps': 0.0}, 'norm_eps=0.0 must be positive'),
    ({'rope_theta': 0.0}, 'rope_theta=0.0 must be positive'),
    ({'max_context': 0}, 'max_context=0 must be positive'),
    ({'num_kv_heads': 3}, 'num_heads=4 must be a multiple of num_kv_heads=3'),
    ({'head_dim': 5}, 'head_dim=5 must be even'),
    (
      {'compute_dtype': 'float16'},
      "compute_dtype='float16' must be float32 or bfloat16",
    ),
  )
  def test_a_wrong_field_is_named(self, change, message):
    with self.assertRaisesRegex(ValueError, message):
      dataclasses.replace(_CONFIG, **change)


if __name__ == '__main__':
  absltest.main()
