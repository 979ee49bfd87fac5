"""What a replay buffer would save, by the theory of `replay.planner`."""

import csv
import math
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import numpy as np

from replay_rl.replay import noise
from replay_rl.replay import planner

_MAX_UPDATES = 1e4  # The largest x that is tried if no --max_x is given.
_UPDATES = (1, 2, 4, 8)  # U of the settings.
_FACTORS = (0.5, 2.0)  # By which an input may be wrong.


class Inputs(NamedTuple):
  """What the theory needs.

  mu, rho, rho_fresh: see the flags.
  variance: of a rollout's gradient, by age.
  max_x: the largest x.
  without_replacement: see the flag.
  """

  mu: float
  rho: float
  rho_fresh: float
  variance: noise.VarianceFn
  max_x: float
  without_replacement: bool

  def saving(self, ratios: planner.Ratios) -> float:
    """Returns the saving of these ratios against a run without a buffer."""
    mean = noise.mean_variance(self.variance)
    cost = planner.cost(ratios, mean, mu=self.mu, rho=self.rho)
    return 1 - float(cost) / self.on_policy()

  def on_policy(self) -> float:
    """Returns the cost without a buffer."""
    return planner.on_policy(
      variance=float(self.variance(np.zeros(1))[0]),
      mu=self.mu,
      rho=self.rho_fresh,
    )

  def optimum(self) -> planner.Optimum:
    """Returns the best ratios of a buffer of one generation at least."""
    return planner.minimum(
      noise.mean_variance(self.variance),
      mu=self.mu,
      rho=self.rho,
      min_x=1.0,
      max_x=self.max_x,
      y=None,
      without_replacement=self.without_replacement,
    )


def inputs(
  *,
  mu: float,
  rho: float,
  rho_fresh: float,
  alpha: float | None,
  tau: float | None,
  curve: str | None,
  max_x: float | None,
  without_replacement: bool,
) -> Inputs:
  """Returns the inputs that the flags give.

  Raises:
    ValueError: a curve is given together with alpha or tau; or there is no
      curve, and alpha or tau is missing; or the curve cannot be read.
  """
  if curve is not None:
    if alpha is not None or tau is not None:
      raise ValueError(
        f'--curve = {curve!r}: must not be given with --alpha or --tau'
      )
    ages, variances = _read(curve)
    variance = noise.measured(ages, variances)
    most = math.floor(ages[-1]) + 1.0
  else:
    if alpha is None or tau is None:
      raise ValueError(
        f'--alpha = {alpha}, --tau = {tau}: must both be given, or --curve'
      )
    variance, most = noise.growing(alpha=alpha, tau=tau), _MAX_UPDATES
  return Inputs(
    mu=mu,
    rho=rho,
    rho_fresh=rho_fresh,
    variance=variance,
    max_x=most if max_x is None else max_x,
    without_replacement=without_replacement,
  )


def _read(path: str) -> tuple[list[float], list[float]]:
  with open(path, newline='', encoding='utf-8') as file:
    rows = list(csv.DictReader(file))
  try:
    ages, variances = (
      [float(row[name]) for row in rows] for name in ('age', 'variance')
    )
  except (KeyError, TypeError, ValueError) as error:
    raise ValueError(
      f'--curve = {path!r}: must be a CSV with numbers in the columns age and '
      f'variance ({error!r})'
    ) from error
  return ages, variances


class Sensitivity(NamedTuple):
  """What the saving would be if one input were another.

  name, value: of the input.
  chosen: the saving of the ratios that were chosen.
  best: the saving of the ratios that would then be the best.
  """

  name: str
  value: float
  chosen: float
  best: float


def sensitivity(
  given: Mapping[str, Any], ratios: planner.Ratios
) -> list[Sensitivity]:
  """Returns the saving of chosen ratios with half and with twice each input.

  Args:
    given: arguments of `inputs`.
    ratios: what was chosen with them.
  """
  rows = []
  for name in ('mu', 'rho', 'alpha', 'tau'):
    for factor in _FACTORS if given[name] else ():
      value = given[name] * factor
      if name == 'rho' and value > 1:
        continue  # No correlation is.
      changed = inputs(**{**given, name: value})
      rows.append(
        Sensitivity(
          name=name,
          value=value,
          chosen=changed.saving(ratios),
          best=changed.saving(changed.optimum().ratios),
        )
      )
  return rows


def plan(
  given: Mapping[str, Any],
  *,
  batch_size: int | None,
  group_size: int | None,
  max_capacity: int,
  num_devices: int | None,
) -> dict[str, Any]:
  """Returns the plan as a JSON object; parts that were not asked for are None.

  Args:
    given: arguments of `inputs`.
    batch_size, group_size, max_capacity: see `planner.settings`.
    num_devices: see `planner.split`.

  Raises:
    ValueError: an input that is missing or not allowed.
  """
  result: dict[str, Any] = dict.fromkeys(
    ('closed_form', 'optimum', 'sensitivity', 'settings', 'split')
  )
  for name in ('mu', 'rho'):
    if given[name] is None:
      raise ValueError(f'--{name} = None: must be given')
  alpha = given['alpha']
  if alpha is not None and alpha < 0.5:
    ratios = planner.power_law(alpha=alpha, mu=given['mu'], rho=given['rho'])
    result['closed_form'] = ratios._asdict()
    if given['tau'] is None and given['curve'] is None:
      return result
  known = inputs(**given)
  mean = noise.mean_variance(known.variance)
  ratios, cost = known.optimum()
  of_paper = planner.paper_baseline(mean, mu=known.mu, rho=known.rho)
  result['optimum'] = ratios._asdict() | {
    'saving': known.saving(ratios),
    'paper_saving': 1 - cost / of_paper,
  }
  rows = sensitivity(given, ratios)
  result['sensitivity'] = [row._asdict() for row in rows]
  if batch_size is not None:
    if group_size is None:
      raise ValueError('--group_size = None: must be given with --batch_size')
    result['settings'] = _settings(
      known, batch_size, group_size, max_capacity=max_capacity
    )
  if num_devices is not None:
    chosen = planner.split(
      mean,
      mu=known.mu,
      rho=known.rho,
      num_devices=num_devices,
      min_x=1.0,
      max_x=known.max_x,
      without_replacement=known.without_replacement,
    )
    result['split'] = _flat(chosen, known)
  return result


def _settings(
  known: Inputs, batch_size: int, group_size: int, *, max_capacity: int
) -> list[dict[str, Any]]:
  """Returns the best settings for each number of updates that is possible."""
  rows, refused = [], None
  for updates in _UPDATES:
    try:
      chosen = planner.settings(
        known.variance,
        mu=known.mu,
        rho=known.rho,
        batch_size=batch_size,
        group_size=group_size,
        updates_per_iteration=updates,
        max_x=known.max_x,
        max_capacity=max_capacity,
        without_replacement=known.without_replacement,
      )
    except ValueError as error:
      refused = error
    else:
      rows.append(_flat(chosen, known))
  if refused is not None and not rows:
    raise refused
  return rows


def _flat(
  chosen: planner.ReplaySettings | planner.Split, known: Inputs
) -> dict[str, Any]:
  values = chosen._asdict()
  ratios, cost = values.pop('ratios'), values.pop('cost')
  return values | ratios._asdict() | {'saving': 1 - cost / known.on_policy()}
