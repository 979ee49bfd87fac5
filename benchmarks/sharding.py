"""What a buffer split over devices holds and sends.

Usage: python benchmarks/sharding.py [--out=FILE]

Compiles each operation for virtual CPU devices and reads memory and collectives
off the compiled programs; nothing is timed, since the devices share the cores.
Bytes are those of one device, and of the results of collectives. Exits with 1
if a check fails.
"""

import functools
import importlib.metadata
import math
import re
import sys

import jax
import machine
import numpy as np
from absl import app
from absl import flags

from replay_rl import base
from replay_rl.parallel import mesh as mesh_lib
from replay_rl.replay import buffer
from replay_rl.replay import sampling
from replay_rl.replay import storage

_OUT = flags.DEFINE_string(
  'out', 'benchmarks/results/sharding.json', 'Where to write the results.'
)

CAPACITY = 65536
NUM_ROWS = 64  # Of each insert and sample.
NUM_TOKENS = 384  # Prompt and response.
NUM_DEVICES = (1, 2, 4, 8)
DRAWS = {
  'sample': functools.partial(sampling.blocked_inverse_cdf, stratified=False),
  'sample, Gumbel': sampling.gumbel_top_k,
  'sample, private': functools.partial(
    sampling.private_shards, num_shards=8, stratified=False
  ),
}

_COLLECTIVE = re.compile(
  r'= (\(.*?\)|\S+) (all-gather|all-reduce|reduce-scatter|all-to-all'
  r'|collective-permute)(?:-start)?\('
)
_ARRAY = re.compile(r'(?:pred|[a-z]+(\d+))\[([\d,]*)\]')


def shapes(num_rows):
  wide, vector = (num_rows, NUM_TOKENS), (num_rows,)
  return base.Rollout(
    tokens=jax.ShapeDtypeStruct(wide, np.int32),
    loss_mask=jax.ShapeDtypeStruct(wide, bool),
    behavior_logprobs=jax.ShapeDtypeStruct(wide, np.float32),
    rewards=jax.ShapeDtypeStruct(vector, np.float32),
    advantages=jax.ShapeDtypeStruct(vector, np.float32),
    group_id=jax.ShapeDtypeStruct(vector, np.int32),
    prompt_id=jax.ShapeDtypeStruct(vector, np.uint32),
    rollout_id=jax.ShapeDtypeStruct(vector, np.uint32),
    policy_version=jax.ShapeDtypeStruct(vector, np.int32),
  )


def num_bytes(tree):
  return sum(
    math.prod(leaf.shape) * leaf.dtype.itemsize
    for leaf in jax.tree.leaves(tree)
  )


def collectives(compiled):
  """Returns the bytes of each kind of collective."""
  sent = {}
  for shape, name in _COLLECTIVE.findall(compiled.as_text()):
    for bits, sizes in _ARRAY.findall(shape):
      size = math.prod(int(size) for size in sizes.split(',') if size)
      sent[name] = sent.get(name, 0) + size * (int(bits) // 8 if bits else 1)
  return sent


def insert(state, rows, priorities):
  return buffer.insert(state, rows, priorities=priorities)[0]


def insert_by_score(state, rows, priorities):
  return buffer.insert(
    state, rows, priorities=priorities, keep_scores=state.priorities
  )[0]


def insert_slice(state, rows, priorities):
  """The obvious ring, without the module: a slice of the split rows."""
  del priorities

  def put(old, new):
    start = (state.next_slot,) + (0,) * (old.ndim - 1)
    return jax.lax.dynamic_update_slice(old, new, start)

  return state._replace(rollouts=jax.tree.map(put, state.rollouts, rows))


def measure(num_devices):
  """Returns one result for each operation."""
  mesh = mesh_lib.make({'data': num_devices, 'fsdp': 1, 'tensor': 1})
  whole = jax.NamedSharding(mesh, jax.P())
  split = jax.NamedSharding(mesh, jax.P(storage.SLOT_AXES))

  def placed(tree, place):
    return jax.tree.map(
      lambda leaf: jax.ShapeDtypeStruct(
        leaf.shape, leaf.dtype, sharding=place(leaf)
      ),
      tree,
    )

  state = placed(
    jax.eval_shape(lambda: buffer.init(shapes(1), capacity=CAPACITY)),
    lambda leaf: split if leaf.ndim > 1 else whole,
  )
  rows = placed(shapes(NUM_ROWS), lambda _: split)
  slots = placed(jax.ShapeDtypeStruct((NUM_ROWS,), np.int32), lambda _: split)
  step = jax.ShapeDtypeStruct((), np.int32)
  rng_key = jax.eval_shape(lambda: jax.random.key(0))
  operations = {
    'insert': (insert, (rows, rows.rewards)),
    'insert by score': (insert_by_score, (rows, rows.rewards)),
    'insert, plain slice': (insert_slice, (rows, rows.rewards)),
    'mark sampled': (buffer.mark_sampled, (slots, step)),
    'update priorities': (buffer.update_priorities, (slots, rows.rewards)),
  }

  def sample(draw, state, rng_key):
    return buffer.sample(state, rng_key, state.priorities, NUM_ROWS, draw=draw)

  for name, draw in DRAWS.items():
    operations[name] = (functools.partial(sample, draw), (rng_key,))

  results = []
  with jax.set_mesh(mesh):
    for name, (function, arguments) in operations.items():
      writes = not name.startswith('sample')
      compiled = (
        jax.jit(
          function,
          donate_argnums=(0,) if writes else (),
          out_shardings=jax.tree.map(lambda leaf: leaf.sharding, state)
          if writes
          else None,
        )
        .lower(state, *arguments)
        .compile()
      )
      memory = compiled.memory_analysis()
      assert memory is not None
      results.append(
        {
          'devices': num_devices,
          'operation': name,
          'buffer_bytes': sum(
            math.prod(leaf.sharding.shard_shape(leaf.shape))
            * leaf.dtype.itemsize
            for leaf in jax.tree.leaves(state)
          ),
          'temp_bytes': memory.temp_size_in_bytes,
          'sent_bytes': collectives(compiled),
        }
      )
  return results


def check(results):
  """Returns what is claimed, each with whether it holds."""
  batch = num_bytes(shapes(NUM_ROWS))
  split_bytes = CAPACITY * NUM_TOKENS * (4 + 1 + 4)
  ours = [r for r in results if r['operation'] != 'insert, plain slice']
  many = [r for r in ours if r['devices'] > 1]

  def sent(result):
    return sum(result['sent_bytes'].values())

  return {
    'one device sends nothing': all(
      not sent(r) for r in ours if r['devices'] == 1
    ),
    'no operation sends more than a batch and two numbers a row': all(
      sent(r) <= batch + 8 * NUM_ROWS for r in many
    ),
    'a sample sends its share of the rows': all(
      r['sent_bytes']
      == {'reduce-scatter': NUM_ROWS * NUM_TOKENS * 9 // r['devices']}
      for r in many
      if r['operation'].startswith('sample')
    ),
    'the rows are divided by the devices': all(
      r['buffer_bytes'] <= split_bytes / r['devices'] + 64 * CAPACITY
      for r in ours
    ),
    'no operation copies its shard': all(
      r['temp_bytes'] < split_bytes / r['devices'] / 5 for r in ours
    ),
    'the plain slice shows in the same figures': all(
      sent(r) >= split_bytes
      for r in results
      if r['operation'] == 'insert, plain slice' and r['devices'] > 1
    ),
  }


def print_table(results):
  print(
    f'{"operation":<21}{"devices":>8}{"buffer MB":>11}{"temp kB":>9}'
    f'{"sent kB":>10}  of which'
  )
  for result in results:
    sent = result['sent_bytes']
    parts = ', '.join(f'{name} {size / 1e3:.1f}' for name, size in sent.items())
    print(
      f'{result["operation"]:<21}{result["devices"]:>8}'
      f'{result["buffer_bytes"] / 1e6:>11.1f}{result["temp_bytes"] / 1e3:>9.1f}'
      f'{sum(sent.values()) / 1e3:>10.1f}  {parts}'
    )


def main(argv):
  del argv
  jax.config.update('jax_platforms', 'cpu')
  jax.config.update('jax_num_cpu_devices', max(NUM_DEVICES))
  results = []
  for num_devices in NUM_DEVICES:
    results += measure(num_devices)
  print_table(results)
  checks = check(results)
  for claim, holds in checks.items():
    print(f'{"pass" if holds else "FAIL"}  {claim}')
  machine.write_results(
    _OUT.value,
    {
      'versions': {
        name: importlib.metadata.version(name) for name in ('jax', 'jaxlib')
      },
      'capacity': CAPACITY,
      'rows': NUM_ROWS,
      'tokens': NUM_TOKENS,
      'batch_bytes': num_bytes(shapes(NUM_ROWS)),
      'results': results,
      'checks': checks,
    },
  )
  if not all(checks.values()):
    sys.exit(1)


if __name__ == '__main__':
  app.run(main)
