"""Qwen2.5-7B on mathematics: the headline run of the replay paper.

Question: does a replay buffer reach the same accuracy with up to 40 % less
compute, as "Efficient RL Training for LLMs with Experience Replay" (arXiv
2604.08706, figure 1) found with this model? Its settings: trained on
OpenR1-Math-220k, evaluated on MATH; GRPO with 16 rollouts a prompt and a clip
of .2, Adam at a constant 6.8e-8 for this model, temperature 1, a buffer sampled
uniformly. The paper is asynchronous; here reuse is explicit. It trains on 60
rollouts an update, which 16 does not divide; here 64, which is 4 prompts of 16
and divides over 2, 4, 8 or 16 devices. Lengths, moments of Adam and gradient
clip are ours.

The arms, as `--config=configs/math_qwen2_5_7b.py:<arm>`:
  on_policy  each rollout is learned from once, and then forgotten
  reuse_2    (the default) two updates per iteration from a FIFO buffer of the
             last four iterations, sampled uniformly
  reuse_4    four updates per iteration from that buffer

Needs the checkpoint with its tokenizer, and the prepared data:
  hf download Qwen/Qwen2.5-7B --local-dir checkpoints/Qwen2.5-7B
  python scripts/prepare_data.py --source=jsonl --name=openr1_math \
      --input=train=openr1_math.jsonl --out=data
  python scripts/prepare_data.py --source=jsonl --name=math500 \
      --input=test=math500.jsonl --out=data
Command: python -m replay_rl.train \
    --config=configs/math_qwen2_5_7b.py:reuse_2 --workdir=runs/math_7b_reuse_2
Before it: python -m replay_rl.plan --config=configs/math_qwen2_5_7b.py \
    --device=h100
Made for 8 H100s or larger. Cost and result: not yet measured.
"""

from replay_rl.run import config as config_lib

_CHECKPOINT = 'checkpoints/Qwen2.5-7B'
_NUM_PROMPTS = 4
_GROUP_SIZE = 16  # The paper's.
_FRESH = _NUM_PROMPTS * _GROUP_SIZE  # Rollouts of an iteration.


def get_config(arm: str = 'reuse_2') -> config_lib.Config:
  updates = {'on_policy': 1, 'reuse_2': 2, 'reuse_4': 4}[arm]
  is_replayed = arm != 'on_policy'
  return config_lib.Config(
    name=arm.replace('_', ' '),
    seed=0,
    num_seeds=1,  # The paper runs at least four, here as runs of their own.
    vmap_seeds=False,
    num_iterations=2000 // updates,
    mu=5.28,  # Of this model in the paper.
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
      'Qwen2.5-7B', checkpoint=_CHECKPOINT, compute_dtype='bfloat16'
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
      capacity=4 * _FRESH if is_replayed else _FRESH,
      batch_size=_FRESH,
      updates_per_iteration=updates,
      compose='pure_buffer()' if is_replayed else 'fresh_only()',
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
      learning_rate=6.8e-8,
      warmup_steps=0,
      b1=0.9,
      b2=0.999,
      eps=1e-8,
      weight_decay=0.0,
      max_grad_norm=1.0,
      num_microbatches=8,
      logits_chunk=128,
      remat=True,
    ),
    evaluation=config_lib.Evaluation(every=50, num_prompts=32, num_samples=4),
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
