"""Speed and memory of the replay buffer, side by side with flashbax.

Usage: python benchmarks/buffer.py [--quick] [--out=FILE]

Both libraries store the same leaves and run in one process, in rounds that
alternate between them. A time is the median over single calls, each waited
for; operations that write have their state donated. The limit is the time to
read and write one batch at the bandwidth of a numpy copy of an array as large
as the storage. Exits with 1 if a check fails. Needs flashbax 0.1.3.
"""

import functools
import importlib.metadata
import sys
import time
from typing import Any
from typing import NamedTuple

import flashbax
import jax
import jax.numpy as jnp
import machine
import numpy as np
from absl import app
from absl import flags

from replay_rl.replay import buffer
from replay_rl.replay import sampling
from replay_rl.replay import weights

_QUICK = flags.DEFINE_bool('quick', False, 'Fewer and smaller measurements.')
_OUT = flags.DEFINE_string(
  'out', 'benchmarks/results/buffer.json', 'Where to write the results.'
)

NUM_ROWS = 64  # Of each insert, sample and priority update.
NUM_TOKENS = 128 + 256  # Prompt and response.
NUM_LOGPROBS = 256
EXPONENT = 0.6  # Of priorities; flashbax applies it when they are set.
FLASHBAX = 'flashbax'
OURS = 'replay_rl'

IID = functools.partial(sampling.blocked_inverse_cdf, stratified=False)
# flashbax draws by priority from strata, too.
STRATIFIED = functools.partial(sampling.blocked_inverse_cdf, stratified=True)


class Operation(NamedTuple):
  """What is timed: `call(state, *arguments)` for each of many arguments.

  If `writes`, the state is donated and the call returns the next one.
  """

  name: str
  library: str
  call: Any
  arguments: list[tuple[Any, ...]]
  writes: bool


def make_rows(rng):
  return {
    'tokens': jnp.asarray(
      rng.integers(0, 2**17, (NUM_ROWS, NUM_TOKENS)), jnp.int32
    ),
    'logprobs': jnp.asarray(
      rng.normal(size=(NUM_ROWS, NUM_LOGPROBS)), jnp.float32
    ),
  }


def row_bytes():
  return 4 * (NUM_TOKENS + NUM_LOGPROBS)


def sequence(rows):
  """The rows as flashbax's trajectory buffer takes them: `[1, B, ...]`."""
  return jax.tree.map(lambda leaf: leaf[None], rows)


def flashbax_buffers(capacity):
  """flashbax's item buffer, and the same by priority.

  Its prioritised flat buffer returns pairs of rows, twice the bytes; with
  sequences of length one the trajectory buffer it is made of returns rows.
  """
  item = flashbax.make_item_buffer(
    max_length=capacity,
    min_length=1,
    sample_batch_size=NUM_ROWS,
    add_batches=True,
  )
  prioritised = flashbax.make_prioritised_trajectory_buffer(
    add_batch_size=1,
    sample_batch_size=NUM_ROWS,
    sample_sequence_length=1,
    period=1,
    min_length_time_axis=1,
    max_length_time_axis=capacity,
    priority_exponent=EXPONENT,
    device='cpu',
  )
  return item, prioritised


def make_operations(capacity, num_calls, rng):
  """Returns the operations, and the empty state of each group of them."""
  item, prioritised = flashbax_buffers(capacity)
  rows = [make_rows(rng) for _ in range(8)]
  rng_keys = jax.random.split(jax.random.key(0), num_calls)
  ones_B = jnp.ones(NUM_ROWS)
  ones_C = jnp.ones(capacity)

  def priorities():
    return jnp.asarray(rng.lognormal(size=NUM_ROWS), jnp.float32)

  inserts = [(rows[i % 8],) for i in range(num_calls)]
  samples = [(rng_key,) for rng_key in rng_keys]
  updates = [
    (jnp.asarray(rng.choice(capacity, NUM_ROWS), jnp.int32), priorities())
    for _ in range(num_calls)
  ]

  def insert(state, rows):
    return buffer.insert(state, rows, priorities=ones_B)[0]

  def sample_uniform(state, rng_key):
    return buffer.sample(state, rng_key, ones_C, NUM_ROWS, draw=IID)

  def sample_prioritized(state, rng_key):
    return buffer.sample(
      state, rng_key, state.priorities, NUM_ROWS, draw=STRATIFIED
    )

  def sample_by_rule(state, rng_key):
    weights_C = weights.proportional(state, jnp.int32(0), exponent=EXPONENT)
    return buffer.sample(state, rng_key, weights_C, NUM_ROWS, draw=STRATIFIED)

  def update(state, slots, priorities):
    return buffer.update_priorities(state, slots, priorities**EXPONENT)

  def add_prioritised(state, rows):
    return prioritised.add(state, sequence(rows))

  one_row = jax.tree.map(lambda leaf: leaf[0], rows[0])
  states = {
    OURS: buffer.init(rows[0], capacity=capacity),
    FLASHBAX: item.init(one_row),
    FLASHBAX + ' by priority': prioritised.init(one_row),
  }
  names = list(states)
  return states, [
    Operation('insert', names[0], insert, inserts, True),
    Operation('insert', names[1], item.add, inserts, True),
    Operation('insert by priority', names[0], insert, inserts, True),
    Operation('insert by priority', names[2], add_prioritised, inserts, True),
    Operation('update priorities', names[0], update, updates, True),
    Operation(
      'update priorities', names[2], prioritised.set_priorities, updates, True
    ),
    Operation('sample uniform', names[0], sample_uniform, samples, False),
    Operation('sample uniform', names[1], item.sample, samples, False),
    Operation(
      'sample by priority', names[0], sample_prioritized, samples, False
    ),
    Operation(
      'sample by priority', names[2], prioritised.sample, samples, False
    ),
    # Ours alone: the power of all priorities is taken at each draw.
    Operation('sample by rule', names[0], sample_by_rule, samples, False),
  ]


def run_calls(compiled, operation, state):
  """Returns the state after the calls and the microseconds of each."""
  times = []
  for arguments in operation.arguments:
    start = time.perf_counter()
    output = jax.block_until_ready(compiled(state, *arguments))
    times.append(1e6 * (time.perf_counter() - start))
    if operation.writes:
      state = output
  return state, times


def measure(capacity, num_rounds, num_calls):
  """Returns one result for each operation at one capacity."""
  rng = np.random.default_rng(0)
  bandwidth = machine.copy_bandwidth(capacity * row_bytes())
  limit_us = 2 * NUM_ROWS * row_bytes() / bandwidth
  states, operations = make_operations(capacity, num_calls, rng)
  compiled = [
    jax.jit(operation.call, donate_argnums=(0,) if operation.writes else ())
    .lower(states[operation.library], *operation.arguments[0])
    .compile()
    for operation in operations
  ]
  # Fill the buffers, so that inserts overwrite and samples read any slot.
  for index in (0, 1, 3):
    library = operations[index].library
    for i in range(capacity // NUM_ROWS):
      arguments = operations[index].arguments[i % num_calls]
      states[library] = compiled[index](states[library], *arguments)
  jax.block_until_ready(states)

  results = []
  for operation, program in zip(operations, compiled, strict=True):
    moves_rows = operation.name != 'update priorities'
    analysis = program.memory_analysis()
    assert analysis is not None
    results.append(
      {
        'capacity': capacity,
        'operation': operation.name,
        'library': operation.library,
        'times_us': [],
        'limit_us': limit_us if moves_rows else None,
        'temp_bytes': analysis.temp_size_in_bytes,
        'peak_growth_mb': 0.0,
      }
    )
  for round_index in range(num_rounds + 1):
    for operation, program, result in zip(
      operations, compiled, results, strict=True
    ):
      (state, times), growth = machine.peak_growth(
        functools.partial(
          run_calls, program, operation, states[operation.library]
        )
      )
      states[operation.library] = state
      if round_index:  # The first round warms up.
        result['times_us'] += times
        result['peak_growth_mb'] = (
          None if growth is None else max(growth, result['peak_growth_mb'])
        )
  for result in results:
    times = result.pop('times_us')
    result['median_us'] = float(np.median(times))
    result['p10_us'], result['p90_us'] = np.percentile(times, [10, 90]).tolist()
  return results


def empty_rows_drawn(capacity, num_batches):
  """Draws from a half-empty buffer with feedback of skewed priorities.

  Returns:
    For each library, how many of the draws were of an empty slot.
  """
  rng = np.random.default_rng(0)
  num_filled = capacity // 2
  rng_keys = jax.random.split(jax.random.key(1), num_batches)
  priorities = jnp.asarray(
    rng.lognormal(sigma=3.0, size=(num_batches, NUM_ROWS)), jnp.float32
  )
  first_row = {'x': jnp.zeros(1)}
  all_rows = {'x': jnp.zeros((num_filled, 1))}
  _, prioritised = flashbax_buffers(capacity)

  def ours(state, inputs):
    rng_key, priorities_B = inputs
    drawn = buffer.sample(
      state, rng_key, state.priorities, NUM_ROWS, draw=STRATIFIED
    )
    state = buffer.update_priorities(state, drawn.slots, priorities_B**EXPONENT)
    return state, jnp.sum(drawn.slots >= num_filled)

  def theirs(state, inputs):
    rng_key, priorities_B = inputs
    indices = prioritised.sample(state, rng_key).indices
    state = prioritised.set_priorities(state, indices, priorities_B)
    return state, jnp.sum(indices >= num_filled)

  our_state, _ = buffer.insert(
    buffer.init(all_rows, capacity=capacity),
    all_rows,
    priorities=jnp.ones(num_filled),
  )
  their_state = prioritised.add(
    prioritised.init(jax.tree.map(lambda leaf: leaf[0], first_row | all_rows)),
    sequence(all_rows),
  )
  counts = {}
  for name, step, state in [
    (OURS, ours, our_state),
    (FLASHBAX + ' by priority', theirs, their_state),
  ]:
    run = jax.jit(
      lambda state, inputs, step=step: jax.lax.scan(step, state, inputs)[1]
    )
    counts[name] = int(np.sum(run(state, (rng_keys, priorities))))
  return counts


def by_operation(results):
  """Groups results by capacity and operation: ours first, then flashbax's."""
  groups = {}
  for result in results:
    key = result['capacity'], result['operation']
    groups.setdefault(key, []).append(result)
  return groups


def print_table(results):
  print(
    f'{"operation":<20}{"slots":>7}{"ours us":>9}{"flashbax":>9}{"ratio":>7}'
    f'{"limit":>7}{"temp kB":>9}{"peak MB":>9}'
  )
  for (capacity, name), (ours, *rest) in by_operation(results).items():
    theirs = rest[0]['median_us'] if rest else float('nan')
    limit = ours['limit_us'] or float('nan')
    growth = ours['peak_growth_mb']
    print(
      f'{name:<20}{capacity:>7}{ours["median_us"]:>9.1f}{theirs:>9.1f}'
      f'{ours["median_us"] / theirs:>7.2f}{limit:>7.1f}'
      f'{ours["temp_bytes"] / 1e3:>9.1f}'
      f'{float("nan") if growth is None else growth:>9.1f}'
    )


def check(results, empty_draws):
  """Returns what is claimed, each with whether it holds."""
  groups = by_operation(results)
  capacities = sorted({result['capacity'] for result in results})
  small, large = (
    groups[capacity, 'insert'][0]['median_us']
    for capacity in (capacities[0], capacities[-1])
  )

  def ratio(name):
    ours, theirs = groups[capacities[-1], name]
    return ours['median_us'] / theirs['median_us']

  storage_bytes = capacities[-1] * row_bytes()
  return {
    # Rows of a larger buffer miss the caches; a copy would cost its size.
    'insert is flat in capacity': large < 4 * small,
    # Like for like: ours stores priorities and statistics, its item buffer
    # does not; the row 'insert' shows that one beside ours.
    'insert by priority is not slower than flashbax': (
      ratio('insert by priority') <= 1.0
    ),
    'sample by priority is within 2.5 of flashbax': (
      ratio('sample by priority') <= 2.5
    ),
    'no operation copies the storage': all(
      result['temp_bytes'] < storage_bytes / 50
      for result in results
      if result['library'] == OURS and result['capacity'] == capacities[-1]
    ),
    'no empty slot is drawn': empty_draws[OURS] == 0,
  }


def main(argv):
  del argv
  jax.config.update('jax_platforms', 'cpu')
  capacities = (1024, 8192) if _QUICK.value else (1024, 8192, 65536)
  num_rounds, num_calls = (3, 30) if _QUICK.value else (15, 60)
  num_batches = 2_000 if _QUICK.value else 31_250
  results = []
  for capacity in capacities:
    results += measure(capacity, num_rounds, num_calls)
  print_table(results)
  empty_draws = empty_rows_drawn(capacities[-1], num_batches)
  print(f'empty slots in {num_batches * NUM_ROWS} draws: {empty_draws}')
  checks = check(results, empty_draws)
  for claim, holds in checks.items():
    print(f'{"pass" if holds else "FAIL"}  {claim}')
  versions = {
    name: importlib.metadata.version(name)
    for name in ('jax', 'jaxlib', 'flashbax', 'numpy')
  }
  machine.write_results(
    _OUT.value,
    {
      'versions': versions,
      'quick': _QUICK.value,
      'rows': NUM_ROWS,
      'row_bytes': row_bytes(),
      'results': results,
      'num_draws': num_batches * NUM_ROWS,
      'empty_draws': empty_draws,
      'checks': checks,
    },
  )
  if not all(checks.values()):
    sys.exit(1)


if __name__ == '__main__':
  app.run(main)
