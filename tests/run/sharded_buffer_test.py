"""The buffer inside the programs of a run on many devices."""

import jax
import jax.numpy as jnp
from absl.testing import absltest

from replay_rl.run import build
from replay_rl.run import maker as maker_lib
from replay_rl.run import programs
from replay_rl.run import schedule
from replay_rl.run import state
from tests import collectives
from tests import tiny
from tests.replay import buffers

# One byte per slot is more than any weight or activation of the tiny model.
CAPACITY = 16384
EVENTS = schedule.synchronous(0, updates_per_iteration=2)


class ShardedBufferTest(absltest.TestCase):
  def test_an_iteration_collects_no_buffer(self):
    config = tiny.config(
      num_seeds=2,
      vmap_seeds=True,
      replay__capacity=CAPACITY,
      replay__draw='private_shards(num_shards=4, stratified=False)',
      replay__keep='positive_bias(fraction=0.5)',
      replay__num_prompts=64,
      replay__weights='pass_rate(center=0.5, width=0.5) * '
      'max_age_batches(limit=3)',
    )
    task = build.task(config)
    parts = build.experiment(config, task.shape).parts
    mesh = buffers.make_mesh((2, 2, 2))
    settings = maker_lib.settings_of(config, mesh=mesh, sampler_mesh=None)
    with jax.set_mesh(mesh):
      built = programs.build(parts, task, settings)
      run = built.init(
        parts.init_params_fn(jax.random.key(0)),
        jnp.arange(2, dtype=jnp.uint32),
        state.of_seeds(parts.hyper, 2),
      )
      program = built.cycle.lower(run, EVENTS).compile()
    tokens = run.buffer.rollouts.tokens
    self.assertEqual(
      tokens.addressable_shards[0].data.nbytes, tokens.nbytes // 4
    )
    sent = collectives.of(program)
    self.assertIn('reduce-scatter', {name for name, _ in sent})
    # Neither the rows nor a number of each slot, of two seeds.
    self.assertLess(max(size for _, size in sent), 2 * CAPACITY)
