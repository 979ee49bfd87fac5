"""Tests of generation on a mesh of its own."""

from unittest import mock

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from replay_rl.fit import hlo
from replay_rl.fit import hlo_costs
from replay_rl.lm import model
from replay_rl.parallel import mesh as mesh_lib
from replay_rl.run import generation as generation_lib
from replay_rl.run import maker as maker_lib
from replay_rl.run import placement
from replay_rl.run import programs
from replay_rl.run import state
from tests.run import tiny_run

_MESH = {'data': 1, 'fsdp': 4, 'tensor': 1}
_SAMPLER_MESH = {'data': 2, 'fsdp': 1, 'tensor': 2}


def _run(sampler_shape):
  """Returns a run of three cycles, its scores, and where it sampled."""
  experiment = tiny_run.experiment(sampler__weight_lag=4)
  parts, seen = experiment.parts, []

  def watched(generate_fn):
    def generate(params, rng_key, prompts, rollout_id):
      mesh = jax.sharding.get_abstract_mesh()
      # As part of a program, not operation by operation.
      assert isinstance(jax.tree.leaves(params)[0], jax.core.Tracer)
      seen.append(dict(mesh.shape))
      return generate_fn(params, rng_key, prompts, rollout_id)

    return generate

  def bind(hyper):
    functions = parts.bind(hyper)
    return functions._replace(
      generate_fn=watched(functions.generate_fn),
      evaluate_fn=watched(functions.evaluate_fn),
    )

  watched_parts = parts._replace(
    bind=bind,
    greedy_fn=watched(parts.greedy_fn),
  )
  mesh = mesh_lib.make(_MESH)
  settings = tiny_run.settings(
    num_seeds=2,
    mesh=mesh,
    sampler_mesh=sampler_shape and mesh_lib.make(sampler_shape),
  )
  with jax.set_mesh(mesh):
    built = programs.build(watched_parts, tiny_run.text_task(), settings)
    run = tiny_run.first_run(built, parts, [5, 6])
    places = jax.tree.map(lambda leaf: leaf.sharding, run)
    for iteration in range(3):
      run, measured = built.cycle(run, experiment.schedule(iteration))
    scores = built.evaluate(run)
    # So that the next cycle compiles nothing, and a checkpoint restores.
    chex.assert_trees_all_equal(
      jax.tree.map(lambda leaf: leaf.sharding, run), places
    )
  return jax.device_get((run, scores)), tiny_run.numbers(measured), seen


def _sharded_run(parts, mesh):
  """Returns a run of ones, of one seed, where a run lives on a mesh."""
  run = state.shapes_of_run(parts, 1)
  shardings = placement.of_run(
    run,
    model.logical_axes(parts.transformer),
    parts.bind(parts.hyper).update,
    mesh,
    buffer_memory='device',
  )
  return jax.device_put(
    jax.tree.map(lambda leaf: np.ones(leaf.shape, leaf.dtype), run), shardings
  )


class SamplerMeshTest(parameterized.TestCase):
  # Judged in JAX, and without a lag: programs_test.py.
  def test_it_is_the_cycle_and_the_evaluation_of_one_mesh(self):
    (one, scores_one), measured_one, seen_one = _run(None)
    (two, scores), measured, seen = _run(_SAMPLER_MESH)
    self.assertEqual(seen_one, 3 * [_MESH])
    self.assertEqual(seen, 3 * [_SAMPLER_MESH])
    chex.assert_trees_all_equal(two.ledger, one.ledger)
    chex.assert_trees_all_close(two.buffer, one.buffer, atol=1e-5)
    chex.assert_trees_all_close(
      (two.learner.params, two.sampler),
      (one.learner.params, one.sampler),
      atol=1e-4,
    )
    np.testing.assert_array_equal(two.learner.step, one.learner.step)
    np.testing.assert_array_equal(measured['reward'], measured_one['reward'])
    self.assertGreater(measured['grad_norm'].min(), 0.0)
    chex.assert_trees_all_equal(scores, scores_one)

  @parameterized.parameters((None,), (_SAMPLER_MESH,))
  def test_what_was_generated_has_its_rows_split_over_the_mesh_of_the_run(
    self, sampler_shape
  ):
    parts, mesh = tiny_run.parts(), mesh_lib.make(_MESH)
    settings = tiny_run.settings(
      mesh=mesh, sampler_mesh=sampler_shape and mesh_lib.make(sampler_shape)
    )
    run = _sharded_run(parts, mesh)
    prompts = state.empty_prompts(parts.shape, 1, 4)
    prompts = prompts._replace(lengths=prompts.lengths + 1)
    with jax.set_mesh(mesh):
      built = programs.build(parts, None, settings)
      generation = built.jitted['generate'](generation_lib.policy(run), prompts)
    self.assertLen(jax.tree.leaves(generation), 15)
    for leaf in jax.tree.leaves(generation):
      self.assertEqual(leaf.sharding.mesh, mesh)
      self.assertEqual(leaf.addressable_shards[0].data.shape[1], 16 // 4)

  @parameterized.parameters(
    (mesh_lib.joined(_MESH), False), (_SAMPLER_MESH, False), (None, True)
  )
  def test_no_token_collects_weights_that_fsdp_splits(
    self, sampler_shape, is_each_token
  ):
    parts, mesh = tiny_run.parts(), mesh_lib.make(_MESH)
    settings = tiny_run.settings(
      mesh=mesh, sampler_mesh=sampler_shape and mesh_lib.make(sampler_shape)
    )
    run = _sharded_run(parts, mesh)
    with jax.set_mesh(mesh):
      program = programs.build(parts, None, settings).jitted['generate']
      compiled = program.lower(
        generation_lib.policy(run), state.empty_prompts(parts.shape, 1, 4)
      ).compile()
    params = model.unstack(
      jax.tree.map(lambda leaf: leaf[0], run.learner.params)
    )
    num_tensor = 1 if sampler_shape is None else sampler_shape['tensor']
    # What the sampler exchanges beside weights has fewer bytes.
    smallest = min(
      leaf.nbytes / num_tensor
      for leaf in jax.tree.leaves(params)
      if leaf.ndim > 1
    )
    times = [
      one.times.number
      for one in hlo_costs.collectives(hlo.parse(compiled.as_text()))
      if one.kind == 'all-gather' and one.num_bytes >= smallest
    ]
    self.assertNotEmpty(times)
    self.assertEqual(max(times) > 1, is_each_token, times)

  def test_weights_are_split_there_by_the_table_and_rounded(self):
    mesh, other = mesh_lib.make(_MESH), mesh_lib.make(_SAMPLER_MESH)
    parts = tiny_run.experiment(model__compute_dtype='bfloat16').parts
    maker = maker_lib.Maker(
      parts, tiny_run.settings(mesh=mesh, sampler_mesh=other), None
    )
    policy = generation_lib.policy(_sharded_run(parts, mesh))
    prompts = state.empty_prompts(parts.shape, 1, 4)

    def generate(policy, prompts):
      return jnp.sum(policy.params['final_norm']) + prompts.lengths

    with (
      jax.set_mesh(mesh),
      mock.patch.object(
        jax.lax,
        'with_sharding_constraint',
        wraps=jax.lax.with_sharding_constraint,
      ) as constrained,
    ):
      call = maker._on_sampler_mesh(
        generate, out_shardings=mesh_lib.whole(mesh), num_leading_axes=0
      )
      result = call(policy, prompts)
    self.assertEqual(result.sharding, mesh_lib.whole(mesh))
    [((sent, sent_prompts), (places, prompt_places))] = [
      call.args for call in constrained.call_args_list
    ]
    transformer = parts.transformer
    self.assertEqual(
      places.params,
      placement.of_params(model.logical_axes(transformer), other),
    )
    chex.assert_trees_all_equal_shapes_and_dtypes(
      sent.params,
      model.rounded(
        transformer, jax.tree.map(lambda leaf: leaf[0], policy.params)
      ),
    )
    self.assertEqual(sent.params['embedding'].dtype, jnp.bfloat16)
    rest = (sent._replace(params=None), sent_prompts)
    # Version, seed, first rollout, the numbers of the config and the prompts.
    num_rest = 3 + len(jax.tree.leaves((parts.hyper, prompts)))
    self.assertLen(jax.tree.leaves(rest), num_rest)
    self.assertEqual(
      jax.tree.leaves((places._replace(params=None), prompt_places)),
      [mesh_lib.whole(other)] * num_rest,
    )
