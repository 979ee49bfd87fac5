"""The buffer inside the programs of a run on many devices."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl.run import build
from replay_rl.run import metrics
from replay_rl.run import programs
from replay_rl.run import schedule
from replay_rl.run import state
from tests import collectives
from tests import tiny
from tests.replay import buffers

# One byte per slot is more than any weight or activation of the tiny model.
CAPACITY = 16384
EVENTS = schedule.synchronous(0, updates_per_iteration=2)


def build_on(shape, **changes):
  """Returns the programs and the first state of a tiny run on a mesh."""
  config = tiny.config(replay__capacity=CAPACITY, **changes)
  task = build.task(config)
  parts = build.experiment(config, task.shape).parts
  mesh = buffers.make_mesh(shape)
  built = programs.build(
    parts, task, programs.settings_of(config, mesh=mesh, sampler_mesh=None)
  )
  return built, built.init(
    parts.init_params_fn(jax.random.key(0)),
    jnp.arange(config.num_seeds, dtype=jnp.uint32),
    state.of_seeds(parts.hyper, config.num_seeds),
  )


class ShardedBufferTest(parameterized.TestCase):
  def test_an_iteration_collects_no_buffer(self):
    shape, num_shards, num_seeds = (2, 2, 2), 4, 2
    mesh = buffers.make_mesh(shape)
    with jax.set_mesh(mesh):
      built, run = build_on(
        shape,
        num_seeds=num_seeds,
        vmap_seeds=True,
        replay__draw='private_shards(num_shards=4, stratified=False)',
        replay__keep='positive_bias(fraction=0.5)',
      )
      program = built.cycle.lower(run, EVENTS).compile()
    tokens = run.buffer.rollouts.tokens
    self.assertEqual(
      tokens.addressable_shards[0].data.nbytes, tokens.nbytes // num_shards
    )
    sent = collectives.of(program)
    self.assertIn('reduce-scatter', {name for name, _ in sent})
    # Neither the rows nor a number of each slot.
    largest = max(size for _, size in sent)
    self.assertLess(largest, CAPACITY * num_seeds)

  # In the memory of the devices: tests/run/mesh_equivalence_test.py.
  def test_a_run_fills_a_buffer_on_the_hosts_as_on_one_device(self):
    found = []
    for shape, memory in (
      ((1, 1, 1), 'device'),
      ((2, 4, 1), 'pinned_host'),
    ):
      mesh = buffers.make_mesh(shape)
      with jax.set_mesh(mesh):
        built, run = build_on(shape, mesh__buffer_memory=memory)
        places = jax.tree.map(lambda leaf: leaf.sharding, run)
        for _ in range(2):
          run, measured = built.cycle(run, EVENTS)
        self.assertEqual(jax.tree.map(lambda leaf: leaf.sharding, run), places)
        self.assertEqual(
          run.buffer.rollouts.tokens.sharding.memory_kind, memory
        )
        shown = built.samples(run)
      found.append(jax.device_get((run, shown, measured)))
    (one, shown_of_one, measured_of_one), (many, shown, measured) = found
    self.assertEqual(int(one.buffer.num_inserted[0]), 32)
    buffers.assert_integers_equal(many.buffer, one.buffer)
    np.testing.assert_array_equal(
      shown.rollouts.tokens, shown_of_one.rollouts.tokens
    )
    self.assertEqual(many.clock, one.clock)
    found, of_one = (
      metrics.as_numbers(measured.updates) | measured.values
      for measured in (measured, measured_of_one)
    )
    self.assertEqual(set(found), set(of_one))
    np.testing.assert_allclose(
      found['grad_norm'], of_one['grad_norm'], rtol=1e-4
    )
