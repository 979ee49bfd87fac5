"""Tests of rows of slots, on one device and split over many."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from replay_rl import base
from replay_rl.parallel import host_memory
from replay_rl.replay import storage
from tests import collectives
from tests.replay import buffers

CAPACITY = 16
# Slots of all shards, in no order; a write skips CAPACITY.
SLOTS = np.array([15, 0, 16, 3, 8, 7, 11, 4], np.int32)


def random_bits(rng, dtype, shape) -> np.ndarray:
  """Values of all kinds: NaN payloads, denormals and -0.0 among them."""
  dtype = np.dtype(dtype)
  if dtype == np.dtype(bool):
    return rng.random(shape) < 0.5
  if dtype.itemsize == 4 or dtype.kind == 'i':
    bits = rng.integers(0, 256, (*shape, dtype.itemsize), np.uint8)
    values = bits.view(dtype)[..., 0]
  else:  # A scatter of these on a CPU makes signaling NaNs quiet.
    values = rng.normal(size=shape).astype(dtype)
  if not np.issubdtype(dtype, np.integer):
    values.reshape(-1)[:3] = [-0.0, np.inf, np.nan]
  return values


def make_rows(seed, num_rows) -> dict[str, np.ndarray]:
  rng = np.random.default_rng(seed)
  dtypes = {
    'float32': np.float32,
    'bfloat16': ml_dtypes.bfloat16,
    'float8': ml_dtypes.float8_e4m3fn,
    'int32': np.int32,
    'int8': np.int8,
    'uint32': np.uint32,
    'bool': bool,
  }
  rows = {
    name: random_bits(rng, dtype, (num_rows, 5))
    for name, dtype in dtypes.items()
  }
  rows['deep'] = random_bits(rng, np.float32, (num_rows, 2, 3))
  rows['vector'] = random_bits(rng, np.float32, (num_rows,))
  return rows


def assert_same_bits(actual: base.PyTree, expected: base.PyTree):
  def check(actual, expected):
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.dtype == expected.dtype
    np.testing.assert_array_equal(
      np.ascontiguousarray(actual).view(np.uint8),
      np.ascontiguousarray(expected).view(np.uint8),
    )

  jax.tree.map(check, actual, expected)


def put(stored, mesh, memory_kind='device'):
  places = jax.tree.map(
    lambda leaf, sharding: (
      host_memory.place(leaf, sharding, memory_kind)
      if leaf.ndim > 1
      else sharding
    ),
    stored,
    buffers.shardings(stored, mesh),
  )
  return jax.device_put(stored, places)


def written(stored, slots, rows):
  """What `write_rows` must return."""
  stored = jax.tree.map(np.copy, stored)
  is_kept = slots < CAPACITY
  for name, leaf in stored.items():
    leaf[slots[is_kept]] = rows[name][is_kept]
  return stored


def read(stored, slots):
  slots = np.minimum(slots, CAPACITY - 1)
  return jax.tree.map(lambda leaf: leaf[slots], stored)


class RowsTest(parameterized.TestCase):
  @parameterized.parameters(
    ((1, 1, 1), 1, 8, 'pinned_host'),
    ((1, 2, 1), 2, 8, 'device'),
    ((2, 2, 2), 4, 3, 'device'),
    ((2, 2, 2), 4, 8, 'pinned_host'),
    ((1, 1, 8), 1, 8, 'device'),
    ((2, 4, 1), 8, 8, 'device'),
  )
  def test_rows_come_back_bit_for_bit_from_any_mesh_and_memory(
    self, shape, num_shards, num_rows, memory_kind
  ):
    mesh = buffers.make_mesh(shape)
    stored, rows = make_rows(0, CAPACITY), make_rows(1, num_rows)
    slots = SLOTS[:num_rows]
    expected = written(stored, slots, rows)
    with jax.set_mesh(mesh):
      after = jax.jit(storage.write_rows)(
        put(stored, mesh, memory_kind), slots, rows
      )
      assert_same_bits(after, expected)
      drawn = jax.jit(storage.read_rows)(after, slots[::-1])
      sums = jax.jit(storage.row_sums)(after['int32'])
    assert_same_bits(drawn, read(expected, slots[::-1]))
    assert_same_bits(sums, np.sum(expected['int32'], axis=1, dtype=np.int32))
    self.assertTrue(sums.sharding.is_fully_replicated)
    self.assertEqual(sums.sharding.memory_kind, 'device')
    # Shards hold their own slots only; the batch is split if it can be.
    for name, leaf in after.items():
      parts = num_shards if leaf.ndim > 1 else 1
      self.assertEqual(
        leaf.addressable_shards[0].data.nbytes, leaf.nbytes // parts, name
      )
      is_word = leaf.ndim > 1 and leaf.dtype.itemsize > 1
      self.assertEqual(
        leaf.sharding.memory_kind, memory_kind if is_word else 'device', name
      )
    is_split = num_shards > 1 and num_rows == 8
    local = drawn['deep'].addressable_shards[0].data.shape
    self.assertEqual(local[0], num_rows // num_shards if is_split else num_rows)
    for leaf in jax.tree.leaves(drawn):
      self.assertEqual(leaf.sharding.memory_kind, 'device')

  def test_an_empty_leaf_is_made_where_it_will_live(self):
    mesh = buffers.make_mesh((2, 4, 1))
    sharding = jax.NamedSharding(mesh, jax.P(storage.SLOT_AXES))
    for memory_kind in 'device', 'pinned_host':
      zeros = jnp.zeros((CAPACITY, 3), jnp.int32)
      place = host_memory.place(zeros, sharding, memory_kind)
      spaces = []

      def make(zeros=zeros, place=place, spaces=spaces):
        made = host_memory.init_in_place(zeros, place)
        spaces.append(jax.typeof(made).memory_space)
        return made

      made = jax.jit(make, out_shardings=place)()
      self.assertEqual(made.sharding, place)
      assert_same_bits(made, zeros)
      is_there = spaces == [jax.memory.Space.Host]
      self.assertEqual(is_there, memory_kind == 'pinned_host')

  def test_rows_that_are_split_over_devices_are_written_as_whole_ones(self):
    mesh = buffers.make_mesh((2, 4, 1))
    stored, rows = make_rows(0, CAPACITY), make_rows(1, 8)
    with jax.set_mesh(mesh):
      after = jax.jit(storage.write_rows)(
        put(stored, mesh), SLOTS, jax.device_put(rows, jax.P(storage.SLOT_AXES))
      )
    assert_same_bits(after, written(stored, SLOTS, rows))

  def test_a_slot_may_be_read_more_than_once(self):
    mesh = buffers.make_mesh((2, 4, 1))
    stored = make_rows(0, CAPACITY)
    slots = np.array([3, 3, 3, 15, 16, 3, 0, 0], np.int32)
    with jax.set_mesh(mesh):
      drawn = jax.jit(storage.read_rows)(put(stored, mesh), slots)
    assert_same_bits(drawn, read(stored, slots))

  def test_a_mesh_with_other_axes_splits_nothing(self):
    mesh = jax.make_mesh(
      (8,), ('model',), axis_types=(jax.sharding.AxisType.Auto,)
    )
    stored, rows = make_rows(0, CAPACITY), make_rows(1, 8)
    with jax.set_mesh(mesh):
      after = jax.jit(storage.write_rows)(stored, SLOTS, rows)
    assert_same_bits(after, written(stored, SLOTS, rows))

  def test_storage_of_vectors_alone_is_whole(self):
    mesh = buffers.make_mesh((8, 1, 1))
    stored, rows = np.zeros(CAPACITY, np.float32), np.arange(8, dtype='f4')
    with jax.set_mesh(mesh):
      after = jax.jit(storage.write_rows)(stored, SLOTS, rows)
      drawn = jax.jit(storage.read_rows)(after, SLOTS)
    self.assertTrue(after.sharding.is_fully_replicated)
    np.testing.assert_array_equal(drawn, [0, 1, 0, 3, 4, 5, 6, 7])

  def test_without_shards_the_program_is_a_plain_scatter_and_gather(self):
    stored, rows = make_rows(0, CAPACITY), make_rows(1, 8)

    def plain_write(stored, slots, rows):
      return jax.tree.map(
        lambda leaf, new: leaf.at[slots].set(new, mode='drop'), stored, rows
      )

    def plain_read(stored, slots):
      return jax.tree.map(lambda leaf: leaf.at[slots].get(mode='clip'), stored)

    def primitives(function, *arguments):
      return str(jax.make_jaxpr(function)(*arguments))

    for ours, plain, arguments in [
      (storage.write_rows, plain_write, (stored, SLOTS, rows)),
      (storage.read_rows, plain_read, (stored, SLOTS)),
    ]:
      expected = primitives(plain, *arguments)
      self.assertEqual(primitives(ours, *arguments), expected)
      with jax.set_mesh(buffers.make_mesh((1, 1, 8))):
        self.assertEqual(primitives(ours, *arguments), expected)
      with jax.set_mesh(buffers.make_mesh((1, 2, 4))):
        self.assertIn('shard_map', primitives(ours, *arguments))

  @parameterized.parameters(
    ((2, 4, 1), 'data = 2 x fsdp = 4'),
    ((1, 8, 1), 'data = 1 x fsdp = 8'),
  )
  def test_a_mesh_that_does_not_divide_the_capacity_raises(self, shape, text):
    text = (
      'capacity = 12: must be divisible by the 8 shards of the mesh, ' + text
    )
    stored, rows = make_rows(0, 12), make_rows(1, 8)
    mesh = buffers.make_mesh(shape)
    with self.assertRaisesRegex(ValueError, f'^{text}$'):
      storage.check_capacity(12, mesh)
    storage.check_capacity(16, mesh)
    with jax.set_mesh(mesh):
      with self.assertRaisesRegex(ValueError, text):
        jax.eval_shape(storage.write_rows, stored, SLOTS, rows)
      with self.assertRaisesRegex(ValueError, text):
        jax.eval_shape(storage.read_rows, stored, SLOTS)


class WholeTest(absltest.TestCase):
  def test_whole_gathers_what_is_split(self):
    mesh = buffers.make_mesh((2, 4, 1))
    split = jax.device_put(
      jnp.arange(16.0), jax.NamedSharding(mesh, jax.P(storage.SLOT_AXES))
    )
    with jax.set_mesh(mesh):
      self.assertTrue(
        jax.jit(storage.whole)(split).sharding.is_fully_replicated
      )

  def test_without_a_mesh_whole_changes_nothing(self):
    split = jnp.arange(16.0)
    self.assertIs(storage.whole(split), split)
    with jax.set_mesh(buffers.make_mesh((1, 1, 1))):
      self.assertIs(storage.whole(split), split)


class MappedTest(parameterized.TestCase):
  """Over an axis of seeds, which is not split."""

  @parameterized.parameters('vmap', 'scan')
  def test_each_seed_gets_what_it_gets_alone(self, kind):
    mesh = buffers.make_mesh((2, 2, 2))
    stored = [make_rows(seed, CAPACITY) for seed in range(2)]
    rows = [make_rows(seed + 2, 8) for seed in range(2)]
    slots = [SLOTS, (SLOTS + 3) % (CAPACITY + 1)]

    def both(stored, slots, rows):
      stored = storage.write_rows(stored, slots, rows)
      return stored, storage.read_rows(stored, slots[::-1])

    def mapped(*arguments):
      if kind == 'vmap':
        return jax.vmap(both)(*arguments)
      return jax.lax.scan(
        lambda carry, one: (carry, both(*one)), None, arguments
      )[1]

    def stack(trees):
      return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)

    with jax.set_mesh(mesh):
      results = jax.device_get(
        jax.jit(mapped)(stack(stored), np.stack(slots), stack(rows))
      )
    for seed in range(2):
      expected = written(stored[seed], slots[seed], rows[seed])
      assert_same_bits(
        jax.tree.map(lambda leaf, seed=seed: leaf[seed], results),
        (expected, read(expected, slots[seed][::-1])),
      )


class CostTest(parameterized.TestCase):
  """Bytes held and sent, at a size at which a copy would show."""

  CAPACITY = 65536
  NUM_TOKENS = 384
  BATCH = 64

  def rows(self, num_rows):
    return jax.tree.map(
      lambda leaf: jax.ShapeDtypeStruct(
        (num_rows, *leaf.shape[1:]), leaf.dtype
      ),
      buffers.make_rows([0], self.NUM_TOKENS),
    )

  def compile(self, function, mesh, *arguments, donate):
    # A write returns the storage on the devices where it was.
    with jax.set_mesh(mesh):
      return (
        jax.jit(
          function,
          donate_argnums=(0,) if donate else (),
          out_shardings=buffers.shardings(arguments[0], mesh)
          if donate
          else None,
        )
        .lower(*arguments)
        .compile()
      )

  @parameterized.parameters(((2, 4, 1), 8), ((2, 2, 2), 4))
  def test_a_write_and_a_read_hold_and_send_a_batch(self, shape, num_shards):
    mesh = buffers.make_mesh(shape)
    stored = buffers.shapes_on(self.rows(self.CAPACITY), mesh)
    slots = jax.ShapeDtypeStruct((self.BATCH,), np.int32)
    rows = jax.tree.map(
      lambda leaf: jax.ShapeDtypeStruct(
        leaf.shape,
        leaf.dtype,
        sharding=jax.NamedSharding(mesh, jax.P(storage.SLOT_AXES)),
      ),
      self.rows(self.BATCH),
    )
    row_bytes = self.NUM_TOKENS * (4 + 1 + 4)
    batch_bytes = self.BATCH * row_bytes

    write = self.compile(
      storage.write_rows, mesh, stored, slots, rows, donate=True
    )
    memory = write.memory_analysis()
    assert memory is not None
    self.assertLess(memory.temp_size_in_bytes, 2 * batch_bytes)
    self.assertLess(
      memory.argument_size_in_bytes,
      1.1 * (self.CAPACITY * row_bytes / num_shards + self.CAPACITY * 24),
    )
    sent = collectives.of(write)
    self.assertEqual({name for name, _ in sent}, {'all-gather'})
    # The rows and the six numbers of each.
    self.assertEqual(
      sum(size for _, size in sent), batch_bytes + self.BATCH * 24
    )

    read = self.compile(storage.read_rows, mesh, stored, slots, donate=False)
    memory = read.memory_analysis()
    assert memory is not None
    self.assertLess(memory.temp_size_in_bytes, 3 * batch_bytes)
    sent = collectives.of(read)
    self.assertEqual({name for name, _ in sent}, {'reduce-scatter'})
    self.assertEqual(sum(size for _, size in sent), batch_bytes // num_shards)

  def test_the_check_sees_a_write_that_collects_the_storage(self):
    mesh = buffers.make_mesh((2, 4, 1))
    stored = buffers.shapes_on(self.rows(self.CAPACITY), mesh).tokens
    rows = self.rows(self.BATCH).tokens
    program = self.compile(
      lambda stored, rows, slot: jax.lax.dynamic_update_slice(
        stored, rows, (slot, 0)
      ),
      mesh,
      stored,
      rows,
      jax.ShapeDtypeStruct((), np.int32),
      donate=True,
    )
    largest = max(size for _, size in collectives.of(program))
    self.assertGreaterEqual(largest, self.CAPACITY * self.NUM_TOKENS * 4 // 8)

  def test_donated_storage_stays_where_it_is(self):
    mesh = buffers.make_mesh((2, 4, 1))
    # An array made of a numpy array may be a view of it.
    stored = jax.jit(
      lambda: jnp.zeros((CAPACITY, 5), jnp.int32),
      out_shardings=jax.NamedSharding(mesh, jax.P(storage.SLOT_AXES)),
    )()

    def pointers(leaf):
      return [
        shard.data.unsafe_buffer_pointer() for shard in leaf.addressable_shards
      ]

    before = pointers(stored)
    with jax.set_mesh(mesh):
      write = jax.jit(storage.write_rows, donate_argnums=0)
      for seed in range(3):
        stored = write(stored, SLOTS, make_rows(seed, 8)['int32'])
        self.assertEqual(pointers(stored), before)
