"""Qwen3-0.6B-Base on GSM8K: how much generation does a replay buffer save?

Question: does the saving that "Efficient RL Training for LLMs with Experience
Replay" (arXiv 2604.08706) found on harder problems show with the smallest model
of that paper on GSM8K, where a run is cheap? The settings are the paper's: GRPO
with 16 rollouts a prompt and a clip of .2, Adam at a constant 3.37e-7 for this
model, temperature 1, a buffer sampled uniformly. The paper trains on 60
rollouts an update, which 16 does not divide; here 64, which is 4 prompts of 16
and divides over 2, 4, 8 or 16 devices. Moments of Adam, gradient clip and
lengths are ours.

The arms, as `--config=configs/gsm8k_qwen3_0_6b.py:<arm>`:
  on_policy  each rollout is learned from once, and then forgotten
  reuse_2    (the default) two updates per iteration from a FIFO buffer of the
             last four iterations, sampled uniformly
  reuse_4    four updates per iteration from that buffer

Needs the checkpoint with its tokenizer, and the prepared data:
  hf download Qwen/Qwen3-0.6B-Base --local-dir checkpoints/Qwen3-0.6B-Base
  python scripts/prepare_data.py --source=gsm8k --out=data
Command: python -m replay_rl.train \
    --config=configs/gsm8k_qwen3_0_6b.py:reuse_2 --workdir=runs/gsm8k_reuse_2
Before it: python -m replay_rl.plan --config=configs/gsm8k_qwen3_0_6b.py \
    --device=h200
Made for one H100 or larger. Cost and result: not yet measured.
"""

from replay_rl.run import config as config_lib

_CHECKPOINT = 'checkpoints/Qwen3-0.6B-Base'
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
    mu=6.84,  # Of this model in the paper.
    cache_dir='~/.cache/replay_rl',
    task='problems()',
    text=config_lib.Text(
      problems='data/gsm8k/1.0.0',
      split='train',
      evaluation_problems='data/gsm8k/1.0.0',
      evaluation_split='test',
      tokenizer=_CHECKPOINT,
      template=(
        'Question: {problem}\nReason step by step, and put the final answer '
        'within \\boxed{{}}.\nAnswer:'
      ),
      use_chat_template=False,
      system_message=None,
      max_prompt_tokens=256,
      drop_long_prompts=True,
      max_new_tokens=1024,
      reward='correctness()',
      num_workers=8,
      answer_timeout=5.0,
      memory_limit=2**31,
      max_answer_chars=10_000,
    ),
    model=config_lib.model_of(
      'Qwen3-0.6B-Base', checkpoint=_CHECKPOINT, compute_dtype='bfloat16'
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
      learning_rate=3.37e-7,
      warmup_steps=0,
      b1=0.9,
      b2=0.999,
      eps=1e-8,
      weight_decay=0.0,
      max_grad_norm=1.0,
      num_microbatches=4,
      logits_chunk=128,
      remat=True,
    ),
    evaluation=config_lib.Evaluation(every=50, num_prompts=64, num_samples=4),
    logging=config_lib.Logging(
      histogram_bins=32, tensorboard=True, samples_every=20, num_samples=8
    ),
    checkpoint=config_lib.Checkpoint(every=50, keep=2),
    mesh=config_lib.Mesh(
      shape={'data': 1, 'fsdp': 1, 'tensor': 1},
      sampler_shape=None,
      buffer_memory='device',
    ),
  )
