"""Reads from a compiled program what it sends between devices."""

import math
import re

import jax

_OPERATION = re.compile(
  r'= (\(.*?\)|\S+) (all-gather|all-reduce|reduce-scatter|all-to-all'
  r'|ragged-all-to-all|collective-permute|collective-broadcast)(?:-start)?\('
)
_ARRAY = re.compile(r'(pred|[a-z]+(\d+)\w*)\[([\d,]*)\]')


def of(compiled: jax.stages.Compiled) -> list[tuple[str, int]]:
  """Returns name and bytes of the result, on one device, of each collective."""
  text = compiled.as_text()
  assert text is not None
  return [
    (name, sum(_num_bytes(*array) for array in _ARRAY.findall(shape)))
    for shape, name in _OPERATION.findall(text)
  ]


def _num_bytes(dtype: str, bits: str, sizes: str) -> int:
  item = 1 if dtype == 'pred' else math.ceil(int(bits) / 8)
  return item * math.prod(int(size) for size in sizes.split(',') if size)
