"""What the experiments on a CPU share: a transformer of 206k parameters.

In a warm start the model learns to imitate the task's teacher, which makes
mistakes. The run then learns from the reward. Here is the on-policy arm; `arms`
has the others.
"""

from replay_rl.run import config as config_lib

# With 62, the sampler reads 62 x 8 x 8 prompt tokens at a time, and an update
# reads 248 x 13. From 4096 tokens on, XLA:CPU sums norms in another order, and
# log-probabilities of sampler and learner would differ.
_NUM_PROMPTS = 62
GROUP_SIZE = 8
NUM_FRESH = _NUM_PROMPTS * GROUP_SIZE  # Rollouts of an iteration.


def on_policy(
  task: str, *, num_iterations: int, learning_rate: float
) -> config_lib.Config:
  return config_lib.Config(
    name='on policy',
    seed=0,
    num_seeds=4,
    vmap_seeds=False,  # On a CPU, seeds in turn are faster.
    num_iterations=num_iterations,
    stop=None,
    mu=5.28,  # Of Qwen2.5-7B in arXiv 2604.08706; on a CPU it is below 1.
    cache_dir='~/.cache/replay_rl',
    task=task,
    reward='correctness()',
    schedule='synchronous()',
    text=None,
    model=config_lib.Model(
      vocab_size=None,
      d_model=96,
      num_layers=2,
      num_heads=4,
      num_kv_heads=2,
      head_dim=24,
      d_ff=256,
      rope_theta=10_000.0,
      rope_scaling=None,
      norm_eps=1e-6,
      qk_norm=False,
      qkv_bias=False,
      tied_embeddings=True,
      compute_dtype='float32',
      checkpoint=None,
    ),
    warm_start=config_lib.WarmStart(
      num_steps=400,
      batch_size=128,
      learning_rate=3e-3,
      warmup_steps=0,  # With 40, the run has less left to learn.
      transform='adamw(b1=0.9, b2=0.98, eps=1e-8, weight_decay=0.0)',
      max_grad_norm=1.0,
      seed=0,
    ),
    sampler=config_lib.Sampler(
      num_prompts=_NUM_PROMPTS,
      group_size=GROUP_SIZE,
      temperature=1.0,
      top_k=None,
      top_p=None,
      num_slots=None,
      weight_lag=0,
      num_distinct_prompts=None,
      prompts='in_order()',
    ),
    replay=config_lib.Replay(
      capacity=NUM_FRESH,
      batch_size=None,
      updates_per_iteration=1,
      compose='fresh_only()',
      weights=None,
      draw=None,
      keep='ring()',
      feedback=None,
      drop_zero_variance=False,
      num_prompts=None,
    ),
    loss=config_lib.Loss(
      advantage='group_standardized(eps=1e-6)',
      batch_advantage=None,
      policy='clipped_surrogate(clip_low=0.2, clip_high=0.28, dual_clip=None)',
      normalizer='token_mean()',
      row_weights=None,
      statistics=None,
    ),
    optimizer=config_lib.Optimizer(
      learning_rate=learning_rate,
      warmup_steps=15,
      transform='adamw(b1=0.9, b2=0.98, eps=1e-8, weight_decay=0.0)',
      gate=None,
      max_grad_norm=1.0,
      microbatch_rows=NUM_FRESH // 2,
      packed_tokens=None,
      logits_chunk=None,
      remat=False,
    ),
    evaluation=config_lib.Evaluation(
      every=20,
      every_cost=None,
      num_prompts=64,
      num_samples=8,
      temperature=1.0,
      top_p=None,
    ),
    logging=config_lib.Logging(
      histogram_bins=32,
      age_buckets=(1, 2, 4, 8, 16, 32),
      age_grad_norms=False,
      time_events=False,
      writers='tensorboard()',
      samples_every=20,
      num_samples=8,
    ),
    checkpoint=config_lib.Checkpoint(every=20, keep=3),
    mesh=config_lib.Mesh(
      shape={'data': 1, 'fsdp': 1, 'tensor': 1},
      sampler_shape=None,
      buffer_memory='device',
    ),
  )
