"""Reads the text of an optimized XLA program, and counts executions.

XLA's own cost analysis counts the body of a loop once. `Module.executed` counts
it once for each pass. The number of passes is exact where a loop counts from
one constant to another, as `jax.lax.scan` does. It is an upper bound where the
loop may also end earlier, as the sampler's does. Any other loop counts as one
pass, and its `Times.certainty` says so.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple

# How certain a number of executions is, from exact to unknown.
EXACT, AT_MOST, PER_PASS = '', 'at most', 'per pass'
_CERTAINTY = (EXACT, AT_MOST, PER_PASS)

_BITS = {'pred': 8, 'token': 0, 'opaque': 0}
_ARRAY = re.compile(r'\b([a-z]+\d*[a-z0-9]*)\[([\d,<=]*)\]')
_HEADER = re.compile(r'(?P<entry>ENTRY )?%?(?P<name>[^\s(]+) \(.*\{$')
_LINE = re.compile(r'\s+(?P<root>ROOT )?%?(?P<name>\S+) = (?P<rest>.*)')
_CALLED = re.compile(
  r', (calls|to_apply|body|condition|true_computation|false_computation|'
  r'branch_computations|called_computations)=(\{[^}]*\}|[^\s,]+)'
)
_BRANCHES = ('branch_computations', 'true_computation', 'false_computation')
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')


class Times(NamedTuple):
  """How often something is executed: a number and its certainty."""

  number: int
  certainty: str


@dataclasses.dataclass(frozen=True)
class Instruction:
  """An instruction: name = shape opcode(operands), attributes."""

  name: str
  shape: str
  opcode: str
  operands: tuple[str, ...]
  attributes: str

  def attribute(self, name: str) -> str:
    """Returns the text of an attribute; '' if there is none."""
    match = re.search(rf', {name}=(\{{[^}}]*\}}|[^\s,]+)', self.attributes)
    return match[1] if match else ''

  @functools.cached_property
  def called(self) -> dict[str, tuple[str, ...]]:
    """Names of the computations that it executes, by attribute."""
    return {
      name: tuple(re.findall(r'[^\s,%{}]+', names))
      for name, names in _CALLED.findall(self.attributes)
    }


class _Index(NamedTuple):
  """An element of the state of a loop, plus a constant."""

  element: int
  offset: int


@dataclasses.dataclass(frozen=True)
class Module:
  """An optimized program.

  Attributes:
    computations: instructions by computation, the root last, callees first.
    entry: name of the computation that is executed.
  """

  computations: Mapping[str, Sequence[Instruction]]
  entry: str

  @functools.cached_property
  def instructions(self) -> dict[str, Instruction]:
    """All instructions by name."""
    return {
      instruction.name: instruction
      for body in self.computations.values()
      for instruction in body
    }

  @functools.cached_property
  def executed(self) -> dict[str, Times]:
    """How often each computation is executed."""
    times = {name: Times(0, EXACT) for name in self.computations}
    times[self.entry] = Times(1, EXACT)
    for name in reversed(list(self.computations)):
      for instruction in self.computations[name]:
        if instruction.opcode in ('async-update', 'async-done'):
          continue  # These repeat the computation of their async-start.
        for attribute, called in instruction.called.items():
          passes = self._passes(instruction, attribute)
          for callee in called:
            times[callee] = total((times[callee], product(times[name], passes)))
    return times

  def _passes(self, instruction: Instruction, attribute: str) -> Times:
    if attribute in _BRANCHES:
      return Times(1, AT_MOST)
    if instruction.opcode != 'while':
      return Times(1, EXACT)
    passes = self._trips(instruction)
    # The condition is evaluated once more than the body.
    if attribute == 'condition' and passes.certainty != PER_PASS:
      return passes._replace(number=passes.number + 1)
    return passes

  def _trips(self, loop: Instruction) -> Times:
    known = _TRIPS.search(loop.attributes)
    if known:
      return Times(int(known[1]), EXACT)
    unknown = Times(1, PER_PASS)
    (condition,), (body,) = loop.called['condition'], loop.called['body']
    limits = self._limits(self.computations[condition][-1])
    start = self.instructions.get(loop.operands[0])
    steps = self.computations[body][-1]
    if start is None or start.opcode != 'tuple' or steps.opcode != 'tuple':
      return unknown
    trips = []
    for index, limit in limits:
      first = self._value(start.operands[index.element])
      step = self._value(steps.operands[index.element])
      if (
        isinstance(first, int)
        and isinstance(step, _Index)
        and step.element == index.element
        and step.offset > 0
      ):
        trips.append(-(-(limit - index.offset - first) // step.offset))
    if not trips:
      return unknown
    is_alone = self._root(condition).opcode == 'compare'
    return Times(max(0, min(trips)), EXACT if is_alone else AT_MOST)

  def _root(self, computation: str) -> Instruction:
    """Returns the root; of a root that is a fusion, the root inside it."""
    root = self.computations[computation][-1]
    if root.opcode == 'fusion':
      return self._root(root.called['calls'][0])
    return root

  def _limits(
    self, condition: Instruction, arguments: Sequence[str] = ()
  ) -> Iterator[tuple[_Index, int]]:
    """Yields (element of the state, bound that it must be below)."""
    if condition.opcode == 'and':
      for name in condition.operands:
        operand = self.instructions.get(name)
        if operand is not None:
          yield from self._limits(operand, arguments)
    elif condition.opcode == 'fusion':
      root = self.computations[condition.called['calls'][0]][-1]
      yield from self._limits(root, condition.operands)
    elif condition.opcode == 'compare':
      left, right = (
        self._value(name, arguments) for name in condition.operands
      )
      direction = condition.attribute('direction')
      if direction == 'GT':
        left, right, direction = right, left, 'LT'
      if direction == 'LT' and isinstance(left, _Index) and type(right) is int:
        yield left, right

  def _value(
    self, name: str, arguments: Sequence[str] = ()
  ) -> int | _Index | None:
    """Returns a scalar as a constant or an element of a loop's state.

    Args:
      name: of an instruction.
      arguments: in a fusion, the names that its parameters stand for.
    """
    instruction = self.instructions.get(name)
    if instruction is None:
      return None
    value = functools.partial(self._value, arguments=arguments)
    opcode, operands = instruction.opcode, instruction.operands
    if opcode == 'constant' and re.fullmatch(r'-?\d+', operands[0]):
      return int(operands[0])
    if opcode == 'get-tuple-element':
      source = self.instructions.get(operands[0])
      if source is None or source.opcode != 'parameter':
        return None  # An element of another tuple than the state.
      return _Index(int(instruction.attribute('index')), 0)
    if opcode == 'parameter' and arguments:
      return self._value(arguments[int(operands[0])])
    if opcode in ('copy', 'bitcast', 'convert', 'reshape'):
      return value(operands[0])
    if opcode == 'fusion':
      root = self.computations[instruction.called['calls'][0]][-1]
      return self._value(root.name, operands)
    if opcode == 'add':
      pair = [value(operand) for operand in operands]
      index = [term for term in pair if isinstance(term, _Index)]
      constant = [term for term in pair if type(term) is int]
      if len(index) == len(constant) == 1:
        return index[0]._replace(offset=index[0].offset + constant[0])
      if len(constant) == 2:
        return sum(constant)
    return None


def parse(text: str) -> Module:
  """Returns the program that `compiled.as_text()` shows.

  Raises:
    ValueError: there is no entry computation, or an instruction cannot be read.
  """
  computations, entry, body = {}, None, []
  for line in text.splitlines():
    header = None if line.startswith(' ') else _HEADER.match(line)
    if header:
      body = computations[header['name']] = []
      if header['entry']:
        entry = header['name']
      continue
    match = _LINE.match(line) if computations else None
    if match:
      instruction = _instruction(match['name'], match['rest'])
      if match['root']:
        root = len(body)
      body.append(instruction)
    elif line == '}' and body:
      body.append(body.pop(root))  # pyright: ignore
  if entry is None:
    raise ValueError(f'program = {text[:60]!r}: must have an ENTRY computation')
  return Module(computations, entry)


def sizes(shape: str) -> list[int]:
  """Returns the axis sizes of an array, or of the first array of a tuple."""
  return _sizes(_ARRAY.findall(shape)[0][1])


def num_bytes(shape: str) -> int:
  """Returns the bytes, without padding, of an array or of a whole tuple."""
  total = 0
  for dtype, axes in _ARRAY.findall(shape):
    bits = _BITS.get(dtype)
    if bits is None:
      # s32, bf16, f8e4m3fn, c64: the first number is the bits of one.
      bits = int(re.findall(r'\d+', dtype)[0])
    total += -(-math.prod(_sizes(axes)) * bits // 8)
  return total


def product(left: Times, right: Times) -> Times:
  """Returns left x right, as certain as the less certain of the two."""
  return Times(left.number * right.number, _worse(left, right))


def total(all_times: Iterable[Times]) -> Times:
  """Returns the sum, as certain as the least certain term above zero."""
  result = Times(0, EXACT)
  for times in all_times:
    if times.number:
      result = Times(result.number + times.number, _worse(result, times))
  return result


def _instruction(name: str, rest: str) -> Instruction:
  if rest.startswith('('):
    end = _closing(rest, 0) + 1
  else:
    end = rest.index(' ')
  shape, rest = rest[:end], rest[end:].strip()
  start = rest.index('(')
  end = _closing(rest, start)
  operands = re.sub(r'/\*.*?\*/', '', rest[start + 1 : end])
  return Instruction(
    name=name,
    shape=shape,
    opcode=rest[:start],
    operands=tuple(
      # Some versions write the shape before the name.
      operand.split()[-1].removeprefix('%')
      for operand in _split(operands)
    ),
    attributes=rest[end + 1 :],
  )


def _closing(text: str, start: int) -> int:
  depth = 0
  for place in range(start, len(text)):
    depth += (text[place] == '(') - (text[place] == ')')
    if not depth:
      return place
  raise ValueError(f'instruction = {text[:60]!r}: must close its parentheses')


def _split(text: str) -> list[str]:
  """Splits at the commas that are not in brackets."""
  parts, depth = [''], 0
  for character in text:
    depth += (character in '([{') - (character in ')]}')
    if character == ',' and not depth:
      parts.append('')
    else:
      parts[-1] += character
  return [part for part in parts if part.strip()]


def _worse(left: Times, right: Times) -> str:
  return max(left.certainty, right.certainty, key=_CERTAINTY.index)


def _sizes(text: str) -> list[int]:
  return [int(size.lstrip('<=')) for size in text.split(',') if size]
