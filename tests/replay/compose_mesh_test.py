"""Batches on a mesh: bit for bit the slots and rows of one device."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl.parallel import mesh as mesh_lib
from replay_rl.replay import buffer
from replay_rl.replay import compose
from replay_rl.replay import compose_groups
from replay_rl.replay import sampling
from replay_rl.replay import weights
from tests.replay import buffers
from tests.replay import compose_test

_COMPOSERS = {
  'same_prompt': functools.partial(
    compose_groups.same_prompt,
    group_size=2,
    num_replayed=3,
    only_failed=True,
  ),
  'fresh_anchored_groups': functools.partial(
    compose_groups.fresh_anchored_groups,
    group_size=2,
    replay_fraction=1.0,
    warmup_steps=0,
  ),
  'fresh_filled': compose.fresh_filled,
  'fresh_first': compose.fresh_first,
}


class MeshTest(parameterized.TestCase):
  @parameterized.parameters(*_COMPOSERS)
  def test_a_batch_is_that_of_one_device(self, name):
    rng = np.random.default_rng(0)
    state, fresh = buffers.make_state(32), None
    for step in range(3):
      ids = 16 * step + np.arange(16)
      rows = buffers.make_rows(
        ids,
        group_id=ids // 2,
        prompt_id=np.repeat(rng.integers(4, size=8), 2),
        rewards=rng.random(16) < 0.3,
      )
      is_valid = np.repeat(rng.random(8) < 0.7, 2)
      state, slots = buffers.INSERT(
        state,
        rows,
        priorities=np.ones(16, np.float32),
        is_valid=jnp.asarray(is_valid),
      )
      fresh = compose_test.make_fresh(rows, slots, jnp.asarray(is_valid))
    # So that `fresh_first` draws.
    state = buffer.mark_sampled(state, fresh.slots, jnp.int32(99))
    compute = jax.jit(
      functools.partial(
        _COMPOSERS[name],
        weight_rule=weights.product(
          functools.partial(weights.confident, temperature=10.0),
          weights.newest_first,
        ),
        draw=sampling.gumbel_top_k,
      )
    )
    key, step = jax.random.key(0), jnp.int32(100)
    expected = jax.device_get(compute(state, fresh, key, step))
    self.assertTrue(np.any(expected.is_valid & ~expected.is_fresh))
    mesh = buffers.make_mesh((2, 2, 2))
    places = jax.NamedSharding(mesh, jax.P(mesh_lib.RULES['rows']))
    with jax.set_mesh(mesh):
      actual = compute(
        state._replace(
          rollouts=jax.device_put(
            state.rollouts, buffers.shardings(state.rollouts, mesh)
          )
        ),
        fresh._replace(rollouts=jax.device_put(fresh.rollouts, places)),
        key,
        step,
      )
    chex.assert_trees_all_equal(jax.device_get(actual), expected)
