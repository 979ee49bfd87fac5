"""Replay against on-policy GRPO on 3-digit addition, on a CPU.

Question: how many generated tokens does replay save on the way to a reward of
.7, after "Efficient RL Training for LLMs with Experience Replay"
(arXiv 2604.08706), and with the prioritized, fresh-anchored replay of
"Rollout-Level Advantage-Prioritized Experience Replay for GRPO"
(arXiv 2606.04560)?

The model of 206k parameters imitates a teacher that forgets
seven carries of ten, and then learns from the reward. The arms, as
`--config=configs/quickstart.py:<arm>`:
  on_policy    each rollout is learned from once, and then forgotten
  reuse_2      (the default) two updates per iteration from a FIFO buffer of the
               last four iterations, sampled uniformly
  reuse_4      four updates per iteration from that buffer
  prioritized  one update per iteration on the fresh rollouts and half as many
               older ones, drawn by |advantage|, at most 10 learner steps old

Command: python -m replay_rl.train --config=configs/quickstart.py:reuse_4 \
    --workdir=runs/reuse_4
All arms and the report: bash scripts/quickstart.sh
Takes 6 min on 2 CPU cores. Median saving in generated tokens at a reward of .7:
36 % (reuse_2), 52 % (reuse_4), 8 % (prioritized); twelve more seeds say 33 and
53 % for the first two. With half the prompts, which save tokens themselves, it
is about 30 and 40 %; see experiments/quickstart.
"""

from replay_rl.run import config as config_lib

# The sampler then reads 62 x 8 x 8 prompt tokens at a time, an update 248 x 13.
# From 4096 on, XLA:CPU sums norms in another order, which would show as a gap
# between the log-probabilities of sampler and learner.
_NUM_PROMPTS = 62
_GROUP_SIZE = 8
_FRESH = _NUM_PROMPTS * _GROUP_SIZE  # Rollouts of an iteration.


def get_config(arm: str = 'reuse_2') -> config_lib.Config:
  return config_lib.Config(
    name=arm.replace('_', ' '),
    seed=0,
    num_seeds=4,
    vmap_seeds=False,  # On a CPU, seeds in turn are faster.
    num_iterations={
      'on_policy': 70,
      'reuse_2': 50,
      'reuse_4': 36,
      'prioritized': 70,
    }[arm],
    mu=5.28,  # Qwen2.5-7B in arXiv 2604.08706; on a CPU it is below 1.
    cache_dir='~/.cache/replay_rl',
    task='addition(num_digits=3, forget_probability=0.7)',
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
      warmup_steps=0,  # With 40, the base model leaves less to learn.
      seed=0,
    ),
    sampler=config_lib.Sampler(
      num_prompts=_NUM_PROMPTS,
      group_size=_GROUP_SIZE,
      temperature=1.0,
      top_k=None,
      top_p=None,
      weight_lag=0,
    ),
    replay=_replay(arm),
    loss=config_lib.Loss(
      advantage='group_standardized(eps=1e-6)',
      policy='clipped_surrogate(clip_low=0.2, clip_high=0.28, dual_clip=None)',
      normalizer='token_mean()',
    ),
    optimizer=config_lib.Optimizer(
      # Tried for every arm but prioritized; see experiments/quickstart.
      learning_rate=5e-4 if arm == 'reuse_4' else 7e-4,
      warmup_steps=15,
      b1=0.9,
      b2=0.98,
      eps=1e-8,
      weight_decay=0.0,
      max_grad_norm=1.0,
      num_microbatches=3 if arm == 'prioritized' else 2,
      logits_chunk=None,
      remat=False,
    ),
    evaluation=config_lib.Evaluation(every=20, num_prompts=64, num_samples=8),
    logging=config_lib.Logging(
      histogram_bins=32, tensorboard=True, samples_every=20, num_samples=8
    ),
    checkpoint=config_lib.Checkpoint(every=20, keep=3),
    mesh=config_lib.Mesh(
      shape={'data': 1, 'fsdp': 1, 'tensor': 1},
      sampler_shape=None,
      buffer_memory='device',
    ),
  )


def _replay(arm: str) -> config_lib.Replay:
  if arm == 'prioritized':
    return config_lib.Replay(
      capacity=12 * _FRESH,  # Never binding: ages 0 to 10, one iteration each.
      batch_size=_FRESH,
      updates_per_iteration=1,
      compose='fresh_anchored(replay_fraction=0.5, warmup_steps=20)',
      weights='advantage_magnitude(exponent=0.5) * max_age(limit=10)',
      draw='gumbel_top_k()',
      keep='ring()',
      drop_zero_variance=True,
    )
  is_replayed = arm != 'on_policy'
  return config_lib.Replay(
    capacity=4 * _FRESH if is_replayed else _FRESH,
    batch_size=_FRESH,
    updates_per_iteration={'on_policy': 1, 'reuse_2': 2, 'reuse_4': 4}[arm],
    compose='pure_buffer()' if is_replayed else 'fresh_only()',
    weights='uniform()',
    draw='blocked_inverse_cdf(stratified=False)',
    keep='ring()',
    drop_zero_variance=False,
  )
