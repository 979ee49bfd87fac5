"""Which losses bear stale rollouts: method x lag, on addition, seeds 0 and 1.

Question: how much accuracy does each correction keep where the sampler's
weights are 4, 16 or 64 learner steps old? Each iteration has 32 rollouts and
two updates on 16 of them, so that every rollout is used once and the proximal
policy of decoupled PPO is that before the first of the two.

Command: python -m replay_rl.sweep --out=runs/prioritized_replay/stability \
    --sweep=experiments/prioritized_replay/stability.py
Cost and result: see README.md.
"""

from experiments.prioritized_replay import study
from replay_rl.sweep import cells

_BATCH = 16
_LAGS = (0, 4, 16, 64)  # Learner steps.
_RATES = (0.875e-4, 1.75e-4)
_CLIP = 'clip_low=0.2, clip_high=0.28'
# Name -> loss.policy, loss.statistics, optimizer.gate.
_METHODS = {
  'none': ('reinforce()', None, None),
  'clip': (f'clipped_surrogate({_CLIP}, dual_clip=10.0)', None, None),
  'TIS': ('truncated_importance_sampling(max_ratio=2.0)', None, None),
  'MIS': ('masked_importance_sampling(max_ratio=2.0)', None, None),
  'TOPR': ('topr()', None, None),
  'M2PO': ('m2po()', 'second_moment_cutoff(limit=0.04)', None),
  'SAT': (
    f'sat({_CLIP}, exponent=2.0)',
    'log_ratio_quantile(quantile=0.9)',
    None,
  ),
  'decoupled PPO': (f'decoupled_ppo({_CLIP}, max_ratio=5.0)', None, None),
  'A-3PO': (f'a3po({_CLIP}, max_ratio=5.0)', None, None),
  'VCPO without b*': (
    'sequence_truncated_importance_sampling(max_ratio=8.0)',
    None,
    'ess_scaled_rate(on_policy_ess=1.0)',
  ),
  'GAC': (
    f'clipped_surrogate({_CLIP}, dual_clip=10.0)',
    None,
    'gradient_alignment(lower=0.1, upper=0.5)',
  ),
}


def get_cells() -> list[cells.Cell]:
  """Returns a cell for each method, lag and rate."""
  changes = [
    {
      'name': name,
      'loss.policy': policy,
      'loss.statistics': statistics,
      'optimizer.gate': gate,
      'sampler.weight_lag': lag,
      'optimizer.learning_rate': rate,
      'sampler.num_prompts': 2 * _BATCH // study.GROUP_SIZE,
      'replay.capacity': 2 * _BATCH,
      'replay.batch_size': _BATCH,
      'replay.updates_per_iteration': 2,
      'replay.compose': 'pure_buffer(rows_in_use=None)',
      'replay.weights': 'oldest_unused()',
      'replay.draw': 'largest()',
    }
    for name, (policy, statistics, gate) in _METHODS.items()
    for lag in _LAGS
    for rate in _RATES
  ]
  return cells.make(
    study.base('addition', seeds=range(2)),
    changes,
    named_by=['name', 'sampler.weight_lag', 'optimizer.learning_rate'],
  )
