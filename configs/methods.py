"""Methods of the literature on 3-digit addition, on a CPU: an arm for each.

Question: how is a method of a paper run here, and which functions is it made
of? configs/methods.md has a table of all arms with their papers, their
functions and what differs from the paper.

Each arm is a set of changes to one on-policy run of 16 prompts with 8 responses
each, whose model is that of configs/base_small.py. Nothing is tuned, and all
arms have one rate, so a comparison of their results says little. A paper that
corrects for the age of rollouts gets old ones: either from a sampler that
trails the learner by eight steps, or from a buffer that uses each rollout twice
on average. Methods that compare visits to a prompt visit 64 prompts in turn, so
each comes back after four iterations.

Command: python -m replay_rl.train --config=configs/methods.py:gspo \
    --workdir=runs/gspo
Cost: two minutes for the four seeds of replay_uniform on 2 cores of an AMD EPYC
VM that did other work too, and a minute once for the warm start. Result: not
tuned; tests run two iterations of a third of the arms and trace the others, and
with REPLAY_RL_EVERY_ARM=1 in the environment they run all programs.
"""

from typing import Any

from replay_rl.configs import arms
from replay_rl.configs import base_small
from replay_rl.run import config as config_lib

_NUM_PROMPTS = 16
_NUM_FRESH = _NUM_PROMPTS * base_small.GROUP_SIZE
_NUM_ITERATIONS = 100
_MAX_LENGTH = 6  # Tokens of the longest response; a right one has 5.

_SUM_OF_TOKENS = f'constant(tokens_per_row={_MAX_LENGTH})'
_CLIPPED = 'clipped_surrogate(clip_low={}, clip_high={}, dual_clip={})'

# Rollouts that are older than the learner: used once, or from a buffer.
_LAG = {'sampler.weight_lag': 8}
_REUSE = arms.reuse(2, _NUM_FRESH)

# The dynamic sampling of DAPO has them too.
_DAPO = {
  'reward': f'correctness() + soft_overlong(max_length={_MAX_LENGTH}, '
  'cache_length=1)',
  'replay.drop_zero_variance': True,
}

_ADVANTAGES_AND_LOSSES = {
  'grpo': {
    'loss.policy': _CLIPPED.format(0.2, 0.2, None),
    'loss.normalizer': 'sequence_mean()',
  },
  'grpo_kl': {
    'loss.policy': f'{_CLIPPED.format(0.2, 0.2, None)} + '
    'reference_kl(coefficient=0.04)',
    'loss.normalizer': 'sequence_mean()',
  },
  'dr_grpo': {
    'loss.advantage': 'group_mean_baseline()',
    'loss.policy': _CLIPPED.format(0.2, 0.2, None),
    'loss.normalizer': _SUM_OF_TOKENS,
  },
  'dapo': _DAPO,
  'dapo_dynamic': _DAPO
  | {
    # The oldest row that waits and the nine generations after it.
    'replay.capacity': 10 * _NUM_FRESH,
    'replay.batch_size': _NUM_FRESH,
    'replay.compose': 'collected(max_batches=9)',
    'replay.weights': 'oldest_unused()',
    'replay.draw': 'largest()',
  },
  'reinforce': {
    'loss.advantage': 'group_mean_baseline()',
    'loss.policy': 'reinforce()',
    'loss.normalizer': _SUM_OF_TOKENS,
  },
  'rloo': {
    'loss.advantage': 'leave_one_out()',
    'loss.policy': 'reinforce()',
    'loss.normalizer': _SUM_OF_TOKENS,
  },
  'gspo': _REUSE
  | {
    'loss.policy': 'gspo(clip_low=3e-4, clip_high=4e-4)',
    'loss.normalizer': 'sequence_mean()',
  },
  'cispo': _REUSE | {'loss.policy': 'cispo(clip_low=1.0, clip_high=2.0)'},
  'topr': _REUSE
  | {
    'loss.advantage': 'w_reinforce(correct_weight=1.0, min_correct=0.5)',
    'loss.policy': 'topr()',
    'loss.normalizer': _SUM_OF_TOKENS,
  },
  'asymre': _REUSE
  | {
    'loss.advantage': 'group_mean_baseline()',
    'loss.policy': 'asymre(delta_v=-0.1)',
    'loss.normalizer': _SUM_OF_TOKENS,
  },
  'bapo': _REUSE
  | {
    'loss.policy': 'bapo()',
    'loss.statistics': 'balanced_clip_bounds(min_share=0.4, low_start=0.6, '
    'low_end=0.9, high_start=1.2, high_end=3.0, high_step=0.05)',
  },
  'behavior_kl': _REUSE
  | {
    'loss.policy': f'{_CLIPPED.format(1.0, "inf", None)} + '
    'behavior_kl(coefficient=1.0)'
  },
  'tba': _REUSE
  | {
    # Whole groups, because the loss compares the rows of a prompt.
    'replay.compose': 'fresh_anchored_groups(replay_fraction=1.0, '
    'warmup_steps=0)',
    'replay.batch_size': None,
    'replay.weights': 'exp_reward(temperature=1.0)',
    'loss.advantage': 'group_mean_baseline()',
    'loss.policy': 'tba(beta=0.01)',
    'loss.statistics': 'mean_reference_log_ratio()',
    'loss.normalizer': _SUM_OF_TOKENS,
  },
} | {
  # The weight of a right response.
  f'w_reinforce{suffix}': {
    'loss.advantage': f'w_reinforce(correct_weight={weight}, min_correct=0.5)',
    'loss.policy': 'reinforce()',
    'loss.normalizer': _SUM_OF_TOKENS,
  }
  for suffix, weight in (('', 0.1), ('_0', 0.0), ('_1', 1.0))
}

_CORRECTIONS = {
  'weight_lag': _LAG,
  'tis': _LAG | {'loss.policy': 'truncated_importance_sampling(max_ratio=2.0)'},
  'mis': _LAG | {'loss.policy': 'masked_importance_sampling(max_ratio=2.0)'},
  'icepop': _LAG | {'loss.policy': 'icepop(lowest=0.5, highest=5.0)'},
  'm2po': _LAG
  | {
    'loss.policy': 'm2po()',
    'loss.statistics': 'second_moment_cutoff(limit=0.04)',
  },
  'sat': _LAG
  | {
    'loss.policy': 'sat(clip_low=0.2, clip_high=0.2, exponent=2.0)',
    'loss.statistics': 'log_ratio_quantile(quantile=0.9)',
  },
  'decoupled_ppo': _LAG
  | {
    # Two updates, each on a half of the fresh rows: the proximal policy is that
    # before the first one.
    'replay.batch_size': _NUM_FRESH // 2,
    'replay.updates_per_iteration': 2,
    'replay.compose': 'pure_buffer(rows_in_use=None)',
    'replay.weights': 'oldest_unused()',
    'replay.draw': 'largest()',
    'loss.policy': 'decoupled_ppo(clip_low=0.2, clip_high=0.2, max_ratio=5.0)',
  },
  'a3po': _LAG
  | {'loss.policy': 'a3po(clip_low=0.2, clip_high=0.2, max_ratio=5.0)'},
  'sequence_tis': _LAG
  | {
    'loss.advantage': 'group_mean_baseline()',
    'loss.policy': 'sequence_truncated_importance_sampling(max_ratio=8.0)',
    'loss.normalizer': _SUM_OF_TOKENS,
  },
  'vcpo': _LAG
  | {
    'loss.policy': 'vcpo(max_ratio=8.0)',
    'loss.statistics': 'optimal_baseline(max_ratio=8.0)',
    'loss.normalizer': _SUM_OF_TOKENS,
    'optimizer.gate': 'ess_scaled_rate(on_policy_ess=1.0)',
  },
}

# "Efficient RL Training for LLMs with Experience Replay" (arXiv 2604.08706).
_WORKERS_AND_TRAINERS = (
  '(workers=6, trainers=2, publish_every=1, in_flight=True)'
)
_ASYNCHRONOUS = _REUSE | {
  'schedule': f'asynchronous{_WORKERS_AND_TRAINERS}',
  'replay.updates_per_iteration': None,
}
_QUEUE = _ASYNCHRONOUS | {
  'schedule': f'queue{_WORKERS_AND_TRAINERS}',
  'replay.draw': 'largest()',
}
_UNIFORM_REPLAY = {
  'replay_uniform': _REUSE,
  'fifo': _REUSE | {'replay.keep': 'fifo()'},
  'no_replacement': _REUSE | {'replay.draw': 'gumbel_top_k()'},
  'at_least_once': _REUSE
  | {
    'replay.weights': 'never_used_first()',
    'replay.draw': 'gumbel_top_k()',
  },
  'private_shards': _REUSE
  | {'replay.draw': 'private_shards(num_shards=4, stratified=False)'},
  'asynchronous': _ASYNCHRONOUS,
  'queue_lifo': _QUEUE | {'replay.weights': 'newest_unused()'},
  'queue_fifo': _QUEUE | {'replay.weights': 'oldest_unused()'},
  'max_uses': _REUSE | {'replay.weights': 'max_uses(limit=4)'},
  'inverse_age': _REUSE | {'replay.weights': 'inverse_age(exponent=1.0)'},
  'in_order': _REUSE
  | {
    # A quarter of each generation waits, until its rows are too old.
    'replay.capacity': 10 * _NUM_FRESH,
    'replay.batch_size': _NUM_FRESH * 3 // 4,
    'replay.updates_per_iteration': 1,
    'replay.weights': 'oldest_first() * max_uses(limit=1) * max_age(limit=8)',
    'replay.draw': 'largest()',
  },
}
_UNIFORM_REPLAY |= {
  f'newest_{count}': _REUSE | {'replay.weights': f'newest(count={count})'}
  for count in (128, 256, 384)
}
_UNIFORM_REPLAY |= {
  f'positive_bias_{name}': _REUSE
  | {'replay.keep': f'positive_bias(fraction={fraction})'}
  for name, fraction in (('0_2', 0.2), ('0_5', 0.5))
}

# "Rollout-Level Advantage-Prioritized Experience Replay for GRPO" (arXiv
# 2606.04560). The buffer holds the whole run: only the age limit removes.
_PRIORITIZED = arms.PRIORITIZED | {
  'replay.capacity': _NUM_ITERATIONS * _NUM_FRESH,
  'loss.policy': _CLIPPED.format(0.2, 0.28, 10.0),
}
_PRIORITIZED_REPLAY = {
  'prioritized': _PRIORITIZED,
  'naive_replay': _PRIORITIZED
  | {
    'replay.batch_size': _NUM_FRESH * 3 // 2,
    'replay.compose': 'pure_buffer(rows_in_use=None)',
    'replay.weights': 'uniform()',
  },
}
_PRIORITIZED_REPLAY |= {
  f'prioritized_{name}': _PRIORITIZED
  | {'replay.weights': f'advantage_magnitude(exponent={exponent}) * {max_age}'}
  for name, exponent, max_age in (
    ('exponent_0', 0, 'max_age(limit=10)'),
    ('exponent_1', 1, 'max_age(limit=10)'),
    ('age_2', 0.5, 'max_age(limit=2)'),
    ('age_5', 0.5, 'max_age(limit=5)'),
    ('age_30', 0.5, 'max_age(limit=30)'),
    ('age_none', 0.5, 'max_age(limit=inf)'),
    ('age_generations', 0.5, 'max_age_batches(limit=10)'),
  )
}
_PRIORITIZED_REPLAY |= {
  f'prioritized_{name}': _PRIORITIZED
  | {'replay.compose': f'{compose}, warmup_steps=20)'}
  for name, compose in (
    ('fraction_0_25', 'fresh_anchored(replay_fraction=0.25'),
    ('fraction_1', 'fresh_anchored(replay_fraction=1.0'),
    ('fraction_2', 'fresh_anchored(replay_fraction=2.0'),
    ('groups', 'fresh_anchored_groups(replay_fraction=0.5'),
  )
}
_PRIORITIZED_REPLAY |= {
  'prioritized_recomputed': _PRIORITIZED
  | {'loss.batch_advantage': 'of_batch(eps=1e-6)'},
  'per': _REUSE | arms.PER,
  'per_freshness': arms.PER
  | {
    'replay.capacity': 4 * _NUM_FRESH,
    'replay.updates_per_iteration': 2,
    'replay.compose': 'fresh_first()',
    # e^(-.6 age / 500) halves with every 577.6 learner steps.
    'replay.weights': 'proportional(exponent=0.6) * recency(half_life=577.6)',
    'loss.row_weights': 'annealed_per_importance_weights(start=0.4, end=1.0, '
    f'num_steps={2 * _NUM_ITERATIONS})',
    'optimizer.gate': None,
  },
  'swap_zero_variance': {
    'replay.capacity': 4 * _NUM_FRESH,
    'replay.compose': 'fresh_filled()',
    'replay.weights': 'uniform()',
    'replay.draw': 'gumbel_top_k()',
    'replay.drop_zero_variance': True,
  },
}

# The buffer holds the four latest visits to a prompt, the fresh one included.
_RECURRING = {
  'sampler.num_distinct_prompts': 4 * _NUM_PROMPTS,
  'replay.capacity': 16 * _NUM_FRESH,
}
_CURRICULUM = _RECURRING | {'replay.num_prompts': 4 * _NUM_PROMPTS}
_JOINT = {'loss.batch_advantage': 'joint(eps=1e-6)'}
_CORRECT = 'min_reward(limit=1.0)'
_BY_PROMPT = {
  # "RePO" (arXiv 2506.09340).
  f'repo_{name}': _RECURRING
  | {
    'replay.compose': 'same_prompt(num_replayed=8, only_failed=False)',
    'replay.weights': weights,
    'replay.draw': draw,
    'loss.batch_advantage': 'apart(eps=1e-6)',
  }
  for name, weights, draw in (
    ('recent', 'newest_first()', 'largest()'),
    ('highest', 'exp_reward(temperature=1.0)', 'largest()'),
    ('variance', 'exp_reward(temperature=1.0)', 'most_varied()'),
    ('random', 'uniform()', 'gumbel_top_k()'),
  )
}
_BY_PROMPT |= {
  'rlep': _RECURRING
  | _JOINT
  | {
    'replay.compose': 'same_prompt(num_replayed=2, only_failed=False)',
    'replay.weights': _CORRECT,
    'replay.draw': 'gumbel_top_k()',
  },
  'arpo': _RECURRING
  | _JOINT
  | {
    'replay.compose': 'same_prompt(num_replayed=1, only_failed=True)',
    'replay.weights': _CORRECT,
    'replay.draw': 'gumbel_top_k()',
    'replay.drop_zero_variance': True,
  },
  'exgrpo': _RECURRING
  | _JOINT
  | {
    'replay.compose': 'same_prompt(num_replayed=1, only_failed=False)',
    'replay.weights': f'{_CORRECT} * confident(temperature=0.1)',
    'replay.draw': 'largest()',
  },
  'exgrpo_pass_rate': _CURRICULUM
  | {
    'replay.compose': 'fresh_anchored(replay_fraction=1.0, warmup_steps=20)',
    'replay.weights': 'correct_by_pass_rate(center=0.5, width=1.0)',
    'replay.draw': 'gumbel_top_k()',
  },
  'exgrpo_buckets': _CURRICULUM
  | {
    'replay.compose': 'fresh_anchored(replay_fraction=1.0, warmup_steps=0)',
    'replay.weights': 'confident_by_rate_bucket(center=0.5, width=1.0) * '
    'min_pass_rate(limit=0.35)',
    'replay.draw': 'gumbel_top_k()',
    'loss.policy': 'exgrpo(clip_low=0.2, clip_high=0.2, beta=0.1)',
  },
  'pass_rate': _REUSE
  | _CURRICULUM
  | {'replay.weights': 'pass_rate(center=0.5, width=0.25)'},
  'unsolved': _REUSE | _CURRICULUM | {'replay.weights': 'unsolved()'},
}

_BY_PROMPT |= {
  'prompt_replay': {
    'replay.num_prompts': 4096,
    'sampler.prompts': 'replayed_prompts(fraction=0.5, center=0.5, width=0.2, '
    'max_visits=4, cooldown=2)',
  }
}

# "When to Stop Reusing: Dynamic Gradient Gating" (arXiv 2605.19425).
_FOUR_TIMES = {'replay.updates_per_iteration': 4}
_GATES = {
  'four_times': _FOUR_TIMES | {'optimizer.gate': 'accept_all()'},
  'staleness_rate': _LAG
  | {'optimizer.gate': 'staleness_scaled_rate(free_age=1.0)'},
  'gac': _LAG | {'optimizer.gate': 'gradient_alignment(lower=0.1, upper=0.5)'},
} | {
  f'dgg{suffix}': _FOUR_TIMES
  | {
    'optimizer.gate': f'gradient_gate(threshold={threshold}, window=20, '
    f'squared={squared})'
  }
  for suffix, threshold, squared in (
    ('', 0.3, False),
    ('_0_1', 0.1, False),
    ('_0_5', 0.5, False),
    ('_squared', 0.3, True),
  )
}

ARMS: dict[str, dict[str, Any]] = {
  **_ADVANTAGES_AND_LOSSES,
  **_CORRECTIONS,
  **_UNIFORM_REPLAY,
  **_PRIORITIZED_REPLAY,
  **_BY_PROMPT,
  **_GATES,
}


def get_config(arm: str = 'grpo') -> config_lib.Config:
  config = base_small.on_policy(
    'addition(num_digits=3, forget_probability=0.7)',
    num_iterations=_NUM_ITERATIONS,
    learning_rate=2e-4,
  )
  config = config_lib.changed(
    config,
    {
      'sampler.num_prompts': _NUM_PROMPTS,
      'replay.capacity': _NUM_FRESH,
      'evaluation.every': 10,
    },
  )
  return arms.chosen(config, arm, ARMS)
