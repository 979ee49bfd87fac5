"""What the sweeps of the comparison share: the tasks, and the arms.

Every arm drops the groups whose rewards are all equal, clips at .2 and .28 with
a dual clip of 10, and spends the same cost. `make` gives an arm its batch and
its learning rate, which are tuned for each arm and each task.
"""

from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

from experiments.replay_study import study
from replay_rl.configs import arms
from replay_rl.run import config as config_lib
from replay_rl.sweep import cells

GROUP_SIZE = study.GROUP_SIZE
# Cost units of a seed, by task. With 40,000, all arms solve modular arithmetic.
BUDGETS = {'addition': 40_000.0, 'countdown': 40_000.0, 'modular': 20_000.0}
QUANTUM = 1_000.0  # Cost units between evaluations.
TUNING_SEEDS = range(100, 102)
# Never full: a seed generates at most budget / (1 + mu) rollouts.
_ENDLESS = 8192
_TASKS = {
  'addition': 'addition(num_digits=3, forget_probability=0.7)',
  'countdown': 'countdown(num_numbers=3, max_number=8, slip_probability=0.2)',
  'modular': 'modular_arithmetic(max_operations=10, modulus=7, '
  'direct_probability=0.8, stop_probability=0.1, slip_probability=0.05)',
}


def base(task: str, *, seeds: range) -> config_lib.Config:
  """Returns the on-policy run that all arms start from.

  Args:
    task: one of the keys of `_TASKS`.
    seeds: those of each cell.
  """
  return config_lib.changed(
    study.base(quantum=QUANTUM, seeds=seeds),
    {
      'task': _TASKS[task],
      'stop': f'max_cost(cost_units={BUDGETS[task]})',
      'replay.drop_zero_variance': True,
      'loss.policy': 'clipped_surrogate(clip_low=0.2, clip_high=0.28, '
      'dual_clip=10.0)',
    },
  )


def _anchored(
  weights: str, num_fresh: int, capacity: int | None = None
) -> dict[str, Any]:
  # Ages are 0 to 10, and each is one iteration.
  capacity = capacity or 12 * num_fresh
  return arms.PRIORITIZED | {
    'replay.weights': weights,
    'replay.capacity': capacity,
  }


def _naive(num_fresh: int) -> dict[str, Any]:
  return arms.reuse(1, num_fresh) | {
    'replay.batch_size': num_fresh * 3 // 2,
    'replay.capacity': _ENDLESS,
  }


def _lagging(
  num_fresh: int, policy: str | None, statistics: str | None
) -> dict[str, Any]:
  """Returns changes for weights that are eight learner steps old.

  Each iteration has two updates on half of its rollouts, so that the proximal
  policy of decoupled PPO is that before the first of the two.
  """
  changes = {
    'sampler.weight_lag': 8,
    'replay.batch_size': num_fresh // 2,
    'replay.updates_per_iteration': 2,
    'replay.compose': 'pure_buffer(rows_in_use=None)',
    'replay.weights': 'oldest_unused()',
    'replay.draw': 'largest()',
    'loss.statistics': statistics,
  }
  return changes if policy is None else changes | {'loss.policy': policy}


_BY_ADVANTAGE = 'advantage_magnitude(exponent=0.5)'
# For RePO, which needs prompts that come back.
_DISTINCT = {'sampler.num_distinct_prompts': 64}

# Name -> rollouts of a generation -> changes.
ARMS = {
  'GRPO': lambda num_fresh: {},
  'GRPO, 1.5 x rows': lambda num_fresh: {
    'sampler.num_prompts': num_fresh * 3 // 2 // GROUP_SIZE,
    'replay.capacity': num_fresh * 3 // 2,
  },
  'naive replay': _naive,
  'anchored, uniform': lambda num_fresh: _anchored(
    'max_age(limit=10)', num_fresh
  ),
  'B': lambda num_fresh: _anchored(
    f'{_BY_ADVANTAGE} * max_age(limit=10)', num_fresh
  ),
  'B, no age limit': lambda num_fresh: _anchored(
    _BY_ADVANTAGE, num_fresh, _ENDLESS
  ),
  'DGG': lambda num_fresh: {
    'replay.updates_per_iteration': 4,
    'optimizer.gate': 'gradient_gate(threshold=0.3, window=10, squared=False)',
  },
  'B by group': lambda num_fresh: (
    _anchored(f'{_BY_ADVANTAGE} * max_age(limit=10)', num_fresh)
    | {
      'replay.compose': 'fresh_anchored_groups(replay_fraction=0.5, '
      'warmup_steps=20)'
    }
  ),
  'freshness PER': lambda num_fresh: {
    'replay.capacity': _ENDLESS,
    'replay.updates_per_iteration': 2,
    'replay.compose': 'fresh_first()',
    # (p exp(-age / 500))^0.6
    'replay.weights': 'proportional(exponent=0.6) * recency(half_life=577.6)',
    'replay.draw': 'blocked_inverse_cdf(stratified=True)',
    'replay.feedback': 'reweighted_advantage_magnitude()',
    'loss.row_weights': 'annealed_per_importance_weights(start=0.4, end=1.0, '
    'num_steps=500)',
  },
  # The control of freshness PER: as many updates, without its priorities.
  'two updates, uniform': lambda num_fresh: {
    'replay.capacity': _ENDLESS,
    'replay.updates_per_iteration': 2,
    'replay.compose': 'fresh_first()',
    'replay.weights': 'uniform()',
    'replay.draw': 'blocked_inverse_cdf(stratified=True)',
  },
  'GRPO, 64 prompts': lambda num_fresh: _DISTINCT,
  'RePO, 64 prompts': lambda num_fresh: (
    _DISTINCT
    | {
      'replay.capacity': _ENDLESS,
      'replay.compose': 'same_prompt(num_replayed=8, only_failed=False)',
      'replay.weights': 'newest_first()',
      'replay.draw': 'largest()',
      'loss.batch_advantage': 'apart(eps=1e-6)',
    }
  ),
  'clip, lag 8': lambda num_fresh: _lagging(num_fresh, None, None),
  'M2PO, lag 8': lambda num_fresh: _lagging(
    num_fresh, 'm2po()', 'second_moment_cutoff(limit=0.04)'
  ),
  'decoupled PPO, lag 8': lambda num_fresh: _lagging(
    num_fresh,
    'decoupled_ppo(clip_low=0.2, clip_high=0.28, max_ratio=5.0)',
    None,
  ),
}

# The best cells of the tuning sweeps: task, arm -> prompts of a generation (for
# `make`) and learning rate.
TUNED = {
  'addition': {
    'GRPO': (2, 0.875e-4),
    'GRPO, 1.5 x rows': (4, 1.75e-4),
    'naive replay': (2, 0.875e-4),
    'anchored, uniform': (2, 0.875e-4),
    'B': (2, 0.875e-4),
    'B, no age limit': (2, 0.875e-4),
    'B by group': (2, 0.875e-4),
    'freshness PER': (2, 0.875e-4),
    'two updates, uniform': (2, 0.4375e-4),
    'DGG': (4, 0.4375e-4),
    'GRPO, 64 prompts': (4, 0.875e-4),
    'RePO, 64 prompts': (2, 0.4375e-4),
    'clip, lag 8': (4, 0.875e-4),
    'M2PO, lag 8': (2, 0.875e-4),
    'decoupled PPO, lag 8': (2, 0.4375e-4),
  },
  # By sampled accuracy, see README.md.
  'countdown': {
    'GRPO': (2, 0.875e-4),
    'GRPO, 1.5 x rows': (2, 1.75e-4),
    'naive replay': (4, 3.5e-4),
    'anchored, uniform': (2, 0.875e-4),
    'B': (2, 1.75e-4),
    'B, no age limit': (2, 1.75e-4),
    'B by group': (2, 0.875e-4),
    'freshness PER': (2, 0.875e-4),
    'two updates, uniform': (2, 1.75e-4),
    'DGG': (2, 0.4375e-4),
    'GRPO, 64 prompts': (2, 1.75e-4),
    'RePO, 64 prompts': (2, 1.75e-4),
    'clip, lag 8': (2, 1.75e-4),
    'M2PO, lag 8': (4, 0.875e-4),
    'decoupled PPO, lag 8': (2, 1.75e-4),
  },
  'modular': {
    'GRPO': (2, 3.5e-4),
    'GRPO, 1.5 x rows': (2, 3.5e-4),
    'naive replay': (2, 3.5e-4),
    'anchored, uniform': (2, 3.5e-4),
    'B': (2, 3.5e-4),
    'B, no age limit': (2, 3.5e-4),
    'B by group': (2, 3.5e-4),
    'freshness PER': (2, 3.5e-4),
    'two updates, uniform': (2, 3.5e-4),
    'DGG': (4, 1.75e-4),
    'GRPO, 64 prompts': (2, 3.5e-4),
    'RePO, 64 prompts': (2, 3.5e-4),
    'clip, lag 8': (2, 3.5e-4),
    'M2PO, lag 8': (2, 1.75e-4),
    'decoupled PPO, lag 8': (2, 1.75e-4),
  },
}

# More seeds resolve a smaller difference.
MAIN = (
  *('GRPO', 'anchored, uniform', 'B'),
  *('freshness PER', 'two updates, uniform'),
)


def compared(task: str, names: Iterable[str]) -> list[cells.Cell]:
  """Returns a cell for each arm with its batch and rate of `TUNED`.

  Args:
    task: one of the keys of `TUNED`.
    names: arms; those of `MAIN` have more seeds on addition, all from 0 on.
  """
  return cells.make(
    base(task, seeds=range(8)),
    [
      make(name, *TUNED[task][name])
      | {'num_seeds': 28 if task == 'addition' and name in MAIN else 8}
      for name in names
    ],
    named_by=['name'],
  )


def tuning(
  task: str, grids: Mapping[str, Iterable[tuple[int, float]]]
) -> list[cells.Cell]:
  """Returns a cell for each arm, batch and rate, on the tuning seeds.

  Args:
    task: one of the keys of `_TASKS`.
    grids: arm -> prompts of a generation and learning rates.
  """
  return cells.make(
    base(task, seeds=TUNING_SEEDS),
    [
      make(name, num_prompts, rate)
      for name, grid in grids.items()
      for num_prompts, rate in grid
    ],
    named_by=['name', 'sampler.num_prompts', 'optimizer.learning_rate'],
  )


def make(name: str, num_prompts: int, rate: float) -> dict[str, Any]:
  """Returns the changes of an arm.

  Args:
    name: one of `ARMS`.
    num_prompts: of a generation; an arm may change it.
    rate: learning rate.
  """
  num_fresh = num_prompts * GROUP_SIZE
  changes: Mapping[str, Any] = ARMS[name](num_fresh)
  return {
    'name': name,
    'sampler.num_prompts': num_prompts,
    'replay.capacity': num_fresh,
    'optimizer.learning_rate': rate,
    **changes,
  }
