"""Qwen3-4B-Base on mathematics with prioritized replay beside fresh rollouts.

Question: does replay by |advantage| beat GRPO by the 4.35 points on five
benchmarks that "Rollout-Level Advantage-Prioritized Experience Replay for GRPO"
(arXiv 2606.04560) reports for this model? Its settings: all fresh rollouts and
half as many older ones, drawn without replacement by |advantage|^.5, at most 10
learner steps old, from the 20th update on; capacity 30000, which never binds;
groups of equal rewards dropped; clip .2 / .28, dual clip 10, mean over tokens,
no KL; Adam at 1e-6 with weight decay .01 and gradient clip 1. The number of
prompts and of rollouts of each, lengths and mu are ours: 128 rollouts and up to
64 older ones make 192 rows an update, which divides over 2, 4 or 8 devices.

The arms, as `--config=configs/math_qwen3_4b_prioritized.py:<arm>`:
  on_policy    the fresh rollouts alone
  prioritized  (the default) with replay

Needs the checkpoint with its tokenizer, and the prepared data:
  hf download Qwen/Qwen3-4B-Base --local-dir checkpoints/Qwen3-4B-Base
  python scripts/prepare_data.py --source=jsonl --name=openr1_math \
      --input=train=openr1_math.jsonl --out=data
  python scripts/prepare_data.py --source=jsonl --name=math500 \
      --input=test=math500.jsonl --out=data
Command: python -m replay_rl.train \
    --config=configs/math_qwen3_4b_prioritized.py:prioritized \
    --workdir=runs/math_4b
Before it: python -m replay_rl.plan \
    --config=configs/math_qwen3_4b_prioritized.py --device=h100
Made for 8 H100s or larger. Cost and result: not yet measured.
"""

from replay_rl.run import config as config_lib

_CHECKPOINT = 'checkpoints/Qwen3-4B-Base'
_NUM_PROMPTS = 16
_GROUP_SIZE = 8
_FRESH = _NUM_PROMPTS * _GROUP_SIZE  # Rollouts of an iteration.


def get_config(arm: str = 'prioritized') -> config_lib.Config:
  compose = {
    'on_policy': 'fresh_only()',
    'prioritized': 'fresh_anchored(replay_fraction=0.5, warmup_steps=20)',
  }[arm]
  return config_lib.Config(
    name=arm.replace('_', ' '),
    seed=0,
    num_seeds=1,
    vmap_seeds=False,
    num_iterations=500,
    mu=5.28,  # Of Qwen2.5-7B in arXiv 2604.08706.
    cache_dir='~/.cache/replay_rl',
    task='problems()',
    text=config_lib.Text(
      problems='data/problems/openr1_math/1.0.0',
      split='train',
      evaluation_problems='data/problems/math500/1.0.0',
      evaluation_split='test',
      tokenizer=_CHECKPOINT,
      template=(
        '{problem}\nReason step by step, and put the final answer '
        'within \\boxed{{}}.'
      ),
      use_chat_template=False,
      system_message=None,
      max_prompt_tokens=512,
      drop_long_prompts=True,
      max_new_tokens=2048,
      reward='correctness()',
      num_workers=8,
      answer_timeout=5.0,
      memory_limit=2**31,
      max_answer_chars=10_000,
    ),
    model=config_lib.model_of(
      'Qwen3-4B-Base', checkpoint=_CHECKPOINT, compute_dtype='bfloat16'
    ),
    warm_start=config_lib.WarmStart(
      num_steps=0, batch_size=1, learning_rate=0.0, warmup_steps=0, seed=0
    ),
    sampler=config_lib.Sampler(
      num_prompts=_NUM_PROMPTS,
      group_size=_GROUP_SIZE,
      temperature=1.0,
      top_k=None,
      top_p=None,
      weight_lag=0,
    ),
    replay=config_lib.Replay(
      capacity=30_000,  # Never binding: ages 0 to 10, one iteration each,
      batch_size=_FRESH,
      updates_per_iteration=1,
      compose=compose,
      weights='advantage_magnitude(exponent=0.5) * max_age(limit=10)',
      draw='gumbel_top_k()',
      keep='ring()',
      drop_zero_variance=True,
    ),
    loss=config_lib.Loss(
      advantage='group_standardized(eps=1e-6)',
      policy='clipped_surrogate(clip_low=0.2, clip_high=0.28, dual_clip=10.0)',
      normalizer='token_mean()',
    ),
    optimizer=config_lib.Optimizer(
      learning_rate=1e-6,
      warmup_steps=0,
      b1=0.9,
      b2=0.999,
      eps=1e-8,
      weight_decay=0.01,
      max_grad_norm=1.0,
      num_microbatches=24 if arm == 'prioritized' else 16,
      logits_chunk=128,
      remat=True,
    ),
    evaluation=config_lib.Evaluation(every=50, num_prompts=32, num_samples=2),
    logging=config_lib.Logging(
      histogram_bins=32, tensorboard=True, samples_every=20, num_samples=8
    ),
    checkpoint=config_lib.Checkpoint(every=50, keep=2),
    mesh=config_lib.Mesh(
      shape={'data': 1, 'fsdp': 8, 'tensor': 1},
      sampler_shape=None,
      buffer_memory='device',
    ),
  )
