"""Fits what the theory of replay leaves free to measured runs.

Intervals are percentiles of a bootstrap. A resample draws groups of rollouts
within each seed and each bin of ages, and directions of the projection, and
repetitions of a timing. It keeps the seeds and the checkpoints, so an interval
is about these runs; the values of each seed show how they differ.
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np

from replay_rl.plan import run_noise
from replay_rl.replay import gradient_noise
from replay_rl.replay import noise_growth
from replay_rl.run import config as config_lib

CONFIDENCE = 0.95
# Fields in which runs that are fitted together may differ.
_MAY_DIFFER = (
  *('name', 'seed', 'num_seeds', 'num_iterations', 'stop', 'mu', 'cache_dir'),
  *('vmap_seeds', 'evaluation.', 'logging.', 'checkpoint.', 'mesh.'),
)


class Value(NamedTuple):
  """An estimate and its interval: numbers, or arrays of numbers."""

  value: Any
  low: Any
  high: Any


class Unit(NamedTuple):
  """One seed of a run, with the bins of its stored groups.

  noise: its groups.
  bins: `[N]`, the bin of each stored group.
  counts: `[bins]`, rollouts.
  fresh_per_update, group_size: R and G.
  """

  noise: run_noise.SeedNoise
  bins: np.ndarray
  counts: np.ndarray
  fresh_per_update: float
  group_size: int

  def measured(self, weights: gradient_noise.Weights) -> gradient_noise.Noise:
    """Returns the noise of a resample."""
    return gradient_noise.measure(
      self.noise.fresh,
      self.noise.stored,
      bins=self.bins,
      num_bins=len(self.counts),
      weights=weights,
    )

  def once(self) -> gradient_noise.Weights:
    """Returns the weights of the sample itself."""
    return gradient_noise.once(self.noise.fresh, self.noise.stored)

  def resample(self, rng: np.random.Generator) -> gradient_noise.Weights:
    """Returns random weights."""
    stored = np.zeros(len(self.bins))
    for one in np.unique(self.bins):
      where = np.flatnonzero(self.bins == one)
      stored[where] = _resampled(rng, len(where))
    return gradient_noise.Weights(
      _resampled(rng, len(self.noise.fresh.sizes)),
      stored,
      _resampled(rng, self.noise.fresh.sums.shape[1]),
    )


def _resampled(rng: np.random.Generator, size: int) -> np.ndarray:
  """Returns how often each of `size` things is drawn in as many draws."""
  return np.bincount(rng.integers(size, size=size), minlength=size).astype(
    np.float64
  )


def check_alike(
  configs: Sequence[config_lib.Config], names: Sequence[Any]
) -> None:
  """Raises ValueError if runs are too different to be fitted together."""
  first = config_lib.flatten(configs[0])
  for config, name in zip(configs[1:], names[1:], strict=True):
    for field, value in config_lib.flatten(config).items():
      if not field.startswith(_MAY_DIFFER) and value != first.get(field):
        raise ValueError(
          f'{field} of {str(name)!r} = {value!r}: must be '
          f'{first.get(field)!r}, as in {str(names[0])!r}'
        )


def bin_edges(oldest: int, num_bins: int) -> np.ndarray:
  """Returns rising whole ages from 0 to past the oldest, in equal ratios.

  The first bin has the age 0 alone, if a stored rollout has it.
  """
  edges = np.geomspace(1, oldest + 1, num_bins + 1)
  return np.unique(np.append(0, np.ceil(edges - 1e-9).astype(int)))


def units(runs: Sequence[run_noise.RunNoise], num_bins: int) -> list[Unit]:
  """Returns the seeds of all runs, with the same bins for all."""
  oldest = max(int(x.stored.ages.max()) for run in runs for x in run.seeds)
  edges = bin_edges(oldest, num_bins)
  made = []
  for run in runs:
    for one in run.seeds:
      bins = np.searchsorted(edges, one.stored.ages, side='right') - 1
      counts = np.bincount(
        bins, weights=one.stored.sizes, minlength=len(edges) - 1
      )
      group_size = run.config.sampler.group_size
      made.append(Unit(one, bins, counts, run.fresh_per_update, group_size))
  return made


def quantities(
  units: Sequence[Unit], noises: Sequence[gradient_noise.Noise]
) -> dict[str, Any]:
  """Returns what is fitted, as means over seeds.

  variance, alignment: `[bins]`, in units of a fresh rollout's.
  rho: R times the mean correlation between groups; then rho / R is the term of
    the theory. It contains the bias of old rollouts.
  rho_by_distance: N times the slope of that correlation over the distance of
    the ages, the assumption of theorem 4.4 to the letter.
  bias: R times the intercept of that line, which a shared bias would cause.
  rho_fresh, rho_stored: (G - 1) times the correlation within a group.
  """
  pooled: dict[str, Any] = {
    name: float(
      np.mean([function(*x) for x in zip(units, noises, strict=True)])
    )
    for name, function in _SCALARS.items()
  }
  counts = np.array([unit.counts for unit in units])

  def mean(values):
    values = np.where(counts > 0, values, 0.0)
    with np.errstate(invalid='ignore'):
      return values.sum(axis=0) / (counts > 0).sum(axis=0)

  scale = np.array([[noise.fresh_variance] for noise in noises])
  pooled['variance'] = mean([x.variances for x in noises] / scale)
  signal = np.array([[noise.signal] for noise in noises]) / scale
  pooled['alignment'] = mean([x.alongs for x in noises] / scale) / mean(
    np.broadcast_to(signal, counts.shape)
  )
  return pooled


_SCALARS: dict[str, Callable[[Unit, gradient_noise.Noise], float]] = {
  'rho': lambda unit, noise: unit.fresh_per_update * noise.between,
  'rho_by_distance': lambda unit, noise: (
    unit.noise.stored.sizes.sum() * noise.slope
  ),
  'bias': lambda unit, noise: unit.fresh_per_update * noise.intercept,
  'rho_fresh': lambda unit, noise: (unit.group_size - 1) * noise.within_fresh,
  'rho_stored': lambda unit, noise: (unit.group_size - 1) * noise.within_stored,
  'signal_to_noise': lambda unit, noise: noise.signal / noise.fresh_variance,
  'fresh_variance': lambda unit, noise: noise.fresh_variance,
}


def fit(
  units: Sequence[Unit], *, num_resamples: int, seed: int
) -> dict[str, Any]:
  """Returns the curve of the variance, its growth and the correlations.

  Args:
    units: see `units`.
    num_resamples: of the bootstrap.
    seed: of the bootstrap.
  """
  rng = np.random.default_rng(seed)
  counts = np.sum([unit.counts for unit in units], axis=0)
  is_there = counts > 0
  ages = np.zeros(len(counts))
  for unit in units:
    of_groups = unit.noise.stored.sizes * unit.noise.stored.ages
    ages += np.bincount(unit.bins, weights=of_groups, minlength=len(counts))
  ages = np.append(0.0, ages[is_there] / counts[is_there])
  num_fresh = sum(unit.noise.fresh.sizes.sum() for unit in units)
  counts = np.append(num_fresh, counts[is_there])

  def quantities_of(weights):
    noises = [
      unit.measured(one) for unit, one in zip(units, weights, strict=True)
    ]
    result = quantities(units, noises)
    for name in ('variance', 'alignment'):
      result[name] = np.append(1.0, result[name][is_there])
    growth = noise_growth.fit(ages, result['variance'], counts)
    return result | growth._asdict(), noises

  found, noises = quantities_of([unit.once() for unit in units])
  resampled = [
    quantities_of([unit.resample(rng) for unit in units])[0]
    for _ in range(num_resamples)
  ]
  values = {name: _value(found, resampled, name) for name in found}
  curve = [
    {
      'age': age,
      'variance': values['variance'].value[i],
      'variance_low': values['variance'].low[i],
      'variance_high': values['variance'].high[i],
      'alignment': values['alignment'].value[i],
      'alignment_low': values['alignment'].low[i],
      'alignment_high': values['alignment'].high[i],
      'num_rollouts': int(counts[i]),
    }
    for i, age in enumerate(ages)
  ]
  names = [*_SCALARS, *noise_growth.Growth._fields]
  return {
    'curve': curve,
    'values': {name: values[name] for name in names},
    'share_of_resamples_without_growth': float(
      np.mean([np.isinf(x['tau']) for x in resampled])
    ),
    'by_seed': [
      {'seed': unit.noise.seed}
      | {name: function(unit, x) for name, function in _SCALARS.items()}
      | {'variance': (x.variances[is_there] / x.fresh_variance).tolist()}
      for unit, x in zip(units, noises, strict=True)
    ],
  }


def _value(found: dict, resampled: list[dict], name: str) -> Value:
  """Returns an estimate with its interval; without growth, alpha has none."""
  samples = np.array([x[name] for x in resampled], np.float64)
  ends = (1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2
  if name == 'alpha':
    samples = samples[~np.isnan(samples)]
    if not len(samples):
      return Value(found[name], np.nan, np.nan)
  # No interpolation, which has no value between a number and infinity.
  low, high = np.quantile(samples, ends, axis=0, method='nearest')
  return Value(found[name], low, high)


def mu(
  runs: Sequence[run_noise.RunNoise], *, num_resamples: int, seed: int
) -> Value:
  """Returns the cost of generating a rollout over that of training on one.

  The ratio of medians over the repetitions, as a mean over runs.
  """
  rng = np.random.default_rng(seed)

  def ratio(drawn):
    ratios = []
    for run in runs:
      times = run.times
      generate, learn = (drawn(x) for x in (times.generate, times.learn))
      ratios.append(
        np.median(generate)
        / times.num_generated
        / (np.median(learn) / times.num_trained)
      )
    return float(np.mean(ratios))

  found = {'mu': ratio(lambda x: x)}
  resampled = [
    {'mu': ratio(lambda x: rng.choice(x, len(x)))} for _ in range(num_resamples)
  ]
  return _value(found, resampled, 'mu')
