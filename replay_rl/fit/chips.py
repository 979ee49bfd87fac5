"""Memory, FLOP/s and bandwidth of accelerators, from their makers' pages."""

from collections.abc import Mapping
from typing import NamedTuple


class Device(NamedTuple):
  """One chip.

  memory: bytes; makers count 10^9 to the GB.
  flops: peak FLOP/s of dense bfloat16 matrices, without sparsity.
  bandwidth: bytes/s between the chip and its memory.
  source: the maker's page with these numbers.
  """

  memory: float
  flops: float
  bandwidth: float
  source: str


DEVICES: Mapping[str, Device] = {
  'a100': Device(
    80e9, 312e12, 2.039e12, 'https://www.nvidia.com/en-us/data-center/a100/'
  ),
  'h100': Device(
    80e9, 989e12, 3.35e12, 'https://www.nvidia.com/en-us/data-center/h100/'
  ),
  'h200': Device(
    141e9, 989e12, 4.8e12, 'https://www.nvidia.com/en-us/data-center/h200/'
  ),
  'v4': Device(32e9, 275e12, 1.2e12, 'https://cloud.google.com/tpu/docs/v4'),
  'v5e': Device(
    16e9, 197e12, 0.819e12, 'https://cloud.google.com/tpu/docs/v5e'
  ),
  'v5p': Device(
    95e9, 459e12, 2.765e12, 'https://cloud.google.com/tpu/docs/v5p'
  ),
  'v6e': Device(32e9, 918e12, 1.64e12, 'https://cloud.google.com/tpu/docs/v6e'),
}


def named(name: str) -> Device:
  """Returns a device; raises ValueError that lists the names."""
  if name not in DEVICES:
    raise ValueError(f'device = {name!r}: must be one of {sorted(DEVICES)}')
  return DEVICES[name]
