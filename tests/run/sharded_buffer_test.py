"""The buffer inside the programs of a run on many devices."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from replay_rl.run import build
from replay_rl.run import programs
from tests import collectives
from tests import tiny
from tests.replay import buffers

# One byte per slot is more than any weight or activation of the tiny model.
CAPACITY = 16384


def build_on(
  shape, *, num_seeds, vmap_seeds, buffer_memory='device', **changes
):
  """Returns the programs and the first state of a tiny run on a mesh."""
  parts = build.parts(tiny.config(replay__capacity=CAPACITY, **changes))
  built = programs.build(
    parts,
    num_seeds=num_seeds,
    vmap_seeds=vmap_seeds,
    num_eval_prompts=2,
    num_eval_samples=1,
    num_shown=2,
    buffer_memory=buffer_memory,
    mesh=buffers.make_mesh(shape),
  )
  params = parts.init_params_fn(jax.random.key(0))
  return built, built.init(params, jnp.arange(num_seeds, dtype=jnp.uint32))


class ShardedBufferTest(parameterized.TestCase):
  @parameterized.parameters(
    ((2, 4, 1), 8, 1, False),
    ((2, 2, 2), 4, 2, True),
  )
  def test_an_iteration_collects_no_buffer(
    self, shape, num_shards, num_seeds, vmap_seeds
  ):
    mesh = buffers.make_mesh(shape)
    with jax.set_mesh(mesh):
      built, run = build_on(
        shape,
        num_seeds=num_seeds,
        vmap_seeds=vmap_seeds,
        replay__draw='private_shards(num_shards=4, stratified=False)',
        replay__keep='advantage_magnitude(exponent=1.0)',
      )
      program = built.iterate.lower(run).compile()
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
        built, run = build_on(
          shape, num_seeds=1, vmap_seeds=False, buffer_memory=memory
        )
        places = jax.tree.map(lambda leaf: leaf.sharding, run)
        for _ in range(2):
          run, measured = built.iterate(run)
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
    self.assertEqual(many.iteration, one.iteration)
    self.assertEqual(set(measured), set(measured_of_one))
    np.testing.assert_allclose(
      measured['grad_norm'], measured_of_one['grad_norm'], rtol=1e-4
    )


if __name__ == '__main__':
  absltest.main()
