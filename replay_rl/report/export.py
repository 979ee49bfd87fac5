"""The table as files for other programs: table.json and table.csv."""

import csv
import io
import json
from typing import Any

import numpy as np

from replay_rl.report import bootstrap
from replay_rl.report import efficiency
from replay_rl.report import levels
from replay_rl.report import table


def to_json(results: table.Results) -> str:
  """Writes the table as JSON; what is not reached or not known is null.

  A null in the `per_seed` of `generated_tokens` is a seed that did not reach
  the threshold. A `median` is null if it is not finite.
  """
  content = {
    'baseline': results.baseline,
    'levels': {
      'score': results.rule.score,
      'evaluated_every_cost': results.rule.every_cost,
      'window_rollouts': results.rule.window,
    },
    'interval': {
      'confidence': bootstrap.CONFIDENCE,
      'method': 'percentile bootstrap of the ratio of medians, not paired',
      'resamples': levels.NUM_RESAMPLES,
      'fewest_seeds': levels.MIN_SEEDS,
    },
    'arms': [_arm(arm) for arm in results.arms],
  }
  return json.dumps(content, indent=2, allow_nan=False) + '\n'


def to_csv(results: table.Results) -> str:
  """Writes one line per arm, threshold and seed, and one for their median.

  A seed that did not reach the threshold has spent `inf`; an unknown value is
  empty. Savings, their intervals and p-values are in the line of the median.
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


# Of the names of a saving, its interval and its p-value after Holm.
_ENDS = ('', '_low', '_high', '_p')


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
  """Returns the saving, its interval and p-value; a seed has none of them."""
  if saving is None or index is not None:
    return [np.nan] * len(_ENDS)
  value, interval, _ = saving.comparison
  adjusted = np.nan if saving.adjusted is None else saving.adjusted
  return [value, *(interval or (np.nan, np.nan)), adjusted]


def _arm(arm: table.Arm) -> dict[str, Any]:
  return {
    'name': arm.name,
    'seeds': arm.seeds.tolist(),
    'iterations': arm.num_iterations,
    'reward_at_end': _per_seed(arm.reward),
    'entropy_at_end': _per_seed(arm.entropy),
    'accuracy_at_end': _per_seed(arm.accuracy),
    'response_length_at_end': _per_seed(arm.response_length),
    'aes': [
      {
        'constants': constants,
        'score': _finite(score),
        'interval': ends and [_finite(end) for end in ends],
      }
      for constants, (score, ends) in zip(
        efficiency.CONSTANTS, arm.aes, strict=False
      )
    ],
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
        'of_medians': _finite(saving.comparison.saving),
        'interval': saving.comparison.interval
        and [_finite(end) for end in saving.comparison.interval],
        'p_value': saving.comparison.p_value,
        'p_value_holm': saving.adjusted,
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
