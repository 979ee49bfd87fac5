"""Run folders whose values are chosen by hand, so that results are known.

`runs_test` checks that the train program writes each field of them.
"""

import json
import pathlib


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

  Seed s generates 10 rollouts with 100 + s tokens per iteration, and spends 5
  cost units and 2 updates.
  """
  return [
    {
      'iteration': i,
      'seed': s,
      'learner_step': 2 * (i + 1),
      'reward': rewards[s][i],
      'ledger/rollouts': 10 * (i + 1),
      'ledger/generated_tokens': (100 + s) * (i + 1),
      'ledger/cost_units': 5.0 * (i + 1),
      **more,
    }
    for i in range(len(rewards[0]))
    for s in range(len(rewards))
  ]
