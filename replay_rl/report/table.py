"""What each arm spent to reach a reward, and how much less than the baseline.

In all arrays infinity means that a seed did not reach the reward, and NaN that
the value is unknown. A median counts the seeds that did not reach the reward as
infinite; it never leaves them out.
"""

from typing import NamedTuple

import numpy as np

from replay_rl.report import bootstrap
from replay_rl.report import curves
from replay_rl.report import runs

# Names in table.json and table.csv of what is spent.
SPENT = {
  'generated_tokens': runs.TOKENS,
  'cost_units': runs.COST,
  'seconds': runs.SECONDS,
}
SAVED = ('generated_tokens', 'cost_units')  # Those with a saving.


class Saving(NamedTuple):
  """Share of the baseline's spending that an arm did without.

  per_seed: `[S]`, 1 - arm / baseline of the same seed; -inf where only the
    baseline reached the reward, NaN where the baseline did not. Empty if the
    arms have different seeds.
  median: over `per_seed`; without common seeds, 1 - the ratio of medians.
  interval: percentile bootstrap of the median over seeds. None if a seed is
    not finite or an arm has one seed.
  """

  per_seed: np.ndarray
  median: float
  interval: tuple[float, float] | None


class Spending(NamedTuple):
  """per_seed: `[S]`. saving: None for the baseline, and of seconds."""

  per_seed: np.ndarray
  saving: Saving | None

  @property
  def median(self) -> float:
    """Median over seeds, infinite if too few of them reached the reward."""
    return float(np.median(self.per_seed))


class Milestone(NamedTuple):
  """What an arm had spent when its smoothed reward first reached a threshold.

  threshold: reward.
  spent: name in `SPENT` -> spending.
  entropy: `[S]`, nats per token, smoothed like the reward, at that iteration.
  wall_clock: 'improved', 'not improved' or 'unknown', the medians of seconds
    against the baseline's; '' for the baseline.
  """

  threshold: float
  spent: dict[str, Spending]
  entropy: np.ndarray
  wall_clock: str

  @property
  def num_reached(self) -> int:
    """Seeds that reached the threshold."""
    return int(np.isfinite(self.spent['generated_tokens'].per_seed).sum())


class Arm(NamedTuple):
  """One line of the table. `[S]` values are those of the last iteration.

  reward, entropy: `[S]`, smoothed.
  replay_ratio: `[S]`, realised uses per generated rollout.
  replay_ratio_inserted: `[S]`, the same per rollout that the buffer took.
  generation_flops: `[S]`, share of all estimated FLOPs spent on generation.
  seconds_per_iteration: median, without the iterations that compile.
  timed: the same of what the events took, such as 'learn_seconds', and of 'mu';
    {} if they were not timed.
  mu: of the config, as text.
  """

  name: str
  seeds: np.ndarray
  num_iterations: int
  reward: np.ndarray
  entropy: np.ndarray
  replay_ratio: np.ndarray
  replay_ratio_inserted: np.ndarray
  generation_flops: np.ndarray
  seconds_per_iteration: float
  timed: dict[str, float]
  mu: str
  milestones: tuple[Milestone, ...]


class Results(NamedTuple):
  """baseline: its name. window: iterations of the trailing mean."""

  baseline: str
  window: int
  arms: tuple[Arm, ...]


def make(
  arms: list[runs.Run],
  *,
  baseline: str,
  thresholds: tuple[float, ...],
  window: int,
) -> Results:
  """Computes the table.

  Args:
    arms: runs with different names.
    baseline: name of the arm that the others are compared with.
    thresholds: rewards, on the scale of the task.
    window: iterations of the trailing mean of reward and entropy.

  Returns:
    The table, with the arms in the order given.

  Raises:
    ValueError: if the baseline is not an arm, or a run is shorter than the
      window.
  """
  for run in arms:
    if not 1 <= window <= len(run.iterations):
      raise ValueError(
        f'smooth = {window}: must be between 1 and the '
        f'{len(run.iterations)} iterations of run {run.name!r}'
      )
  by_name = {run.name: run for run in arms}
  if baseline not in by_name:
    raise ValueError(
      f'baseline = {baseline!r}: must be one of {sorted(by_name)}'
    )
  rows = [_arm(run, by_name[baseline], thresholds, window) for run in arms]
  return Results(baseline, window, tuple(rows))


def saving(
  spent: np.ndarray, baseline: np.ndarray, *, is_paired: bool
) -> Saving:
  """Compares what an arm spent with what the baseline spent.

  Args:
    spent: `[S]`, infinite where a seed did not reach the reward.
    baseline: `[S']`, the same of the baseline.
    is_paired: whether equal positions are equal seeds.

  Returns:
    The saving. The bootstrap draws seeds with replacement, in pairs if there
    are pairs, always the same.
  """
  if is_paired:
    per_seed = _saved_share(spent, baseline)
    median = float(np.median(per_seed))
  else:
    per_seed = np.zeros(0)
    median = float(_saved_share(np.median(spent), np.median(baseline)))
  if not (np.isfinite(spent).all() and np.isfinite(baseline).all()):
    return Saving(per_seed, median, None)

  def unpaired(spent, baseline, axis):
    return 1 - np.median(spent, axis=axis) / np.median(baseline, axis=axis)

  interval = bootstrap.interval(
    (per_seed,) if is_paired else (spent, baseline),
    np.median if is_paired else unpaired,
    confidence=bootstrap.CONFIDENCE,
    num_resamples=bootstrap.NUM_RESAMPLES,
    seed=0,
  )
  return Saving(per_seed, median, interval)


def _saved_share(spent: np.ndarray, baseline: np.ndarray) -> np.ndarray:
  """Returns 1 - spent / baseline; NaN where the baseline is not finite."""
  known = np.where(np.isfinite(baseline), baseline, np.nan)
  return 1 - spent / known


def _arm(
  run: runs.Run,
  baseline: runs.Run,
  thresholds: tuple[float, ...],
  window: int,
) -> Arm:
  generated = run.column('ledger/prefill_flops') + run.column(
    'ledger/decode_flops'
  )
  trained = run.column('ledger/training_flops')
  total = np.where(generated + trained > 0, generated + trained, np.nan)

  def median(values):
    known = values[~run.is_first & np.isfinite(values)]
    return float(np.median(known)) if known.size else np.nan

  return Arm(
    name=run.name,
    seeds=run.seeds,
    num_iterations=len(run.iterations),
    reward=curves.trailing_mean(run.column('reward'), window)[:, -1],
    entropy=curves.trailing_mean(run.column('entropy'), window)[:, -1],
    replay_ratio=run.column('replay_ratio')[:, -1],
    replay_ratio_inserted=run.column('replay_ratio_inserted')[:, -1],
    generation_flops=(generated / total)[:, -1],
    seconds_per_iteration=median(run.seconds),
    timed={key: median(run.timed[key]) for key in sorted(run.timed)},
    mu=str(run.config.get('mu', 'unknown')),
    milestones=tuple(
      _milestone(run, baseline, threshold, window) for threshold in thresholds
    ),
  )


def _milestone(
  run: runs.Run, baseline: runs.Run, threshold: float, window: int
) -> Milestone:
  columns = _crossings(run, threshold, window)
  baseline_columns = _crossings(baseline, threshold, window)
  entropies = curves.trailing_mean(run.column('entropy'), window)
  is_baseline = run.name == baseline.name
  is_paired = np.array_equal(run.seeds, baseline.seeds)
  spent = {}
  wall_clock = ''
  for name, key in SPENT.items():
    per_seed = curves.at(run.column(key), columns)
    reference = curves.at(baseline.column(key), baseline_columns)
    saved = None
    if name in SAVED and not is_baseline:
      saved = saving(per_seed, reference, is_paired=is_paired)
    spent[name] = Spending(per_seed, saved)
    if name == 'seconds' and not is_baseline:
      is_comparable = _is_timing_comparable(run, baseline)
      wall_clock = _wall_clock(per_seed, reference, is_comparable)
  return Milestone(threshold, spent, curves.at(entropies, columns), wall_clock)


def _is_timing_comparable(run: runs.Run, baseline: runs.Run) -> bool:
  """Tells whether two runs trained equally many seeds on the same hardware.

  Seconds cover all seeds of a run, trained together as one program.
  """
  return (
    len(run.seeds) == len(baseline.seeds) and run.hardware == baseline.hardware
  )


def _crossings(run: runs.Run, threshold: float, window: int) -> np.ndarray:
  rewards = curves.trailing_mean(run.column('reward'), window)
  return curves.crossings(rewards, threshold)


def _wall_clock(
  per_seed: np.ndarray, reference: np.ndarray, is_comparable: bool
) -> str:
  seconds, baseline = np.median(per_seed), np.median(reference)
  if not is_comparable or not np.isfinite(baseline) or np.isnan(seconds):
    return 'unknown'
  return 'improved' if seconds < baseline else 'not improved'
