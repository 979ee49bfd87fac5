"""What figures of a sweep need of its run folders: metrics of every iteration.

The table of a sweep has the evaluations alone, see `sweep_data`.
"""

import math
import pathlib
from typing import Any
from typing import NamedTuple

import numpy as np

from replay_rl import json_files
from replay_rl.report import curves
from replay_rl.report import runs
from replay_rl.report import sweep_data

_GENERATED, _TRAINED = 'ledger/rollouts', 'ledger/trained_rollouts'
_OVERWRITTEN, _APPLIED = 'num_overwritten', 'updates/applied'
_NUM_BINS = 40  # Of cost, over which a noisy metric is averaged.


class Histograms(NamedTuple):
  """Counts of all seeds of a cell over the whole run.

  config: of the cell, nested.
  num_seeds, num_iterations: of the run.
  counts: staleness, uses and steps_since_last_use -> `[K]` int64; the last bin
    holds the rest.
  is_every_update_applied: whether none was empty or refused.
  with_stored: whether `uses` has the rollouts in the buffer at the end, too.
  """

  config: dict[str, Any]
  num_seeds: int
  num_iterations: int
  counts: dict[str, np.ndarray]
  is_every_update_applied: bool
  with_stored: bool


def folder(sweep: sweep_data.Sweep, cell: str) -> pathlib.Path:
  """Returns the run folder of a cell."""
  return sweep.path.parent / cell


def mu_of(sweep: sweep_data.Sweep) -> float:
  """Returns the mu of the runs.

  Raises:
    ValueError: the runs have different ones.
  """
  mus = set()
  for cell in dict.fromkeys(x.cell for arm in sweep.arms for x in arm.seeds):
    path = folder(sweep, cell) / 'config.json'
    header = json_files.read_object(path, advice='is the run folder there?')
    mus.add(header.get('config', {}).get('mu'))
  if len(mus) > 1 or None in mus:
    raise ValueError(
      f'--mu = None: must be given, since the runs have {sorted(map(str, mus))}'
    )
  return float(mus.pop())


def runs_of(
  sweep: sweep_data.Sweep, arm: sweep_data.SweptArm
) -> list[runs.Run]:
  """Returns the runs of an arm, one for each of its cells."""
  cells = dict.fromkeys(seed.cell for seed in arm.seeds)
  return [runs.read(str(folder(sweep, cell))) for cell in cells]


def histograms_of(sweep: sweep_data.Sweep, cell: str) -> Histograms:
  """Returns what Figure 2 of arXiv 2604.08706 shows of a cell."""
  run = runs.read(str(folder(sweep, cell)))
  counts = {
    key: run.histograms.get(key, np.zeros(1, np.int64))
    for key in ('staleness', 'uses', 'steps_since_last_use')
  }
  updates = run.column(runs.STEPS)[:, -1].sum()
  num_overwritten = np.nansum(run.column(_OVERWRITTEN))
  return Histograms(
    config=run.config,
    num_seeds=len(run.seeds),
    num_iterations=len(run.iterations),
    counts=counts,
    is_every_update_applied=np.nansum(run.column(_APPLIED)) == updates,
    with_stored=counts['uses'].sum() > num_overwritten,
  )


def curve(
  read: list[runs.Run], key: str, mu: float
) -> tuple[np.ndarray, np.ndarray]:
  """Returns a metric of all seeds against cost, averaged over equal costs.

  Args:
    read: runs of one arm.
    key: of the metric, such as entropy.
    mu: cost of generating a rollout over that of training on it.

  Returns:
    `[N]` middles of bins of cost, and `[S, N]` means of the metric, which is
    linear between iterations. N is 0 if the metric was not written.
  """
  length = max(len(run.iterations) for run in read)
  rows = []
  for run in read:
    costs = run.column(_TRAINED) + mu * run.column(_GENERATED)
    for pair in zip(costs, run.column(key), strict=True):
      rows.append([np.append(x, [math.nan] * (length - len(x))) for x in pair])
  costs, values = np.swapaxes(np.array(rows), 0, 1)
  axis, values = curves.on_common_axis(costs, values)
  if len(axis) < 2:
    return axis, values
  ends = np.linspace(axis[0], axis[-1], _NUM_BINS + 1)
  areas = np.diff(axis) * (values[:, 1:] + values[:, :-1]) / 2
  totals = np.concatenate(
    [np.zeros((len(values), 1)), np.cumsum(areas, axis=1)], axis=1
  )
  # The area up to an end lies on a parabola between two iterations.
  at = np.clip(np.searchsorted(axis, ends, 'right') - 1, 0, len(axis) - 2)
  step = ends - axis[at]
  slope = (values[:, at + 1] - values[:, at]) / (axis[at + 1] - axis[at])
  upto = totals[:, at] + step * values[:, at] + slope * step**2 / 2
  return (ends[1:] + ends[:-1]) / 2, np.diff(upto, axis=1) / np.diff(ends)
