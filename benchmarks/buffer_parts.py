"""Where the time of an insert and of a uniform draw goes, beside flashbax.

Usage: python benchmarks/buffer_parts.py [--capacity=65536]

The parts are programs of their own, each with what it costs to start one. They
take turns with the whole operations and with flashbax's, so that the columns of
a run can be compared. A time is over single calls, each waited for. On a busy
machine, the 10th percentile says most. Needs flashbax 0.1.3.
"""

import functools

import buffer as whole
import jax
import jax.numpy as jnp
import numpy as np
from absl import app
from absl import flags

from replay_rl.replay import buffer
from replay_rl.replay import sampling

_CAPACITY = flags.DEFINE_integer('capacity', 65536, 'Slots of the buffer.')
_ROUNDS = flags.DEFINE_integer('rounds', 6, 'Turns of each program.')
_CALLS = 20
_B = whole.NUM_ROWS


def write(state, rows, num_numbers):
  """Writes the rows and some of the numbers per slot, as a ring does."""
  capacity = state.is_valid.shape[0]
  ranks_B = jnp.arange(_B, dtype=jnp.int32)
  slots_B = (state.next_slot + ranks_B) % capacity
  numbers = {
    'is_valid': True,
    'insert_index': state.num_inserted + ranks_B.astype(jnp.uint32),
    'priorities': jnp.ones(_B),
    'times_sampled': 0,
    'last_sampled': -1,
  }

  def put(old, new):
    return old.at[slots_B].set(new, mode='drop')

  return state._replace(
    rollouts=jax.tree.map(put, state.rollouts, rows),
    next_slot=(state.next_slot + _B) % capacity,
    **{
      name: put(getattr(state, name), numbers[name])
      for name in list(numbers)[:num_numbers]
    },
  )


def programs(capacity):
  """Returns name -> (call, arguments, state, whether the state is donated)."""
  rng = np.random.default_rng(0)
  rows = [(whole.make_rows(rng),) for _ in range(8)]
  rng_keys = [(key,) for key in jax.random.split(jax.random.key(0), _CALLS)]
  ones_C = jnp.ones(capacity)
  num_blocks = capacity // sampling.BLOCK_SIZE
  blocks_NK = ones_C.reshape(num_blocks, sampling.BLOCK_SIZE)
  item, _ = whole.flashbax_buffers(capacity)

  def ours():
    state = buffer.init(rows[0][0], capacity=capacity)
    return state._replace(is_valid=~state.is_valid)

  def theirs():
    return item.init(jax.tree.map(lambda leaf: leaf[0], rows[0][0]))

  def insert(state, rows):
    return buffer.insert(state, rows, priorities=jnp.ones(_B))[0]

  def uniform(rng_key):
    return jax.random.uniform(rng_key, (_B,))

  drawn = {
    'sample uniform': lambda state, rng_key: buffer.sample(
      state, rng_key, ones_C, _B, draw=whole.IID
    ),
    '  sums of the blocks': lambda state, _: jnp.sum(
      sampling.scaled(jnp.where(state.is_valid, ones_C, 0.0)).reshape(
        blocks_NK.shape
      ),
      axis=1,
    ),
    '  choose blocks': lambda _, rng_key: jax.vmap(
      sampling.first_hit, (None, 0)
    )(ones_C[:num_blocks], uniform(rng_key)),
    '  choose in blocks': lambda _, rng_key: jax.vmap(sampling.first_hit)(
      blocks_NK[:_B], uniform(rng_key)
    ),
    '  read rows': lambda state, rng_key: jax.tree.map(
      lambda leaf: leaf.at[(capacity * uniform(rng_key)).astype(int)].get(
        mode='clip'
      ),
      state.rollouts,
    ),
    'random numbers alone': lambda _, rng_key: uniform(rng_key),
  }
  add, added = jax.jit(item.add, donate_argnums=0), theirs()
  for i in range(capacity // _B):
    added = add(added, *rows[i % 8])
  return {
    'insert, flashbax': (item.add, rows, theirs(), True),
    'insert': (insert, rows, ours(), True),
    **{
      f'  rows and {n} numbers': (
        functools.partial(write, num_numbers=n),
        rows,
        ours(),
        True,
      )
      for n in (0, 1, 2, 5)
    },
    'sample uniform, flashbax': (item.sample, rng_keys, added, False),
    **{name: (call, rng_keys, ours(), False) for name, call in drawn.items()},
  }


def main(argv):
  del argv
  jax.config.update('jax_platforms', 'cpu')
  made = programs(_CAPACITY.value)
  compiled = {
    name: jax.jit(call, donate_argnums=(0,) if donates else ())
    .lower(state, *arguments[0])
    .compile()
    for name, (call, arguments, state, donates) in made.items()
  }
  states = {name: state for name, (_, _, state, _) in made.items()}
  times = {name: [] for name in made}
  for turn in range(_ROUNDS.value + 1):
    for name, (call, arguments, _, donates) in made.items():
      calls = [arguments[i % len(arguments)] for i in range(_CALLS)]
      states[name], taken = whole.run_calls(
        compiled[name],
        whole.Operation(name, '', call, calls, donates),
        states[name],
      )
      times[name] += taken if turn else []  # The first turn warms up.
  print(f'{"microseconds":<28}{"p10":>8}{"median":>8}')
  for name, taken in times.items():
    low, middle = np.percentile(taken, [10, 50])
    print(f'{name:<28}{low:>8.0f}{middle:>8.0f}')


if __name__ == '__main__':
  app.run(main)
