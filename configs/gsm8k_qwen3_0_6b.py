"""Qwen3-0.6B-Base on GSM8K: how much generation does a replay buffer save?

Question: "Efficient RL Training for LLMs with Experience Replay" (arXiv
2604.08706) reports a saving on harder problems. Does it show with the smallest
model of that paper on GSM8K, where a run is cheap? The settings are those of
configs/base_math.py, with shorter prompts and responses and more prompts to
evaluate on. The learning rate and mu are the paper's for this model.

The arms, as `--config=configs/gsm8k_qwen3_0_6b.py:<arm>`:
  on_policy  learns from each rollout once
  reuse_2    (the default) two updates per iteration from a FIFO buffer of the
             last four iterations, sampled uniformly
  reuse_4    four updates per iteration from that buffer

Needs the checkpoint with its tokenizer, and the prepared data:
  hf download Qwen/Qwen3-0.6B-Base --local-dir checkpoints/Qwen3-0.6B-Base
  python scripts/prepare_data.py --source=gsm8k --out=data
Command: python -m replay_rl.train \
    --config=configs/gsm8k_qwen3_0_6b.py:reuse_2 --workdir=runs/gsm8k_reuse_2
Before it: python -m replay_rl.plan memory \
    --config=configs/gsm8k_qwen3_0_6b.py --device=h200
Needs one H100, or a larger device. Cost and result: not yet measured.
"""

from replay_rl.configs import arms
from replay_rl.configs import base_math
from replay_rl.run import config as config_lib


def get_config(arm: str = 'reuse_2') -> config_lib.Config:
  config = base_math.on_policy(
    'Qwen3-0.6B-Base', mu=6.84, learning_rate=3.37e-7
  )
  config.text.problems = config.text.evaluation_problems = 'data/gsm8k/1.0.0'
  config.text.template = (
    'Question: {problem}\nReason step by step, and put the final answer '
    'within \\boxed{{}}.\nAnswer:'
  )
  config.text.max_prompt_tokens = 256
  config.text.max_new_tokens = 1024
  config.optimizer.microbatch_rows = 16
  config.evaluation.num_prompts = 64
  config.mesh.shape = {'data': 1, 'fsdp': 1, 'tensor': 1}
  config.mesh.sampler_shape = None
  return arms.chosen(config, arm, base_math.ARMS)
