"""Replay against on-policy GRPO on 3-digit addition, on a CPU.

Question: what does replay save on the way to 80 % of held-out sums, if each arm
has the batch and the learning rate that suit it best? After "Efficient RL
Training for LLMs with Experience Replay" (arXiv 2604.08706), and with the
prioritized, fresh-anchored replay of "Rollout-Level Advantage-Prioritized
Experience Replay for GRPO" (arXiv 2606.04560).

The model is that of configs/base_small.py. It imitates a teacher that forgets
seven of ten carries, and then learns from the reward. A seed ends when two
evaluations in a row are at the level, or with its budget. The arms, as
`--config=configs/quickstart.py:<arm>`:
  on_policy    learns from each rollout once
  reuse_2      (the default) an update on twice as many rows as an iteration has
               new ones, from a FIFO buffer of the last four iterations, sampled
               uniformly
  reuse_4      on four times as many rows, from that buffer
  prioritized  one update per iteration on the fresh rollouts and half as many
               older ones, drawn by |advantage|, at most 10 learner steps old
               (at the batch and rate of on_policy, not tuned)
  per          reuse_2 with rows drawn by a priority that each update renews, a
               loss that corrects for it, and a learning rate that falls with
               the effective sample size (not tuned, not yet measured)

Command: python -m replay_rl.train --config=configs/quickstart.py:reuse_4 \
    --workdir=runs/reuse_4
All arms and the report: bash scripts/quickstart.sh
Cost and result: see experiments/replay_study, where the batches and rates of
on_policy, reuse_2 and reuse_4 come from.
"""

from typing import Any

from replay_rl.configs import arms
from replay_rl.configs import base_small
from replay_rl.run import config as config_lib

_LEVEL = 0.8
_BUDGET = 60_000  # Cost units of a seed.


def _arm(
  num_prompts: int, uses: int | None, learning_rate: float
) -> dict[str, Any]:
  """Returns the changes for `uses` rows of an update per new rollout."""
  num_fresh = num_prompts * base_small.GROUP_SIZE
  changes = {
    'sampler.num_prompts': num_prompts,
    'replay.capacity': num_fresh,
    'optimizer.learning_rate': learning_rate,
  }
  if uses is None:
    return changes
  return (
    changes | arms.reuse(1, num_fresh) | {'replay.batch_size': uses * num_fresh}
  )


_ON_POLICY, _REUSE_2 = _arm(2, None, 0.875e-4), _arm(2, 2, 0.4375e-4)
_ARMS = {
  'on_policy': _ON_POLICY,
  'reuse_2': _REUSE_2,
  'reuse_4': _arm(1, 4, 0.4375e-4),
  'prioritized': _ON_POLICY
  | arms.PRIORITIZED
  | {
    # Always enough: ages are 0 to 10, and each is one iteration.
    'replay.capacity': 12 * _ON_POLICY['replay.capacity'],
  },
  'per': _REUSE_2 | arms.PER,
}


def get_config(arm: str = 'reuse_2') -> config_lib.Config:
  config = base_small.on_policy(
    'addition(num_digits=3, forget_probability=0.7)',
    num_iterations=2000,  # The level or the cost ends a run before.
    learning_rate=0.875e-4,
  )
  config = config_lib.changed(
    config,
    {
      'stop': f'level(greedy={_LEVEL}, num_evaluations=2) + '
      f'max_cost(cost_units={_BUDGET})',
      'evaluation.every': 0,
      'evaluation.every_cost': 1000.0,
      'evaluation.num_prompts': 256,
      'evaluation.num_samples': 1,
      'logging.samples_every': 50,
      'checkpoint.every': 100,
    },
  )
  return arms.chosen(config, arm, _ARMS)
