"""Llama-3.2-3B on mathematics: does the saving of replay need a Qwen?

Question: "Efficient RL Training for LLMs with Experience Replay" (arXiv
2604.08706) repeats its comparison with this model, which was trained on less
mathematics. Is the saving the same? The settings are those of
configs/base_math.py. The paper gives neither the learning rate nor mu of this
model. The rate 1.5e-7 is one of the paper's sweep, 1.5^i 1e-7, and lies between
the rates of the next smaller and the next larger model; mu is that of
Qwen2.5-7B.

The arms, as `--config=configs/math_llama3_2_3b.py:<arm>`:
  on_policy  learns from each rollout once
  reuse_2    (the default) two updates per iteration from a FIFO buffer of the
             last four iterations, sampled uniformly
  reuse_4    four updates per iteration from that buffer

Needs the checkpoint with its tokenizer, and the prepared data:
  hf download meta-llama/Llama-3.2-3B --local-dir checkpoints/Llama-3.2-3B
  openr1_math and math500, by the commands of scripts/README.md
Command: python -m replay_rl.train \
    --config=configs/math_llama3_2_3b.py:reuse_2 --workdir=runs/math_3b_reuse_2
Before it: python -m replay_rl.plan memory \
    --config=configs/math_llama3_2_3b.py --device=h100
Needs 8 H100s, or larger devices. Cost and result: not yet measured.
"""

from replay_rl.configs import arms
from replay_rl.configs import base_math
from replay_rl.run import config as config_lib


def get_config(arm: str = 'reuse_2') -> config_lib.Config:
  config = base_math.on_policy('Llama-3.2-3B', mu=5.28, learning_rate=1.5e-7)
  config.text.template = (
    '<|begin_of_text|>{problem}\nReason step by step, and put the final '
    'answer within \\boxed{{}}.'
  )
  return arms.chosen(config, arm, base_math.ARMS)
