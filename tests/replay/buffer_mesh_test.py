"""The buffer on meshes: bit for bit the slots and rows of one device."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl import base
from replay_rl.parallel import mesh as mesh_lib
from replay_rl.replay import buffer
from replay_rl.replay import sampling
from replay_rl.replay import storage
from tests import collectives
from tests.replay import buffers

CAPACITY = 32
NAN, INF = float('nan'), float('inf')
DRAWS = {
  'iid': functools.partial(sampling.blocked_inverse_cdf, stratified=False),
  'stratified': functools.partial(
    sampling.blocked_inverse_cdf, stratified=True
  ),
  'gumbel': sampling.gumbel_top_k,
  'private': functools.partial(
    sampling.private_shards, num_shards=4, stratified=True
  ),
}


def length_rule(state: base.BufferState) -> base.Array:
  """A rule that reads rows, which are split; what follows must not be."""
  lengths_C = jnp.sum(state.rollouts.tokens, axis=1)  # Integers: exact.
  return jnp.sqrt(lengths_C + state.priorities + 0.1)


def operate(state, inputs, rng_key):
  """One of each operation, writes first, with all they return."""
  slots = []
  for rows, is_valid, priorities, keep_scores in inputs['inserts']:
    state, written = buffer.insert(
      state,
      rows,
      priorities=priorities,
      is_valid=is_valid,
      keep_scores=keep_scores,
    )
    slots.append(written)
  state, written = buffer.insert(
    state,
    jax.tree.map(lambda leaf: leaf[:3], inputs['inserts'][0][0]),
    priorities=jnp.ones(3),
    keep_scores=length_rule(state),
  )
  slots.append(written)
  state = state._replace(is_valid=state.is_valid & inputs['is_kept'])
  state = buffer.mark_sampled(state, inputs['marked'], 7)
  state = buffer.update_priorities(state, inputs['marked'], inputs['updates'])
  rng_keys, priorities = jax.random.split(rng_key, len(DRAWS)), state.priorities
  drawn = {
    name: buffer.sample(
      state,
      rng_key,
      length_rule(state) if name in ('stratified', 'private') else priorities,
      size,
      draw=DRAWS[name],
    )
    # Eight shards divide 16, not 12.
    for rng_key, name, size in zip(
      rng_keys, DRAWS, (16, 12, 12, 16), strict=True
    )
  }
  return state, slots, drawn


def random_inputs(rng, step):
  def priorities():
    return rng.choice(
      np.array([0.1, 1, 2.5, 7, 1e-35, 1e35, NAN, INF, -1], np.float32), 8
    )

  def rows(offset):
    return buffers.make_rows(16 * step + offset + np.arange(8))

  scores = rng.choice(np.array([0, 1, NAN, -INF, INF], np.float32), CAPACITY)
  return {
    'inserts': [
      (rows(0), rng.random(8) < 0.8, priorities(), None),
      (rows(8), rng.random(8) < 0.8, priorities(), scores),
    ],
    'is_kept': rng.random(CAPACITY) < 0.9,
    'marked': rng.integers(-2, CAPACITY + 2, 8).astype(np.int32),
    'updates': priorities(),
  }


@functools.cache
def history():
  """Inputs and results of some steps on one device."""
  rng = np.random.default_rng(0)
  state = buffers.make_state(CAPACITY)
  steps = []
  for step in range(6):
    inputs = jax.device_get(random_inputs(rng, step))
    results = jax.jit(operate)(state, inputs, jax.random.key(step))
    steps.append((inputs, results))
    state = results[0]
  return steps


class MeshTest(parameterized.TestCase):
  @parameterized.parameters(((2, 2, 2), 4), ((2, 4, 1), 8))
  def test_any_mesh_gives_the_same_bits(self, shape, num_shards):
    mesh = buffers.make_mesh(shape)
    state = buffers.make_state(CAPACITY)
    places = buffers.shardings(state, mesh)
    state = jax.device_put(state, places)
    step_fn = jax.jit(
      operate, donate_argnums=0, out_shardings=(places, None, None)
    )
    with jax.set_mesh(mesh):
      for step, (inputs, expected) in enumerate(history()):
        results = step_fn(state, inputs, jax.random.key(step))
        chex.assert_trees_all_equal(
          jax.device_get(results), jax.device_get(expected), strict=True
        )
        state = results[0]
    for leaf in jax.tree.leaves(state):
      parts = num_shards if leaf.ndim > 1 else 1
      for shard in leaf.addressable_shards:
        self.assertEqual(shard.data.nbytes * parts, leaf.nbytes)

  def test_rows_belong_to_the_slots_that_were_drawn(self):
    inserted = set()
    for inputs, (state, _, drawn) in history():
      held = np.asarray(state.rollouts.group_id)
      inserted |= {
        int(group_id)
        for rows, is_valid, *_ in inputs['inserts']
        for group_id in rows.group_id[is_valid]
      } | set(inputs['inserts'][0][0].group_id[:3].tolist())
      for sample in drawn.values():
        sample = jax.device_get(sample)
        valid = np.flatnonzero(sample.is_valid)
        self.assertGreater(valid.size, 8)
        rows = jax.tree.map(lambda leaf, at=valid: leaf[at], sample.rollouts)
        np.testing.assert_array_equal(rows.group_id, held[sample.slots[valid]])
        self.assertLessEqual(set(rows.group_id.tolist()), inserted)
        chex.assert_trees_all_equal(
          rows, buffers.make_rows(buffers.ids_of(rows))
        )


class CostTest(parameterized.TestCase):
  """Each operation at 65k slots on eight devices."""

  CAPACITY, NUM_TOKENS, BATCH = 65536, 384, 64

  def compiled(self, function, *arguments, donate=True):
    mesh = buffers.make_mesh((2, 4, 1))
    with jax.set_mesh(mesh):
      state = jax.eval_shape(
        lambda: buffers.make_state(self.CAPACITY, self.NUM_TOKENS)
      )
      return (
        jax.jit(
          function,
          donate_argnums=0 if donate else (),
          out_shardings=buffers.shardings(state, mesh) if donate else None,
        )
        .lower(buffers.shapes_on(state, mesh), *arguments)
        .compile()
      )

  def split(self, tree):
    mesh = buffers.make_mesh((2, 4, 1))
    return jax.tree.map(
      lambda leaf: jax.ShapeDtypeStruct(
        leaf.shape,
        leaf.dtype,
        sharding=jax.NamedSharding(mesh, jax.P(storage.SLOT_AXES)),
      ),
      tree,
    )

  def sent(self, compiled) -> int:
    memory = compiled.memory_analysis()
    # A shard has 28 MB; sorts, sums and noise of [C] need less.
    self.assertLess(memory.temp_size_in_bytes, 4e6)
    return sum(size for _, size in collectives.of(compiled))

  def test_writes_send_a_batch_and_nothing_of_the_size_of_the_buffer(self):
    rows = jax.eval_shape(
      lambda: buffers.make_rows(np.zeros(self.BATCH, int), self.NUM_TOKENS)
    )
    # Each row with its priority and whether it is valid.
    batch_bytes = self.BATCH * (self.NUM_TOKENS * 9 + 6 * 4 + 4 + 1)

    def insert(state, rows, is_valid, keep_scores=None):
      return buffer.insert(
        state,
        rows,
        priorities=rows.rewards,
        is_valid=is_valid,
        keep_scores=keep_scores,
      )[0]

    is_valid = jax.ShapeDtypeStruct((self.BATCH,), bool)
    arguments = self.split((rows, is_valid))
    self.assertLessEqual(
      self.sent(self.compiled(insert, *arguments)), batch_bytes
    )
    scores = jax.ShapeDtypeStruct((self.CAPACITY,), np.float32)
    self.assertLessEqual(
      self.sent(self.compiled(insert, *arguments, scores)), batch_bytes
    )
    # Scores of a rule that reads rows are split, and must be collected.
    self.assertLessEqual(
      self.sent(self.compiled(insert, *arguments, self.split(scores))),
      batch_bytes + 4 * self.CAPACITY,
    )

  def test_feedback_sends_its_arguments(self):
    slots = jax.ShapeDtypeStruct((self.BATCH,), np.int32)
    values = jax.ShapeDtypeStruct((self.BATCH,), np.float32)
    slots, values = self.split((slots, values))
    self.assertEqual(
      self.sent(self.compiled(buffer.mark_sampled, slots, np.int32(3))),
      4 * self.BATCH,
    )
    self.assertEqual(
      self.sent(self.compiled(buffer.update_priorities, slots, values)),
      2 * 4 * self.BATCH,
    )

  @parameterized.parameters(*DRAWS)
  def test_a_sample_sends_the_rows_drawn_and_draws_without_sending(self, name):
    def sample(state, rng_key):
      drawn = buffer.sample(
        state, rng_key, state.priorities, self.BATCH, draw=DRAWS[name]
      )
      # A learner uses these with its share of the rows.
      return drawn, mesh_lib.split_rows((drawn.probs, drawn.is_valid))

    rng_key = jax.eval_shape(lambda: jax.random.key(0))
    program = self.compiled(sample, rng_key, donate=False)
    self.assertEqual(self.sent(program), self.BATCH * self.NUM_TOKENS * 9 // 8)
    self.assertEqual(
      {name for name, _ in collectives.of(program)}, {'reduce-scatter'}
    )
