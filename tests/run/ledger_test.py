"""Tests of the ledger."""

import jax
import jax.numpy as jnp
from absl.testing import absltest

from replay_rl.lm import architecture
from replay_rl.run import ledger


class LedgerTest(absltest.TestCase):
  def test_adds_each_named_counter_and_leaves_the_others(self):
    counted = ledger.add(ledger.init(), rollouts=3, trained_tokens=5)
    counted = ledger.add(counted, rollouts=4)
    totals = {k: ledger.total(v) for k, v in counted._asdict().items()}
    expected = dict.fromkeys(ledger.Ledger._fields, 0)
    self.assertEqual(totals, expected | {'rollouts': 7, 'trained_tokens': 5})

  def test_counts_past_2_to_the_32_exactly(self):
    almost = jnp.array([7, 2**32 - 3], jnp.uint32)
    start = ledger.init()._replace(generated_tokens=almost)
    add = jax.jit(lambda state, n: ledger.add(state, generated_tokens=n))
    before = (7 << 32) + 2**32 - 3
    for count in (0, 2, 3, 1000):
      actual = ledger.total(add(start, jnp.int32(count)).generated_tokens)
      self.assertEqual(actual, before + count)

  def test_prices_follow_from_the_counts_by_hand(self):
    transformer = architecture.TransformerConfig(
      vocab_size=10,
      d_model=4,
      num_layers=1,
      num_heads=2,
      num_kv_heads=1,
      head_dim=2,
      d_ff=8,
      rope_theta=1e4,
      rope_scaling=None,
      norm_eps=1e-6,
      qk_norm=False,
      qkv_bias=False,
      tied_embeddings=True,
      max_context=5,
      compute_dtype='float32',
    )
    # Weights per token: query 16, key 8, value 8, output 16, gate, up and down
    # 96, logits 40: 184, two FLOPs each. Attention: scores and values, 2 heads
    # of 2 channels, 5 columns, 2 FLOPs each: 80.
    flops = 2 * 184 + 80
    counted = ledger.add(
      ledger.init(),
      rollouts=2,
      prompt_tokens=6,
      generated_tokens=7,
      updates=1,
      trained_rollouts=5,
      trained_tokens=17,
      trained_prompt_tokens=15,
    )
    prices = ledger.prices(counted, transformer, mu=1.5)
    self.assertEqual(prices['prefill_flops'], 6 * flops)
    self.assertEqual(prices['decode_flops'], 7 * flops)
    self.assertEqual(prices['training_flops'], 3 * 32 * flops)
    self.assertEqual(prices['cost_units'], 5 + 1.5 * 2)
    self.assertEqual(prices['generated_tokens'], 7)
