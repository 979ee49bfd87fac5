"""What each arm spent to reach a level, and how much less than the baseline.

In all arrays infinity means that a seed did not reach the level, and NaN that
the value is unknown. A median counts the seeds that did not reach the level as
infinite; it never leaves them out.
"""

from typing import NamedTuple

import numpy as np

from replay_rl.report import efficiency
from replay_rl.report import levels
from replay_rl.report import readings
from replay_rl.report import runs

# Names in table.json and table.csv of what is spent.
SPENT = {
  'generated_tokens': runs.TOKENS,
  'cost_units': runs.COST,
  'seconds': runs.SECONDS,
}
ACCURACY, LENGTH = 'accuracy', 'response_length'
SAVED = ('generated_tokens', 'cost_units')  # Those with a saving.
_SEED_OF_BOOTSTRAP = 0


class Saving(NamedTuple):
  """Share of the baseline's median spending that an arm did without.

  comparison: the saving, its interval and p-value; seeds are not paired.
  adjusted: p-value after Holm, for all arms that are compared at the level;
    None where there is no p-value.
  """

  comparison: levels.Comparison
  adjusted: float | None


class Spending(NamedTuple):
  """per_seed: `[S]`. saving: None for the baseline, and of seconds."""

  per_seed: np.ndarray
  saving: Saving | None

  @property
  def median(self) -> float:
    """Median over seeds, infinite if too few of them reached the level."""
    return float(np.median(self.per_seed))


class Milestone(NamedTuple):
  """What an arm had spent when it reached a level.

  threshold: the level.
  spent: name in `SPENT` -> spending.
  entropy: `[S]`, nats per token, smoothed, when the level was reached.
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
  """One line of the table. `[S]` values are those at the end of the run.

  reward, entropy, accuracy, response_length: `[S]`, means over the last window
    of the responses that were generated to learn from; the length in tokens.
  aes: score and interval for each of `efficiency.CONSTANTS`, of that accuracy
    and that length against the baseline's; () for the baseline.
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
  accuracy: np.ndarray
  response_length: np.ndarray
  aes: tuple[tuple[float, tuple[float, float] | None], ...]
  replay_ratio: np.ndarray
  replay_ratio_inserted: np.ndarray
  generation_flops: np.ndarray
  seconds_per_iteration: float
  timed: dict[str, float]
  mu: str
  milestones: tuple[Milestone, ...]


class Results(NamedTuple):
  """baseline: its name. rule: how the levels were read."""

  baseline: str
  rule: readings.Rule
  arms: tuple[Arm, ...]


def make(
  arms: list[runs.Run],
  *,
  baseline: str,
  thresholds: tuple[float, ...],
  rule: readings.Rule,
) -> Results:
  """Computes the table.

  Args:
    arms: runs with different names.
    baseline: name of the arm that the others are compared with.
    thresholds: levels, on the scale of the task.
    rule: how levels are read, from `readings.choose` on these arms.

  Returns:
    The table, with the arms in the order given.

  Raises:
    ValueError: if the baseline is not an arm.
  """
  by_name = {run.name: run for run in arms}
  if baseline not in by_name:
    raise ValueError(
      f'baseline = {baseline!r}: must be one of {sorted(by_name)}'
    )
  by_level = [_milestones(by_name, baseline, x, rule) for x in thresholds]
  rows = [
    _arm(
      run,
      None if run.name == baseline else by_name[baseline],
      tuple(of_arm[run.name] for of_arm in by_level),
      rule,
    )
    for run in arms
  ]
  return Results(baseline, rule, tuple(rows))


def savings(
  spent: dict[str, readings.Spent], baseline: str
) -> dict[str, Saving]:
  """Compares what each arm spent with what the baseline spent.

  Args:
    spent: arm -> what its seeds spent to reach a level.
    baseline: one of these arms.

  Returns:
    Each other arm -> its saving, adjusted for the number of them.
  """
  compared = {
    name: levels.compare(
      arm.per_seed,
      spent[baseline].per_seed,
      seed=_SEED_OF_BOOTSTRAP,
      limits=(arm.limit, spent[baseline].limit),
    )
    for name, arm in spent.items()
    if name != baseline
  }
  tested = {
    name: one.p_value
    for name, one in compared.items()
    if one.p_value is not None
  }
  adjusted = dict(zip(tested, levels.holm(list(tested.values())), strict=True))
  return {
    name: Saving(one, adjusted.get(name)) for name, one in compared.items()
  }


def _at_end(run: runs.Run, key: str, rule: readings.Rule) -> np.ndarray:
  """Returns the mean of a value over the last window of each seed, `[S]`."""
  return np.array(
    [means[-1] for means in readings.smoothed(run, key, rule.window)]
  )


def _arm(
  run: runs.Run,
  baseline: runs.Run | None,
  milestones: tuple[Milestone, ...],
  rule: readings.Rule,
) -> Arm:
  generated = run.column('ledger/prefill_flops') + run.column(
    'ledger/decode_flops'
  )
  trained = run.column('ledger/training_flops')
  total = np.where(generated + trained > 0, generated + trained, np.nan)

  def median(values):
    known = values[~run.is_first & np.isfinite(values)]
    return float(np.median(known)) if known.size else np.nan

  own = [_at_end(run, key, rule) for key in (ACCURACY, LENGTH)]
  aes = ()
  if baseline is not None:
    theirs = [_at_end(baseline, key, rule) for key in (ACCURACY, LENGTH)]
    aes = tuple(
      efficiency.of_seeds(own, theirs, constants)
      for constants in efficiency.CONSTANTS
    )
  return Arm(
    name=run.name,
    seeds=run.seeds,
    num_iterations=len(run.iterations),
    reward=_at_end(run, 'reward', rule),
    entropy=_at_end(run, 'entropy', rule),
    accuracy=own[0],
    response_length=own[1],
    aes=aes,
    replay_ratio=run.column('replay_ratio')[:, -1],
    replay_ratio_inserted=run.column('replay_ratio_inserted')[:, -1],
    generation_flops=(generated / total)[:, -1],
    seconds_per_iteration=median(run.seconds),
    timed={key: median(run.timed[key]) for key in sorted(run.timed)},
    mu=str(run.config.get('mu', 'unknown')),
    milestones=milestones,
  )


def _milestones(
  arms: dict[str, runs.Run],
  baseline: str,
  level: float,
  rule: readings.Rule,
) -> dict[str, Milestone]:
  """Returns the milestone of each arm at a level."""
  spent = {
    measure: {
      name: readings.spent(run, level, key, rule) for name, run in arms.items()
    }
    for measure, key in SPENT.items()
  }
  saved = {measure: savings(spent[measure], baseline) for measure in SAVED}
  milestones = {}
  for name, run in arms.items():
    wall_clock = ''
    if name != baseline:
      wall_clock = _wall_clock(
        spent['seconds'][name].per_seed,
        spent['seconds'][baseline].per_seed,
        _is_timing_comparable(run, arms[baseline]),
      )
    milestones[name] = Milestone(
      threshold=level,
      spent={
        measure: Spending(
          of_arms[name].per_seed, saved.get(measure, {}).get(name)
        )
        for measure, of_arms in spent.items()
      },
      entropy=readings.value_when(
        run, 'entropy', spent['cost_units'][name].per_seed, rule.window
      ),
      wall_clock=wall_clock,
    )
  return milestones


def _is_timing_comparable(run: runs.Run, baseline: runs.Run) -> bool:
  """Tells whether two runs trained equally many seeds on the same hardware.

  Seconds cover all seeds of a run, trained together as one program.
  """
  return (
    len(run.seeds) == len(baseline.seeds) and run.hardware == baseline.hardware
  )


def _wall_clock(
  per_seed: np.ndarray, reference: np.ndarray, is_comparable: bool
) -> str:
  seconds, baseline = np.median(per_seed), np.median(reference)
  if not is_comparable or not np.isfinite(baseline) or np.isnan(seconds):
    return 'unknown'
  return 'improved' if seconds < baseline else 'not improved'
