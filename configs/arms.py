"""Arms of a study: each is a set of changes to the same on-policy run.

A change has the path of a field, such as `replay.capacity`, and a value, as an
override on the command line has. The on-policy run draws nothing, so its
`replay.batch_size`, `replay.weights` and `replay.draw` are None.
"""

from collections.abc import Mapping
from typing import Any

from replay_rl.run import config as config_lib

# "Rollout-Level Advantage-Prioritized Experience Replay for GRPO"
# (arXiv 2606.04560): one update per iteration on the fresh rollouts and half as
# many older ones, drawn by |advantage|, at most 10 learner steps old.
PRIORITIZED = {
  'replay.compose': 'fresh_anchored(replay_fraction=0.5, warmup_steps=20)',
  'replay.weights': 'advantage_magnitude(exponent=0.5) * max_age(limit=10)',
  'replay.draw': 'gumbel_top_k()',
  'replay.drop_zero_variance': True,
}

# "Prioritized Experience Replay" (arXiv 1511.05952) with its correction of the
# weights, on top of a reuse: priorities follow the policy, and the rate follows
# the effective sample size ("VCPO", arXiv 2602.17616).
PER = {
  'replay.weights': 'proportional(exponent=0.6)',
  'replay.draw': 'blocked_inverse_cdf(stratified=True)',
  'replay.feedback': 'reweighted_advantage_magnitude()',
  'loss.row_weights': 'per_importance_weights(exponent=0.4)',
  'optimizer.gate': 'ess_scaled_rate(on_policy_ess=1.0)',
}


def reuse(updates_per_iteration: int, num_fresh: int) -> dict[str, Any]:
  """Returns the changes for a FIFO buffer that is sampled uniformly.

  "Efficient RL Training for LLMs with Experience Replay" (arXiv 2604.08706).
  The buffer holds the last four iterations.

  Args:
    updates_per_iteration: updates in which a rollout is used, on average.
    num_fresh: rollouts of an iteration, and of an update.
  """
  return {
    'replay.capacity': 4 * num_fresh,
    'replay.batch_size': num_fresh,
    'replay.updates_per_iteration': updates_per_iteration,
    'replay.compose': 'pure_buffer(rows_in_use=None)',
    'replay.weights': 'uniform()',
    'replay.draw': 'blocked_inverse_cdf(stratified=False)',
  }


def chosen(
  config: config_lib.Config, arm: str, arms: Mapping[str, Mapping[str, Any]]
) -> config_lib.Config:
  """Returns the config with the changes of one arm, named after the arm.

  Args:
    config: the on-policy run.
    arm: one of `arms`.
    arms: the changes of each arm.

  Raises:
    ValueError: an unknown arm.
  """
  if arm not in arms:
    raise ValueError(f'arm = {arm!r}: must be one of {", ".join(arms)}')
  name = {'name': arm.replace('_', ' ')}
  return config_lib.changed(config, {**arms[arm], **name})
