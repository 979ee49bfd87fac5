"""The table as files for other programs: table.json and table.csv."""

import csv
import io
import json
from typing import Any

import numpy as np

from replay_rl.report import bootstrap
from replay_rl.report import table


def to_json(results: table.Results) -> str:
  """Writes the table as JSON; what is not reached or not known is null.

  A null in the `per_seed` of `generated_tokens` is a seed that did not reach
  the threshold. A `median` is null if it is not finite.
  """
  content = {
    'baseline': results.baseline,
    'smoothing': {'method': 'trailing mean', 'iterations': results.window},
    'interval': {
      'confidence': bootstrap.CONFIDENCE,
      'method': 'percentile bootstrap of the median over seeds',
      'resamples': bootstrap.NUM_RESAMPLES,
    },
    'arms': [_arm(arm) for arm in results.arms],
  }
  return json.dumps(content, indent=2, allow_nan=False) + '\n'


def to_csv(results: table.Results) -> str:
  """Writes one line per arm, threshold and seed, and one for their median.

  A seed that did not reach the threshold has spent `inf`; an unknown value is
  empty. The line of the median holds the interval of a saving.
  """
  lines = io.StringIO()
  writer = csv.writer(lines, lineterminator='\n')
  writer.writerow(
    ['arm', 'threshold', 'seed', *table.SPENT]
    + [f'{name}_saving{end}' for name in table.SAVED for end in _ENDS]
    + ['entropy', 'reward_at_end', 'entropy_at_end', 'replay_ratio']
  )
  for arm in results.arms:
    for milestone in arm.milestones:
      for index in [*range(len(arm.seeds)), None]:
        label = 'median' if index is None else arm.seeds[index]
        writer.writerow(
          [arm.name, milestone.threshold, label]
          + [
            '' if np.isnan(number) else f'{number:.10g}'
            for number in _csv_numbers(arm, milestone, index)
          ]
        )
  return lines.getvalue()


_ENDS = ('', '_low', '_high')  # Of the names of a saving and of its interval.


def _csv_numbers(
  arm: table.Arm, milestone: table.Milestone, index: int | None
) -> list[float]:
  """Returns the numbers of a seed, or of the median where `index` is None."""

  def pick(per_seed: np.ndarray) -> float:
    return float(np.median(per_seed) if index is None else per_seed[index])

  numbers = [pick(milestone.spent[name].per_seed) for name in table.SPENT]
  for name in table.SAVED:
    numbers += _csv_saving(milestone.spent[name].saving, index)
  entropy = pick(milestone.entropy)
  numbers.append(entropy if np.isfinite(entropy) else np.nan)
  return numbers + [pick(arm.reward), pick(arm.entropy), pick(arm.replay_ratio)]


def _csv_saving(saving: table.Saving | None, index: int | None) -> list[float]:
  """Returns the saving and, for the median, the ends of its interval."""
  if saving is None:
    return [np.nan] * 3
  if index is None:
    return [saving.median, *(saving.interval or (np.nan, np.nan))]
  per_seed = saving.per_seed[index] if saving.per_seed.size else np.nan
  return [float(per_seed), np.nan, np.nan]


def _arm(arm: table.Arm) -> dict[str, Any]:
  return {
    'name': arm.name,
    'seeds': arm.seeds.tolist(),
    'iterations': arm.num_iterations,
    'reward_at_end': _per_seed(arm.reward),
    'entropy_at_end': _per_seed(arm.entropy),
    'replay_ratio': _per_seed(arm.replay_ratio),
    'replay_ratio_inserted': _per_seed(arm.replay_ratio_inserted),
    'generation_share_of_flops': _per_seed(arm.generation_flops),
    'seconds_per_iteration': _finite(arm.seconds_per_iteration),
    'timed': {key: _finite(value) for key, value in arm.timed.items()},
    'milestones': [_milestone(milestone) for milestone in arm.milestones],
  }


def _milestone(milestone: table.Milestone) -> dict[str, Any]:
  content: dict[str, Any] = {
    'threshold': milestone.threshold,
    'seeds_that_reached': milestone.num_reached,
  }
  for name, spending in milestone.spent.items():
    content[name] = _per_seed(spending.per_seed)
    saving = spending.saving
    if saving is not None:
      content[name]['saving'] = {
        'median': _finite(saving.median),
        'per_seed': [_finite(value) for value in saving.per_seed],
        'interval': saving.interval,
        'is_paired_by_seed': bool(saving.per_seed.size),
      }
  content['entropy'] = _per_seed(milestone.entropy)
  content['wall_clock'] = milestone.wall_clock or None
  return content


def _per_seed(values: np.ndarray) -> dict[str, Any]:
  return {
    'median': _finite(np.median(values)),
    'per_seed': [_finite(value) for value in values],
  }


def _finite(value: float | np.floating) -> float | None:
  return float(value) if np.isfinite(value) else None
