"""A random Qwen3 of 5M parameters on GSM8K: every part of a text run, on a CPU.

Not an experiment: the model is far too small to learn anything. It shows that
prompts, tokenizer, verifier, replay and evaluation work together on real rows,
before a large run is paid for. Weight decay moves the weights even where no
answer is right.

Needs the Qwen3 tokenizer and the prepared data:
  hf download Qwen/Qwen3-0.6B-Base --local-dir checkpoints/Qwen3-0.6B-Base
  python scripts/prepare_data.py --source=gsm8k --out=data
Command: python -m replay_rl.train --config=configs/gsm8k_tiny.py \
    --workdir=runs/gsm8k_tiny
Takes about a minute on 2 CPU cores; the reward stays near 0.
"""

from replay_rl.run import config as config_lib


def get_config() -> config_lib.Config:
  return config_lib.Config(
    name='gsm8k tiny',
    seed=0,
    num_seeds=1,
    vmap_seeds=False,
    num_iterations=3,
    mu=6.84,  # Qwen3-0.6B in arXiv 2604.08706.
    cache_dir='~/.cache/replay_rl',
    task='problems()',
    text=config_lib.Text(
      problems='data/gsm8k/1.0.0',
      split='train',
      evaluation_problems='data/gsm8k/1.0.0',
      evaluation_split='test',
      tokenizer='checkpoints/Qwen3-0.6B-Base',
      template='Question: {problem}\nAnswer:',
      use_chat_template=False,
      system_message=None,
      max_prompt_tokens=256,
      drop_long_prompts=True,
      max_new_tokens=16,
      reward='correctness()',
      num_workers=2,
      answer_timeout=5.0,
      memory_limit=2**31,
      max_answer_chars=1000,
    ),
    model=config_lib.Model(
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
    ),
    warm_start=config_lib.WarmStart(
      num_steps=0, batch_size=1, learning_rate=0.0, warmup_steps=0, seed=0
    ),
    sampler=config_lib.Sampler(
      num_prompts=4,
      group_size=4,
      temperature=1.0,
      top_k=None,
      top_p=None,
      weight_lag=0,
    ),
    replay=config_lib.Replay(
      capacity=32,
      batch_size=8,
      updates_per_iteration=2,
      compose='pure_buffer()',
      weights='uniform()',
      draw='blocked_inverse_cdf(stratified=False)',
      keep='ring()',
      drop_zero_variance=False,
    ),
    loss=config_lib.Loss(
      advantage='group_standardized(eps=1e-6)',
      policy='clipped_surrogate(clip_low=0.2, clip_high=0.2, dual_clip=None)',
      normalizer='token_mean()',
    ),
    optimizer=config_lib.Optimizer(
      learning_rate=1e-3,
      warmup_steps=0,
      b1=0.9,
      b2=0.999,
      eps=1e-8,
      weight_decay=0.01,
      max_grad_norm=1.0,
      num_microbatches=1,
      logits_chunk=16,
      remat=True,
    ),
    evaluation=config_lib.Evaluation(every=3, num_prompts=8, num_samples=2),
    logging=config_lib.Logging(
      histogram_bins=8, tensorboard=False, samples_every=1, num_samples=4
    ),
    checkpoint=config_lib.Checkpoint(every=1, keep=2),
    mesh=config_lib.Mesh(
      shape={'data': 1, 'fsdp': 1, 'tensor': 1},
      sampler_shape=None,
      buffer_memory='device',
    ),
  )
