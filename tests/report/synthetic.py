"""Writes small run folders, as the trainer does, for tests of the report."""

import json
import pathlib

import numpy as np


def write_run(
  folder: pathlib.Path,
  rows: list[dict],
  *,
  name: str | None = None,
  config: dict | None = None,
  seconds: list[float] | None = None,
  hardware: str = 'one CPU',
) -> str:
  """Writes config.json, metrics.jsonl and, with `seconds`, timing.jsonl."""
  folder.mkdir(parents=True)
  header = {
    'config': {'name': name or folder.name, **(config or {})},
    'versions': {'jax': '0.10.2'},
    'commit': 'abc123',
    'hardware': hardware,
  }
  (folder / 'config.json').write_text(json.dumps(header))
  lines = ''.join(json.dumps(row) + '\n' for row in rows)
  (folder / 'metrics.jsonl').write_text(lines)
  if seconds is not None:
    timing = [
      {'iteration': i, 'seconds': s, 'process': 0}
      for i, s in enumerate(seconds)
    ]
    lines = ''.join(json.dumps(line) + '\n' for line in timing)
    (folder / 'timing.jsonl').write_text(lines)
  return str(folder)


def rows_of_rewards(rewards: list[list[float]], **more: float) -> list[dict]:
  """Rows of given rewards, `rewards[seed][iteration]`.

  Seed s spends 100 + s tokens, 5 cost units and 2 updates per iteration.
  """
  return [
    {
      'iteration': i,
      'seed': s,
      'learner_step': 2 * (i + 1),
      'reward': rewards[s][i],
      'ledger/generated_tokens': (100 + s) * (i + 1),
      'ledger/cost_units': 5.0 * (i + 1),
      **more,
    }
    for i in range(len(rewards[0]))
    for s in range(len(rewards))
  ]


def plausible_rows(
  *,
  speed: float,
  updates: int,
  num_seeds: int = 4,
  num_iterations: int = 160,
  mu: float = 5.28,
  ceiling: float = 0.9,
) -> list[dict]:
  """Rows with every key, shaped like runs of 3-digit addition."""
  rng = np.random.default_rng(updates)
  rows = []
  for s in range(num_seeds):
    tokens = 0
    rate = speed * rng.uniform(0.85, 1.15)
    for i in range(num_iterations):
      tokens += int(rng.integers(1150, 1300))
      clean = 0.27 + (ceiling - 0.27) * (1 - np.exp(-rate * i / 80))
      ages = rng.poisson(3 * updates, 256 * updates).clip(0, 40)
      uses = rng.poisson(updates, 256).clip(0, 24)
      gaps = np.minimum(rng.geometric(0.3, 256 * (updates - 1)), 32)
      row = {
        'iteration': i,
        'seed': s,
        'learner_step': updates * (i + 1),
        'reward': float(clean + rng.normal(0, 0.025)),
        'entropy': float(0.3 * np.exp(-i / 90) + rng.normal(0, 0.006)),
        'ledger/rollouts': 256 * (i + 1),
        'ledger/generated_tokens': tokens,
        'ledger/trained_tokens': tokens * updates,
        'ledger/prompt_tokens': 256 * 8 * (i + 1),
        'ledger/updates': updates * (i + 1),
        'ledger/cost_units': 256 * (i + 1) * (updates + mu),
        'ledger/prefill_flops': 8e8 * (i + 1),
        'ledger/decode_flops': 6e8 * (i + 1),
        'ledger/training_flops': 42e8 * updates * (i + 1),
        'clip_fraction/fresh': 0.004,
        'clip_fraction/replayed': 0.01 * updates if updates > 1 else None,
        'abs_log_ratio/fresh': 0.01,
        'abs_log_ratio/replayed': 0.05 * updates if updates > 1 else None,
        'ess': float(np.exp(-0.04 * updates) + rng.normal(0, 0.01)),
        'replay_ratio': float(updates * (1 - np.exp(-i / 4 - 0.3))),
        'never_used_fraction': float(np.exp(-updates)),
        'zero_variance_fraction': 0.1 + 0.002 * i,
        'grad_norm': float(rng.uniform(0.3, 0.7)),
        'output_projection_grad_norm': float(rng.uniform(0.1, 0.2)),
        'staleness/mean': float(ages.mean()),
        'histogram/staleness': np.bincount(ages, minlength=41).tolist(),
        'histogram/uses': np.bincount(uses, minlength=25).tolist(),
        'histogram/steps_since_last_use': [256]
        + np.bincount(gaps, minlength=33).tolist(),
      }
      if updates == 1:
        row['histogram/staleness'] = [256] + [0] * 40
        row['histogram/uses'] = [0, 256] + [0] * 23
        row['histogram/steps_since_last_use'] = [256] + [0] * 33
      if i % 20 == 19 or i == 0:
        row['eval/greedy'] = min(1.0, float(clean) + 0.08)
        for k in (1, 2, 4, 8):
          row[f'eval/pass_at_{k}'] = float(1 - (1 - clean) ** (k**0.7))
        row['eval/mean_at_n'] = float(clean)
      rows.append(row)
  rows.sort(key=lambda row: (row['iteration'], row['seed']))
  return rows
