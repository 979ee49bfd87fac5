"""Tries random configs: each is refused in a line, or it trains.

`tests/edges/random_configs.py` draws the configs. `train`'s own checks refuse
one or let it pass. Of those that pass and are small, one cycle runs. A config
fails if it ends in another exception than a refusal, if its checks take more
than ten seconds, or if the cycle gives an infinite or undefined loss or weight,
or no update without a counted reason.

Command, from the folder of the repository:
  PYTHONPATH=. python experiments/edges/fuzz.py --configs=2000
"""

import argparse
import collections
import json
import os
import pathlib
import sys
import time
from typing import Any

# Small programs take longer to compile than to run; see tests/conftest.py.
os.environ |= {
  'JAX_PLATFORMS': 'cpu',
  'JAX_DISABLE_MOST_OPTIMIZATIONS': 'true',
  'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0.2',
  'XLA_FLAGS': '--xla_cpu_use_fusion_emitters=false '
  '--xla_cpu_parallel_codegen_split_count=1',
}

import hypothesis  # noqa: E402

from replay_rl.run import config as config_lib  # noqa: E402
from replay_rl.run import stopping  # noqa: E402
from tests import tiny  # noqa: E402
from tests import tiny_text  # noqa: E402
from tests.edges import random_configs  # noqa: E402

_SLOW = 10.0  # Seconds.


def outcome(config: config_lib.Config, may_run: bool) -> tuple[str, str]:
  """Returns what becomes of a config, and the words of the program."""
  started = time.monotonic()
  try:
    why, parts = random_configs.check(config)
  except Exception as error:  # Any type is a finding.
    return 'FAILED: exception in the checks', f'{type(error).__name__}: {error}'
  if (seconds := time.monotonic() - started) > _SLOW:
    return 'FAILED: slow checks', f'{seconds:.0f} s'
  if why is not None:
    if not random_configs.REFUSAL.fullmatch(why):
      return 'FAILED: refused in another format', why
    return 'refused', why.partition(' = ')[0]
  assert parts is not None
  if not random_configs.is_small(config, parts):
    return 'accepted, too large to run here', ''
  if not may_run:
    return 'accepted, not run', ''
  try:
    result = random_configs.first_cycle(config)
  except stopping.EmptyUpdatesError as error:
    return 'ran: stopped for empty updates', str(error)
  except stopping.DivergedError as error:
    return 'FAILED: diverged at once', str(error)
  except Exception as error:  # Any type is a finding.
    return 'FAILED: exception in the run', f'{type(error).__name__}: {error}'
  if not result['is_finite']:
    return 'FAILED: not finite', str(result)
  if result['applied']:
    return 'ran: updates applied', ''
  if result['reason']:
    return f'ran: {result["reason"]}', ''
  return 'FAILED: trains on nothing', str(result)


def main() -> None:
  """Prints the counts, and writes them beside this file."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--configs', type=int, default=2000)
  parser.add_argument('--runs', type=int, default=300, help='at most so many')
  parser.add_argument('--seed', type=int, default=0)
  options = parser.parse_args()
  counts, refused = collections.Counter(), collections.Counter()
  failures: list[dict[str, Any]] = []
  num_runs, slowest, started = 0, 0.0, time.monotonic()
  data = pathlib.Path(tiny.CACHE) / 'data'
  tiny_text.settings(data)  # Writes them.

  @hypothesis.settings(
    max_examples=options.configs,
    deadline=None,
    database=None,
    phases=[hypothesis.Phase.generate],
    suppress_health_check=list(hypothesis.HealthCheck),
  )
  @hypothesis.seed(options.seed)
  # A task in text starts processes that verify, which takes seconds.
  @hypothesis.given(
    random_configs.configs(tiny.config)
    | random_configs.configs(tiny.config)
    | random_configs.configs(lambda: tiny_text.config(data))
  )
  def try_one(drawn):
    nonlocal num_runs, slowest
    config, changes = drawn
    start = time.monotonic()
    what, words = outcome(config, num_runs < options.runs)
    seconds = time.monotonic() - start
    counts[what] += 1
    if what == 'refused':
      refused[words] += 1
      slowest = max(slowest, seconds)
    num_runs += what.startswith(('ran', 'FAILED: d', 'FAILED: n'))
    if what.startswith('FAILED'):
      failure = {'changes': repr(changes), 'what': what, 'words': words[:500]}
      failures.append(failure)
      print(json.dumps(failure), file=sys.stderr, flush=True)

  try_one()
  result = {
    'configs': options.configs,
    'seed': options.seed,
    'outcomes': dict(counts.most_common()),
    'refused by field': dict(refused.most_common()),
    'slowest refusal in seconds': round(slowest, 1),
    'minutes': round((time.monotonic() - started) / 60, 1),
    'failures': failures,
  }
  text = json.dumps(result, indent=2)
  pathlib.Path(__file__).with_name('results.json').write_text(text + '\n')
  print(text)


if __name__ == '__main__':
  main()
