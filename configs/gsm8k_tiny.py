"""A random Qwen3 of 5M parameters on GSM8K: every part of a text run, on a CPU.

Question: do prompts, tokenizer, verifier, replay and evaluation work together
on real rows? Run it before you pay for a large run. It is no experiment: the
model is far too small to learn anything. Weight decay moves the weights even if
no answer is right. All settings that this file does not change are those of
configs/gsm8k_qwen3_0_6b.py. There is one arm.

Needs the Qwen3 tokenizer and the prepared data:
  hf download Qwen/Qwen3-0.6B-Base --local-dir checkpoints/Qwen3-0.6B-Base
  python scripts/prepare_data.py --source=gsm8k --out=data
Command: python -m replay_rl.train --config=configs/gsm8k_tiny.py \
    --workdir=runs/gsm8k_tiny
Cost: about a minute on 2 CPU cores. Result: the reward stays near 0.
"""

from replay_rl.configs import gsm8k_qwen3_0_6b
from replay_rl.run import config as config_lib


def get_config() -> config_lib.Config:
  config = gsm8k_qwen3_0_6b.get_config('reuse_2')
  config.name = 'gsm8k tiny'
  config.num_iterations = 3
  config.text.template = 'Question: {problem}\nAnswer:'
  config.text.max_new_tokens = 16
  config.text.num_workers = 2
  config.text.max_answer_chars = 1000
  config.model = config_lib.Model(
    vocab_size=151_936,
    d_model=32,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    d_ff=96,
    rope_theta=1e6,
    rope_scaling=None,
    norm_eps=1e-6,
    qk_norm=True,
    qkv_bias=False,
    tied_embeddings=True,
    compute_dtype='float32',
    checkpoint=None,
  )
  config.sampler.group_size = 4
  config.replay.capacity = 32
  config.replay.batch_size = 8
  config.optimizer.learning_rate = 1e-3
  config.optimizer.transform = (
    'adamw(b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.01)'
  )
  config.optimizer.microbatch_rows = None
  config.optimizer.logits_chunk = 16
  config.evaluation = config_lib.Evaluation(
    every=3,
    every_cost=None,
    num_prompts=8,
    num_samples=2,
    temperature=1.0,
    top_p=None,
  )
  config.logging = config_lib.Logging(
    histogram_bins=8,
    age_buckets=(1, 2, 4),
    age_grad_norms=False,
    time_events=False,
    writers=None,
    samples_every=1,
    num_samples=4,
  )
  config.checkpoint.every = 1
  return config
