"""What the histograms of a uniformly sampled FIFO buffer are expected to be.

"Efficient RL Training for LLMs with Experience Replay" (arXiv 2604.08706), in
the synchronous model: an iteration inserts R rollouts into a ring of N slots,
and each of its U updates draws B of the filled slots with replacement. With x =
N / R and y = U B / R, once the ring is full, and for U = 1: ages are uniform on
0, ..., x - 1; a rollout is used Binomial(B x, 1 / N) times, about Poisson(y);
and the steps since its last use are geometric with q = 1 - (1 - 1 / N)^B, cut
off by its age. Here all of it is exact for a run of I iterations, from an empty
ring on, for any N >= R and U.
"""

import collections
import itertools
import re
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import numpy as np
from scipy import stats

_LEAST_EXPECTED = 5.0  # In a bin of the chi-square test, as is usual.


class Synchronous(NamedTuple):
  """The numbers of the model.

  capacity: N. num_fresh: R, at most N. batch_size: B. num_updates: U, of an
  iteration. num_iterations: I.
  """

  capacity: int
  num_fresh: int
  batch_size: int
  num_updates: int
  num_iterations: int

  def filled(self) -> np.ndarray:
    """Returns `[I]` slots that are filled in each iteration."""
    inserted = self.num_fresh * np.arange(1, self.num_iterations + 1)
    return np.minimum(inserted, self.capacity)

  def rows_by_age(self) -> np.ndarray:
    """Returns the slots of a full ring that hold rollouts of d iterations ago.

    `[x]` for whole x; else the last element is the rest.
    """
    whole, rest = divmod(self.capacity, self.num_fresh)
    return np.array([self.num_fresh] * whole + [rest] * (rest > 0))


class Fit(NamedTuple):
  """How well counts agree with what is expected.

  p_value: of a chi-square test; NaN with fewer than two bins.
  total_variation: distance of the two distributions, from 0 to 1.
  """

  p_value: float
  total_variation: float


def model_of(
  config: Mapping[str, Any], num_iterations: int
) -> tuple[Synchronous | None, str]:
  """Returns the model of a run, or None and the setting that it cannot have.

  Args:
    config: the resolved configuration, nested.
    num_iterations: that the run made.
  """
  replay, sampler = config['replay'], config['sampler']
  num_fresh = sampler['num_prompts'] * sampler['group_size']
  for name, value, allowed in (
    ('schedule', config['schedule'], r'synchronous\(\)'),
    ('sampler.weight_lag', sampler['weight_lag'], '0'),
    ('replay.compose', replay['compose'], r'pure_buffer\(rows_in_use=None\)'),
    ('replay.weights', replay['weights'], r'uniform\(\)'),
    ('replay.draw', replay['draw'], r'blocked_inverse_cdf\(stratified=False\)'),
    ('replay.keep', replay['keep'], r'(ring|fifo)\(\)'),
    ('replay.drop_zero_variance', replay['drop_zero_variance'], 'False'),
    ('optimizer.gate', config['optimizer']['gate'], 'None'),
    (
      'replay.updates_per_iteration',
      replay['updates_per_iteration'],
      r'[1-9]\d*(\.0)?',
    ),
  ):
    if not re.fullmatch(allowed, str(value)):
      return None, f'{name} = {value}'
  if not 2 <= num_fresh <= replay['capacity']:
    return None, f'replay.capacity = {replay["capacity"]}'
  return Synchronous(
    capacity=replay['capacity'],
    num_fresh=num_fresh,
    batch_size=replay['batch_size'],
    num_updates=int(replay['updates_per_iteration']),
    num_iterations=num_iterations,
  ), ''


def staleness(model: Synchronous, num_bins: int) -> np.ndarray:
  """Returns `[num_bins]` expected uses by age, in learner steps, of one seed.

  The last bin also holds all higher ages.
  """
  rows, updates = model.rows_by_age(), np.arange(model.num_updates)
  counts = np.zeros(len(rows) * model.num_updates)
  per_slot = model.batch_size / model.filled()
  for ago, num_rows in enumerate(rows):
    # In iteration i there are rollouts of `ago` iterations before if i >= ago.
    expected = num_rows * per_slot[ago:].sum()
    counts[ago * model.num_updates + updates] = expected
  return _fold(counts, num_bins)


def uses(model: Synchronous, num_bins: int, *, with_stored: bool) -> np.ndarray:
  """Returns `[num_bins]` expected rollouts by their number of uses.

  Args:
    model: of the run.
    num_bins: the last one also holds all that were used more often.
    with_stored: whether rollouts that are in the ring at the end count too.
  """
  end = model.num_iterations
  filled = model.filled()
  full = int(np.argmax(filled == model.capacity))
  if filled[-1] < model.capacity:
    full = end
  bins = np.arange(num_bins - 1)
  draws = model.batch_size * model.num_updates
  # of[j] is what a rollout of iteration j is used until the ring is full.
  of = [np.eye(1, num_bins - 1)[0]] * (full + 1)
  for j in reversed(range(full)):
    once = stats.binom.pmf(bins, draws, 1 / filled[j])
    of[j] = np.convolve(once, of[j + 1])[: num_bins - 1]
  whole, rest = divmod(model.capacity, model.num_fresh)
  lives = ((whole, model.num_fresh - rest), (whole + 1, rest))
  # (iteration, at most the first of a full ring; iterations after that) -> rows
  alike: collections.Counter[tuple[int, int]] = collections.Counter()
  for j, (life, num_rows) in itertools.product(range(end), lives):
    if with_stored or j + life < end:
      later = max(0, min(j + life, end) - max(j, full))
      alike[min(j, full), later] += num_rows
  counts = np.zeros(num_bins - 1)
  for (first, later), num_rows in alike.items():
    once_full = stats.binom.pmf(bins, draws * later, 1 / model.capacity)
    counts += num_rows * np.convolve(of[first], once_full)[: num_bins - 1]
  total = sum(alike.values())
  return np.append(counts, total - counts.sum())


def steps_since_last_use(model: Synchronous, num_bins: int) -> np.ndarray:
  """Returns expected uses by the learner steps since the use before.

  Args:
    model: of the run.
    num_bins: the last one also holds all higher numbers of steps.

  Returns:
    `[1 + num_bins]`: first uses, then 0 steps (again in the same batch), 1, ...
  """
  num_updates, batch_size = model.num_updates, model.batch_size
  rows, filled = model.rows_by_age(), model.filled()
  # From then on all iterations are alike: no rollout is of the time before the
  # ring was full.
  alike = min(model.num_iterations, 2 * len(rows) + 1)
  per_update = np.repeat(filled[:alike], num_updates).astype(float)
  missed = np.exp(batch_size * np.log1p(-1 / per_update))  # Not drawn at all.
  # The chance not to be drawn in all updates before each.
  log_missed = np.append(0, np.cumsum(np.log(missed)))
  counts = np.zeros(2 + num_updates * len(rows))
  for step in range(len(per_update)):
    iteration, update = divmod(step, num_updates)
    weight = 1
    if iteration == alike - 1:
      weight = model.num_iterations - iteration
    here = rows[: iteration + 1]
    drawn = 1 - missed[step]
    counts[1] += weight * (batch_size - here.sum() * drawn)
    ages = np.arange(len(here)) * num_updates + update
    since_insert = np.exp(log_missed[step] - log_missed[step - ages])
    counts[0] += weight * drawn * (here * since_insert).sum()
    gaps = np.arange(1, ages[-1] + 1)
    # Slots whose rollout is at least so old.
    num_older = np.append(0, np.cumsum(here[::-1]))[
      len(here) - np.searchsorted(ages, gaps)
    ]
    between = np.exp(log_missed[step] - log_missed[step - gaps + 1])
    before = 1 - missed[step - gaps]
    counts[1 + gaps] += weight * drawn * num_older * before * between
  return np.append(counts[0], _fold(counts[1:], num_bins))


def fit(counts: np.ndarray, expected: np.ndarray, *, ddof: int) -> Fit:
  """Compares counts with expected ones, which are scaled to the same sum.

  Args:
    counts: `[K]` whole numbers, at least one of them above 0.
    expected: `[K]`.
    ddof: degrees of freedom that the counts lack, beyond their sum.
  """
  expected = expected * (counts.sum() / expected.sum())
  distance = float(np.abs(counts - expected).sum() / (2 * counts.sum()))
  observed, wanted = [0.0], [0.0]
  for count, one in zip(counts, expected, strict=True):
    if wanted[-1] >= _LEAST_EXPECTED:
      observed.append(0.0)
      wanted.append(0.0)
    observed[-1] += count
    wanted[-1] += one
  if len(wanted) > 1 and wanted[-1] < _LEAST_EXPECTED:
    observed[-2:] = [sum(observed[-2:])]
    wanted[-2:] = [sum(wanted[-2:])]
  if len(wanted) < 2 + ddof:
    return Fit(float('nan'), distance)
  p_value = stats.chisquare(observed, wanted, ddof=ddof).pvalue
  return Fit(float(p_value), distance)


def _fold(counts: np.ndarray, num_bins: int) -> np.ndarray:
  """Returns `[num_bins]`, the last of which holds the rest."""
  padded = np.append(counts, np.zeros(max(0, num_bins - len(counts))))
  return np.append(padded[: num_bins - 1], padded[num_bins - 1 :].sum())
