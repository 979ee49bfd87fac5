"""Costs of a compiled program: collectives with their bytes, and FLOPs."""

import itertools
import math
import re
from typing import NamedTuple

from replay_rl.fit import hlo

COLLECTIVES = (
  'all-gather',
  'all-reduce',
  'reduce-scatter',
  'all-to-all',
  'ragged-all-to-all',
  'collective-permute',
  'collective-broadcast',
)


class Collective(NamedTuple):
  """A collective of a program, on one device.

  kind: one of `COLLECTIVES`.
  num_bytes: of the operands or of the result of one execution, the larger.
  times: how often it is executed.
  shape: of the result, as XLA writes it.
  source: the operation of the Python program that it comes from; '' if unknown.
  """

  kind: str
  num_bytes: int
  times: hlo.Times
  shape: str
  source: str


def collectives(module: hlo.Module) -> list[Collective]:
  """Returns every collective that a program executes.

  An asynchronous collective counts once. XLA writes it as two instructions,
  start and done, or for a TPU as a chain of fusions that share a channel.
  """
  dones = {
    instruction.operands[0]: instruction
    for instruction in module.instructions.values()
    if instruction.opcode.endswith('-done')
  }
  costs, chains = [], set()
  for computation, body in module.computations.items():
    times = module.executed[computation]
    for instruction in body:
      kind = instruction.opcode.removesuffix('-start')
      if kind not in COLLECTIVES or not times.number:
        continue
      chain = re.search(r'chain_id="(\d+)"', instruction.attributes)
      if chain:
        key = (kind, chain[1], instruction.attribute('channel_id'))
        if key in chains:
          continue
        chains.add(key)
      result = dones.get(instruction.name, instruction).shape
      source = re.search(r'op_name="([^"]*)"', instruction.attributes)
      costs.append(
        Collective(
          kind=kind,
          num_bytes=max(
            hlo.num_bytes(result),
            sum(
              hlo.num_bytes(module.instructions[name].shape)
              for name in instruction.operands
            ),
          ),
          times=times,
          shape=re.sub(r'\{[^}]*\}|/\*.*?\*/', '', result),
          source=source[1] if source else '',
        )
      )
  return costs


def flops(module: hlo.Module) -> hlo.Times:
  """Returns the FLOPs of all matrix products, on one device."""
  return hlo.total(
    hlo.product(
      module.executed[computation],
      hlo.Times(_flops(instruction, module), hlo.EXACT),
    )
    for computation, body in module.computations.items()
    for instruction in body
    if instruction.opcode in ('dot', 'convolution')
  )


def _flops(instruction: hlo.Instruction, module: hlo.Module) -> int:
  left, right = (
    hlo.sizes(module.instructions[name].shape)
    for name in instruction.operands[:2]
  )
  result = hlo.sizes(instruction.shape)
  if instruction.opcode == 'dot':
    contracted = instruction.attribute('lhs_contracting_dims')
    return (
      2
      * math.prod(result)
      * math.prod(left[int(axis)] for axis in re.findall(r'\d+', contracted))
    )
  labels = re.match(r'(\w+)_(\w+)->(\w+)', instruction.attribute('dim_labels'))
  assert labels is not None
  inputs, kernel, output = (
    dict(zip(names, sizes, strict=True))
    for names, sizes in zip(labels.groups(), (left, right, result), strict=True)
  )
  windows = _windows(instruction.attribute('window'))
  groups = int(instruction.attribute('batch_group_count') or 1)
  products = kernel['i'] * kernel['o'] * inputs['b'] // groups
  for axis in sorted(inputs.keys() - {'b', 'f'}):
    products *= _overlaps(
      inputs[axis], kernel[axis], output[axis], windows[int(axis)]
    )
  return 2 * products


def _windows(text: str) -> list[dict[str, int]]:
  """Returns the window of each spatial axis of a convolution."""
  fields = dict(re.findall(r'(\w+)=(\S+)', text.strip('{}')))
  sizes = fields.get('size', '').split('x')

  def numbers(name, default):
    values = fields.get(name, 'x'.join([default] * len(sizes)))
    return [int(number.split('_')[0]) for number in values.split('x')]

  return [
    dict(zip(('stride', 'pad', 'lhs_dilate', 'rhs_dilate'), axis, strict=True))
    for axis in zip(
      numbers('stride', '1'),
      numbers('pad', '0'),
      numbers('lhs_dilate', '1'),
      numbers('rhs_dilate', '1'),
      strict=True,
    )
  ]


def _overlaps(
  num_inputs: int, num_kernel: int, num_outputs: int, window: dict[str, int]
) -> int:
  """Returns how many products of an axis meet neither padding nor a hole.

  For a TPU, XLA writes batch axes of a matrix product as axes with holes.
  """
  dilation = window['lhs_dilate']
  return sum(
    0 <= place <= (num_inputs - 1) * dilation and place % dilation == 0
    for place in (
      output * window['stride'] + element * window['rhs_dilate'] - window['pad']
      for output, element in itertools.product(
        range(num_outputs), range(num_kernel)
      )
    )
  )
