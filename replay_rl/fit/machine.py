"""Compares what a run needs at the very least with the memory that there is."""

import warnings
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import jax

from replay_rl.fit import advice
from replay_rl.fit import memory as memory_lib
from replay_rl.parallel import host_memory
from replay_rl.run import config as config_lib
from replay_rl.run import state

# Bytes of a verifier's process at the very least: Python and math-verify.
_WORKER = 40 * 10**6


class _Demand(NamedTuple):
  """What a run needs of one memory.

  needed: bytes. there: bytes; None if nobody says.
  where: the memory, in words.
  terms: bytes on one device, by what they hold.
  """

  needed: int
  there: int | None
  where: str
  terms: Mapping[str, int]


def check(
  config: config_lib.Config,
  parts: state.Parts,
  mesh: jax.sharding.Mesh,
  sampler_mesh: jax.sharding.Mesh | None,
  *,
  allow_memory: bool,
) -> None:
  """Raises ValueError if the run cannot fit the devices of this process.

  A run that passes may still need more, see `memory.memory`. Where a device or
  the system does not say how much memory there is, every run passes.

  Args:
    config: the run.
    parts: what was built from it.
    mesh: the devices of the run.
    sampler_mesh: the devices that generate; None for `mesh`.
    allow_memory: whether to warn instead.
  """
  least = memory_lib.least(config, parts, mesh, sampler_mesh)
  verifier = config.text.num_workers * _WORKER if config.text else 0
  for demand in _demands(least, verifier, mesh.local_devices):
    if demand.there is None or demand.needed <= demand.there:
      continue
    term = max(demand.terms, key=lambda name: demand.terms[name])
    message = (
      f'memory = {_gigabytes(demand.needed)} GB: must be at most '
      f'{_gigabytes(demand.there)} GB, {demand.where}; the largest term is '
      f'{term!r} with {_gigabytes(demand.terms[term])} GB; what helps: '
      f'{advice.ADVICE[term]}'
    )
    if not allow_memory:
      raise ValueError(f'{message}; --allow_memory starts the run all the same')
    warnings.warn(message, stacklevel=2)


def _demands(
  least: memory_lib.Memory, verifier: int, devices: Sequence[Any]
) -> list[_Demand]:
  terms, free = dict(least.terms_at_peak), host_memory.available()
  terms.pop('copy of the run', None)  # What it copies says more.
  on_host = {'replay buffer': least.on_host, 'verifier': verifier}
  where = 'the free memory of this machine'
  if not devices:
    return []
  device, num_devices = devices[0], len(devices)
  if device.platform == 'cpu':
    # All devices share the memory. Their programs may run in turn.
    kept = sum(least.kept.values())
    terms |= {name: size + terms.get(name, 0) for name, size in on_host.items()}
    needed = num_devices * (kept + least.on_host) + least.total - kept
    return [_Demand(needed + verifier, free, where, terms)]
  limit = (device.memory_stats() or {}).get('bytes_limit')
  return [
    _Demand(num_devices * least.on_host + verifier, free, where, on_host),
    _Demand(least.total, limit, f'the memory of a {device.device_kind}', terms),
  ]


def _gigabytes(num_bytes: int) -> str:
  return f'{num_bytes / 1e9:.2f}'
