"""Qwen3-4B-Base on mathematics with prioritized replay beside fresh rollouts.

Question: does replay by |advantage| beat GRPO by the 4.35 points on five
benchmarks that "Rollout-Level Advantage-Prioritized Experience Replay for GRPO"
(arXiv 2606.04560) reports for this model? The settings are the paper's: all
fresh rollouts and half as many older ones, drawn without replacement by
|advantage|^.5, at most 10 learner steps old, from the 20th update on; capacity
30000; groups of equal rewards are dropped; clip .2 / .28, dual clip 10, mean
over tokens, no KL; Adam at 1e-6 with weight decay .01 and gradient clip 1. The
number of prompts and of rollouts of each, lengths and mu are ours: 128 rollouts
and up to 64 older ones make 192 rows an update, which 2, 4 or 8 devices divide.
All other settings are those of configs/base_math.py.

The arms, as `--config=configs/math_qwen3_4b_prioritized.py:<arm>`:
  on_policy    the fresh rollouts alone
  prioritized  (the default) with replay

Needs the checkpoint with its tokenizer, and the prepared data:
  hf download Qwen/Qwen3-4B-Base --local-dir checkpoints/Qwen3-4B-Base
  openr1_math and math500, by the commands of scripts/README.md
Command: python -m replay_rl.train \
    --config=configs/math_qwen3_4b_prioritized.py:prioritized \
    --workdir=runs/math_4b
Before it: python -m replay_rl.plan memory \
    --config=configs/math_qwen3_4b_prioritized.py --device=h100
Needs 8 H100s, or larger devices. Cost and result: not yet measured.
"""

from replay_rl.configs import arms
from replay_rl.configs import base_math
from replay_rl.run import config as config_lib

_ARMS = {
  'on_policy': {},
  'prioritized': arms.PRIORITIZED,
}


def get_config(arm: str = 'prioritized') -> config_lib.Config:
  config = base_math.on_policy(
    'Qwen3-4B-Base',
    mu=5.28,  # Of Qwen2.5-7B in arXiv 2604.08706.
    learning_rate=1e-6,
  )
  config.num_iterations = 500
  config.sampler.num_prompts = 16
  config.sampler.group_size = 8
  # Always enough: ages are 0 to 10, and each is one iteration.
  config.replay.capacity = 30_000
  config.replay.drop_zero_variance = True
  config.loss.policy = (
    'clipped_surrogate(clip_low=0.2, clip_high=0.28, dual_clip=10.0)'
  )
  config.optimizer.transform = (
    'adamw(b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.01)'
  )
  config.optimizer.microbatch_rows = 8
  config.evaluation.num_samples = 2
  return arms.chosen(config, arm, _ARMS)
