"""Tests of where the arrays of a run live."""

import jax
import jax.numpy as jnp
from absl.testing import absltest

from replay_rl.lm import model
from replay_rl.parallel import mesh as mesh_lib
from replay_rl.run import build
from replay_rl.run import iteration
from replay_rl.run import placement
from tests import tiny


def _shardings(buffer_memory='device', **changes):
  """Returns where a run of two seeds lives on 2 x 2 x 2 devices."""
  parts = build.parts(tiny.config(**changes))
  mesh = mesh_lib.make({'data': 2, 'fsdp': 2, 'tensor': 2})
  run = jax.eval_shape(
    lambda rng_key: jax.vmap(
      lambda seed: iteration.init(parts, parts.init_params_fn(rng_key), seed)
    )(jnp.arange(2, dtype=jnp.uint32)),
    jax.random.key(0),
  )
  shardings = placement.of_run(
    run,
    model.logical_axes(parts.transformer),
    parts.optimizer,
    mesh,
    buffer_memory=buffer_memory,
  )
  # Raises if a spec has more axes than its array.
  jax.tree.map(
    lambda leaf, sharding: sharding.shard_shape(leaf.shape), run, shardings
  )
  return shardings


def _specs(**changes):
  return jax.tree.map(lambda sharding: sharding.spec, _shardings(**changes))


class PlacementTest(absltest.TestCase):
  def test_weights_are_split_after_the_axis_of_seeds(self):
    params = _specs().learner.params
    # [S, V, D] and [S, layers, D, 2, F].
    self.assertEqual(params['embedding'], jax.P(None, ('tensor',), ('fsdp',)))
    self.assertEqual(
      params['layers']['gate_up'],
      jax.P(None, None, ('fsdp',), None, ('tensor',)),
    )

  def test_what_the_optimizer_keeps_of_a_weight_lives_with_the_weight(self):
    learner = _specs().learner
    adam = learner.opt_state[1][0]
    self.assertEqual(adam.mu, learner.params)
    self.assertEqual(adam.nu, learner.params)
    self.assertEqual(adam.count, jax.P())

  def test_weights_of_the_delay_line_have_one_more_axis_in_front(self):
    specs = _specs(sampler__weight_lag=2)
    self.assertEqual(
      jax.tree.map(lambda spec: jax.P(None, *spec), specs.learner.params),
      specs.delay_line.params,
    )
    self.assertEqual(specs.delay_line.version, jax.P())

  def test_all_else_is_whole_on_every_device(self):
    specs = _specs()
    self.assertIsNone(specs.delay_line)
    rest = specs.seed, specs.iteration, specs.learner.step, specs.ledger
    numbers = specs.buffer._replace(rollouts=specs.buffer.rollouts[3:])
    for spec in jax.tree.leaves((rest, numbers)):
      self.assertEqual(spec, jax.P())

  def test_rows_of_the_buffer_are_split_along_the_slots(self):
    rollouts = _specs().buffer.rollouts
    for spec in rollouts.tokens, rollouts.loss_mask, rollouts.behavior_logprobs:
      self.assertEqual(spec, jax.P(None, ('data', 'fsdp')))

  def test_words_of_the_buffer_may_live_on_the_host(self):
    there = _shardings('pinned_host')
    rollouts = there.buffer.rollouts
    on_host = [
      leaf
      for leaf in jax.tree.leaves(there)
      if leaf.memory_kind == 'pinned_host'
    ]
    self.assertEqual(on_host, [rollouts.tokens, rollouts.behavior_logprobs])
    self.assertEqual(rollouts.tokens.spec, _specs().buffer.rollouts.tokens)

  def test_a_mesh_that_does_not_divide_the_capacity_is_refused(self):
    with self.assertRaisesRegex(
      ValueError, r'capacity=34: the 4 shards .*data=2 x fsdp=2'
    ):
      _specs(replay__capacity=34)


if __name__ == '__main__':
  absltest.main()
