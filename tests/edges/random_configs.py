"""Random configs, allowed or not, and what becomes of them.

The strategies of `hypothesis` follow the annotations of the fields and of the
constants of the functions that a config may name: values inside the range, at
its ends, just beyond it, of other types, and numbers that are infinite, not a
number, denormal or huge. A config differs from a valid one in one to three
fields, because a config with more wrong fields is refused for the first one.
"""

import dataclasses
import json
import math
import pathlib
import re
import tempfile
import warnings
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any
from unittest import mock

import jax
import numpy as np
from hypothesis import strategies as st

from replay_rl import choices
from replay_rl import constants
from replay_rl import train
from replay_rl.lm import architecture
from replay_rl.run import build
from replay_rl.run import config as config_lib
from replay_rl.run import entry
from replay_rl.run import functions
from replay_rl.run import state
from tests import tiny

# What a refusal looks like: one line, `name = value: must ...`.
REFUSAL = re.compile(r'[a-z][^\n]* = [^\n]*: must [^\n]*')

_NUMBERS = (
  *(math.nan, math.inf, -math.inf, 1e-45, 1e-38, 1e-30, 1e-9, 1e38, 1e39),
  *(1e308, -1.0, 0.0, 0.1, 0.5, 1.5, 1e6),
  *(0, 1, 2, 3, 7, 1000, 10**6, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63),
  *(-1, -(2**31), 10**11, 10**30, 10**400, -(10**400)),
)
_OTHER = (None, True, False, '', 'abc', '1', (), [1], {}, {'a': 1}, 1j, b'x')
_GIVEN = {keyword for _, keyword in functions.OFFERED.values()} | {
  'num_fresh',
  'group_size',
}
# Sizes of what fits a test, for ranges that reach further.
_SMALL = 12


@st.composite
def configs(
  draw: st.DrawFn, base: Callable[[], config_lib.Config]
) -> tuple[config_lib.Config, dict[str, Any]]:
  """Draws a config, and the fields in which it differs from `base()`."""
  config = base()
  fields = _fields(config)
  paths = draw(
    st.lists(
      st.sampled_from(sorted(fields)), min_size=1, max_size=3, unique=True
    )
  )
  changes = {}
  for path in paths:
    owner, field, constant = fields[path]
    value = draw(_values(path, constant, getattr(owner, field)))
    setattr(owner, field, value)
    changes[path] = value
  return config, changes


def _fields(
  settings: Any, prefix: str = ''
) -> dict[str, tuple[Any, str, constants.Constant]]:
  """Returns owner, name and annotation of each field, by its path."""
  known = constants.of_function(type(settings))
  by_path = {}
  for field in dataclasses.fields(settings):
    value = getattr(settings, field.name)
    if dataclasses.is_dataclass(value):
      by_path |= _fields(value, f'{prefix}{field.name}.')
    else:
      path = f'{prefix}{field.name}'
      by_path[path] = (settings, field.name, known[field.name])
  return by_path


def _values(
  path: str, constant: constants.Constant, now: Any
) -> st.SearchStrategy[Any]:
  kinds = {field: kind for field, kind in functions.KINDS.values()}
  kinds['warm_start.transform'] = kinds['optimizer.transform']
  if path in kinds:
    allowed = _calls(kinds[path])
  elif path == 'model.compute_dtype':
    allowed = st.sampled_from(('float32', 'bfloat16', 'int8'))
  elif path == 'logging.writers':
    # Weights & Biases would write outside of the folder.
    allowed = st.sampled_from((None, 'tensorboard()', 'tensorboard'))
  elif path == 'mesh.buffer_memory':
    allowed = st.sampled_from(config_lib.BUFFER_MEMORIES)
  elif path.startswith('mesh.'):
    allowed = st.fixed_dictionaries(
      {axis: st.sampled_from((1, 2, -1, 0, 10**9)) for axis in now or 'ab'}
    )
  elif path == 'model.rope_scaling':
    allowed = st.fixed_dictionaries(
      {
        name: st.sampled_from((1.0, 2.0, 4.0, 32, *_NUMBERS))
        for name in architecture.RopeScaling._fields
      }
    )
  else:
    allowed = _allowed(constant)
  # Half of the values are allowed, so that some configs are.
  wrong = _beyond(constant) | st.sampled_from(_NUMBERS + _OTHER)
  return allowed | allowed | wrong | st.text(max_size=8)


def _allowed(constant: constants.Constant) -> st.SearchStrategy[Any]:
  """Draws a value that the annotation allows."""
  strategies = []
  if type(None) in constant.types:
    strategies.append(st.none())
  if bool in constant.types:
    strategies.append(st.booleans())
  if str in constant.types:
    strategies.append(st.text(max_size=8))
  low, high = _ends(constant)
  if int in constant.types:
    strategies.append(st.integers(int(low), int(min(high, low + _SMALL))))
    strategies.append(st.integers(int(low), int(high)))
  if float in constant.types:
    strategies.append(
      st.floats(low, high, width=32, allow_subnormal=False).filter(
        lambda x: constant.interval is None or x in constant.interval
      )
    )
    strategies.append(st.sampled_from((float(low), float(high))))
    strategies.append(
      st.floats(-6, 3).map(lambda x: float(np.clip(10.0**x, low, high)))
    )
  return st.one_of(strategies or [st.none()])


def _beyond(constant: constants.Constant) -> st.SearchStrategy[Any]:
  """Draws the numbers just beyond the ends of a range."""
  low, high = _ends(constant)
  return st.sampled_from(
    (int(low) - 1, int(high) + 1, low * 0.999 - 1e-9, high * 1.001 + 1e-9)
  )


def _ends(constant: constants.Constant) -> tuple[float, float]:
  """Returns the ends of a range, finite and as a float32 has them."""
  limits = constant.interval or constants.interval('(-inf, inf)')
  largest = constants.MAX_INT32
  if float in constant.types:
    largest = float(np.finfo(np.float32).max)
  low, high = max(limits.low, -largest), min(limits.high, largest)
  if float in constant.types:
    low, high = float(np.float32(low)), float(np.float32(high))
    if not limits.has_low:
      low = float(np.finfo(np.float32).tiny) if low == 0 else low
  return low, high


@st.composite
def _calls(draw: st.DrawFn, kind: choices.Kind) -> str:
  """Draws a choice as text: calls with constants, joined if allowed."""
  count = draw(st.integers(1, 2)) if kind.operator else 1
  calls = []
  for _ in range(count):
    name = draw(st.sampled_from(sorted(kind.functions)))
    values = []
    for key, constant in constants.of_function(kind.functions[name]).items():
      if key in _GIVEN:
        continue  # Other fields give it to the function.
      good, wild = _allowed(constant), st.sampled_from(_NUMBERS + _OTHER[:6])
      value = draw(good | good | good | good | _beyond(constant) | wild)
      values.append(f'{key}={value!r}')
    calls.append(f'{name}({", ".join(values)})')
  return f' {kind.operator} '.join(calls)


class AcceptedError(Exception):
  """The checks of `train` let a config pass."""


def check(
  config: config_lib.Config,
) -> tuple[str | None, state.Parts | None]:
  """Returns why `train` refuses a config before it starts, or the run's parts.

  Any other exception than the ValueError of a refusal comes through.
  """
  built, build_parts = [], build.experiment

  def experiment(*args):
    built.append(build_parts(*args))
    return built[-1]

  with (
    mock.patch.object(entry, 'enter', side_effect=AcceptedError),
    mock.patch.object(build, 'experiment', experiment),
    tempfile.TemporaryDirectory() as folder,
    warnings.catch_warnings(),
  ):
    warnings.simplefilter('error')
    before = jax.config.jax_compilation_cache_dir  # pyright: ignore
    try:
      train.train(config, pathlib.Path(folder) / 'run')
    except AcceptedError:
      return None, built[-1].parts
    except ValueError as error:
      return str(error), None
    finally:
      jax.config.update('jax_compilation_cache_dir', before)
  raise AssertionError('train returned before the start')


def is_small(config: config_lib.Config, parts: state.Parts) -> bool:
  """Returns whether an accepted run takes a test seconds, compiler included."""
  shape = parts.shape
  updates = math.ceil(config.replay.updates_per_iteration or 0)
  start = config.warm_start
  rows = parts.num_fresh + 3 * updates * parts.num_rows
  rows += 3 * start.num_steps * start.batch_size
  if config.evaluation.every == 1:
    rows += config.evaluation.num_prompts * (1 + config.evaluation.num_samples)
  tokens = config.num_seeds * rows * shape.num_tokens
  transformer = parts.transformer
  flops = tokens * architecture.num_params(transformer) * 2
  scores = architecture.attention_flops(transformer, shape.num_tokens)
  slots = config.num_seeds * parts.capacity * max(updates, 1)
  return (
    flops + tokens * scores < 2e10
    and slots < 1e6
    and parts.num_rows < 512
    and parts.num_fresh < 512
    and shape.num_tokens < 64
    and updates * config.logging.histogram_bins < 1e6
    and transformer.num_layers < 64
    and start.num_steps < 1000
    and (config.text is None or config.text.num_workers <= 2)
  )


def first_cycle(config: config_lib.Config) -> Mapping[str, Any]:
  """Runs a cycle of an accepted config.

  Returns:
    'applied', 'reason' (why there is no update, else ''), 'is_finite' (whether
    weights and, where there were updates, the losses are).
  """
  config.cache_dir = tiny.CACHE  # Any text is allowed, and becomes a folder.
  with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
    warnings.simplefilter('ignore')
    workdir = pathlib.Path(folder) / 'run'
    run = train.train(config, workdir, stop_after=1)
    lines = (workdir / 'metrics.jsonl').read_text().splitlines()
  weights = jax.tree.leaves(jax.device_get(run.learner.params))
  lines = [json.loads(line) for line in lines]
  applied = min(line.get('updates/applied', 0) for line in lines)
  reason = ''
  if not applied:
    counts = {
      name: max(line.get(f'updates/{name}', 0) for line in lines)
      for name in ('empty', 'refused')
    }
    reason = ', '.join(name for name, count in counts.items() if count)
    updates = config.replay.updates_per_iteration
    if updates is not None and updates < 1:
      reason = reason or 'the schedule has no update in this cycle'
  losses = [line['loss'] for line in lines if line.get('updates/applied')]
  return {
    'applied': applied,
    'reason': reason,
    'is_finite': bool(
      all(np.isfinite(leaf).all() for leaf in weights)
      and all(loss is not None and math.isfinite(loss) for loss in losses)
    ),
  }
