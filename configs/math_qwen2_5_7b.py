"""Qwen2.5-7B on mathematics: the headline run of the replay paper.

Question: does a replay buffer reach the same accuracy with up to 40 % less
compute? "Efficient RL Training for LLMs with Experience Replay" (arXiv
2604.08706, figure 1) reports this for the model. The settings are those of
configs/base_math.py. The learning rate and mu are the paper's for this model.

The arms, as `--config=configs/math_qwen2_5_7b.py:<arm>`:
  on_policy  learns from each rollout once
  reuse_2    (the default) two updates per iteration from a FIFO buffer of the
             last four iterations, sampled uniformly
  reuse_4    four updates per iteration from that buffer

Needs the checkpoint with its tokenizer, and the prepared data:
  hf download Qwen/Qwen2.5-7B --local-dir checkpoints/Qwen2.5-7B
  openr1_math and math500, by the commands of scripts/README.md
Command: python -m replay_rl.train \
    --config=configs/math_qwen2_5_7b.py:reuse_2 --workdir=runs/math_7b_reuse_2
Before it: python -m replay_rl.plan memory \
    --config=configs/math_qwen2_5_7b.py --device=h100
Needs 8 H100s, or larger devices. Cost and result: not yet measured.
"""

from replay_rl.configs import arms
from replay_rl.configs import base_math
from replay_rl.run import config as config_lib


def get_config(arm: str = 'reuse_2') -> config_lib.Config:
  config = base_math.on_policy('Qwen2.5-7B', mu=5.28, learning_rate=6.8e-8)
  return arms.chosen(config, arm, base_math.ARMS)
