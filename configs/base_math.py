"""What the experiments with published models on mathematics share.

Most settings come from "Efficient RL Training for LLMs with Experience
Replay" (arXiv 2604.08706): training on OpenR1-Math-220k, evaluation on MATH;
GRPO with 16 rollouts a prompt and a clip of .2; Adam at a constant rate;
temperature 1. The paper is asynchronous; here the config says how often
rollouts are reused. The paper has 60 rollouts an update, which 16 does not
divide. Here there are 64: 4 prompts of 16, which 2, 4, 8 or 16 devices divide.
Lengths, the decay rates of Adam and the gradient clip are ours. The paper has
at least four seeds; here each seed is a run of its own.
"""

from replay_rl.configs import arms
from replay_rl.configs import models
from replay_rl.run import config as config_lib

_NUM_PROMPTS = 4
_GROUP_SIZE = 16
_NUM_FRESH = _NUM_PROMPTS * _GROUP_SIZE  # Rollouts of an iteration.

# All arms make 2000 updates.
ARMS = {
  'on_policy': {'num_iterations': 2000},
  'reuse_2': arms.reuse(2, _NUM_FRESH) | {'num_iterations': 1000},
  'reuse_4': arms.reuse(4, _NUM_FRESH) | {'num_iterations': 500},
}


def on_policy(
  model: str, *, mu: float, learning_rate: float
) -> config_lib.Config:
  checkpoint = f'checkpoints/{model}'
  return config_lib.Config(
    name='on policy',
    seed=0,
    num_seeds=1,
    vmap_seeds=False,
    num_iterations=2000,
    stop=None,
    mu=mu,
    cache_dir='~/.cache/replay_rl',
    task='problems()',
    reward='correctness()',
    schedule='synchronous()',
    text=config_lib.Text(
      problems='data/problems/openr1_math/1.0.0',
      split='train',
      evaluation_problems='data/problems/math500/1.0.0',
      evaluation_split='test',
      tokenizer=checkpoint,
      template=(
        '{problem}\nReason step by step, and put the final answer '
        'within \\boxed{{}}.'
      ),
      use_chat_template=False,
      system_message=None,
      chat_variables=None,
      max_prompt_tokens=512,
      drop_long_prompts=True,
      max_new_tokens=2048,
      num_workers=8,
      answer_timeout=5.0,
      memory_limit=2**31,
      max_answer_chars=10_000,
      judge_every=None,
      reward_fn=None,
    ),
    model=models.published(
      model, checkpoint=checkpoint, compute_dtype='bfloat16'
    ),
    warm_start=config_lib.WarmStart(
      num_steps=0,
      batch_size=1,
      learning_rate=0.0,
      warmup_steps=0,
      transform='adamw(b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.0)',
      max_grad_norm=1.0,
      seed=0,
    ),
    sampler=config_lib.Sampler(
      num_prompts=_NUM_PROMPTS,
      group_size=_GROUP_SIZE,
      temperature=1.0,
      top_k=None,
      top_p=None,
      num_slots=None,
      weight_lag=0,
      num_distinct_prompts=None,
      prompts='in_order()',
    ),
    replay=config_lib.Replay(
      capacity=_NUM_FRESH,
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
      policy='clipped_surrogate(clip_low=0.2, clip_high=0.2, dual_clip=None)',
      normalizer='token_mean()',
      row_weights=None,
      statistics=None,
    ),
    optimizer=config_lib.Optimizer(
      learning_rate=learning_rate,
      warmup_steps=0,
      transform='adamw(b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.0)',
      gate=None,
      max_grad_norm=1.0,
      microbatch_rows=8,
      packed_tokens=None,
      logits_chunk=128,
      remat=True,
    ),
    evaluation=config_lib.Evaluation(
      every=50,
      every_cost=None,
      num_prompts=32,
      num_samples=4,
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
    checkpoint=config_lib.Checkpoint(every=50, keep=2),
    mesh=config_lib.Mesh(
      shape={'data': 1, 'fsdp': 8, 'tensor': 1},
      sampler_shape={'data': -1, 'fsdp': 1, 'tensor': 1},
      buffer_memory='device',
    ),
  )
